"""`cec pipeline`: its commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spark_cec.errors import CecError
from spark_cec.pipeline.comparison import SHARES, distance, play, summary
from spark_cec.pipeline.graph import Graph, GraphError, to_json
from spark_cec.pipeline.load import load_pipeline
from spark_cec.pipeline.run_commands import RUN_HELP, STATUS_HELP, run, status
from spark_cec.pipeline.simulate import Arrivals, Cluster, Strategy
from spark_cec.pipeline.verify_command import VERIFY_HELP, verify

_SIMULATE = """Simulate correlated failures of a pipeline, and compare how its queries come back.

Each round makes a random topology (shared prefixes, priorities, skewed costs), takes some of its nodes away at once,
and lets replacements come one by one. The strategies see the same rounds:

\b
  progressive  start the queries of highest profit density that fit, anew whenever a node comes (Su and Zhou)
  blocking     wait until there is room for everything
  at-once      start everything, and share what there is, as plain Spark does

\b
Examples:
  cec pipeline simulate
  cec pipeline simulate --operators 1000 --nodes 50 --lost 30 --png available.png
  cec pipeline simulate --operators 30 --optimum --json

\b
Exit codes:
  0  done
  2  wrong usage
"""

_GRAPH = """Show the graph of a pipeline, and check it, without starting anything.

FILE is a Python file that declares a Pipeline; with several in it, FILE:name says which.

\b
Examples:
  cec pipeline graph shop.py
  cec pipeline graph shop.py --png shop.png
  cec pipeline graph shop.py:shop --dot | dot -Tsvg > shop.svg

\b
Exit codes:
  0  the graph can be run
  1  it cannot: all that is wrong is said
  2  wrong usage, or no pipeline there
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command(help=RUN_HELP, short_help="Run a pipeline.")(run)
app.command(help=STATUS_HELP, short_help="Show what the flows of a pipeline are doing.")(status)
app.command(help=VERIFY_HELP, short_help="Read every byte of the logs of a pipeline's flows.")(verify)


class WrongArgument(CecError):
    """An option has a value that makes no sense: the message says which."""


@app.callback(help="Pipelines: queries that are joined by logs.")
def pipeline() -> None:
    """What is common to all commands."""


@app.command(help=_GRAPH, short_help="Show and check the graph of a pipeline.")
def graph(
    file: Annotated[str, typer.Argument(metavar="FILE[:name]", help="Where the pipeline is declared.")],
    dot: Annotated[bool, typer.Option("--dot", help="Print it for Graphviz.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print a table, or the graph in another form."""
    from spark_cec.pipeline.draw import save_png, to_dot

    try:
        found = load_pipeline(file).graph()
    except GraphError as error:
        for complaint in error.complaints:
            print(f"error: {complaint}", file=sys.stderr)
        raise typer.Exit(1) from None
    if png is not None:
        save_png(found, png)
    if as_json:
        print(json.dumps({**to_json(found), "cycles": [list(each) for each in found.cycles()]}))
    elif dot:
        print(to_dot(found))
    else:
        _print_graph(Console(width=160, highlight=False), found)


def _print_graph(out: Console, found: Graph) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("flow", "reads", "read by", "priority"):
        table.add_column(column)
    for name in (name for members in found.order() for name in members):
        node = found.nodes[name]
        readers = ", ".join(found.readers(name)) or ("-" if node.is_sink else "from outside")
        table.add_row(name, ", ".join(node.inputs) or "a source", readers, f"{node.priority:g}" if node.is_sink else "")
    out.print(table)
    for members in found.cycles():
        out.print(f"a cycle: {' and '.join(members)}")


@app.command(help=_SIMULATE, short_help="Compare how queries come back after a correlated failure.")
def simulate(
    operators: Annotated[int, typer.Option(min=2, max=100_000, help="Operators of each topology.")] = 15,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 10,
    lost: Annotated[int, typer.Option(min=1, help="Nodes that fail at once.")] = 8,
    load: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the cores that the topology needs.")] = 0.8,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each operator.")] = 5,
    restore: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="From start to first new tuple.")] = 15.0,
    catch_up: Annotated[float, typer.Option("--catch-up", help="Rate of work, by rate of input.")] = 1.5,
    arrivals: Annotated[Arrivals, typer.Option(help="When replacements come.")] = Arrivals.PAPER,
    rounds: Annotated[int, typer.Option(min=1, help="How many failures.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the first round; each has the next one.")] = 1,
    optimum: Annotated[bool, typer.Option("--optimum", help="Solve each decision exactly: small cases.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the available queries over time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play the rounds, and print a table."""
    if lost > nodes:
        raise WrongArgument(f"--lost {lost}: there are {nodes} nodes; give at most that")
    if catch_up <= 1.0:
        raise WrongArgument(f"--catch-up {catch_up:g}: give more than 1, else nothing ever catches up")
    cluster = Cluster(nodes, lost, load=load, partitions=partitions, restore_s=restore, catch_up=catch_up)
    console = Console(stderr=True)
    with console.status("simulating") as status:
        played = play(operators, cluster, arrivals, list(Strategy), range(seed, seed + rounds))
        best = None
        if optimum:
            best = distance(played, 10.0, lambda done, of: status.update(f"solving decision {done + 1} of {of}"))
    if png is not None:
        from spark_cec.pipeline.plots import save_available

        save_available(played, png)
    failed = [len(each.case.failure.queries) for each in played]
    result: dict[str, Any] = {
        "operators": operators,
        "rounds": rounds,
        "seed": seed,
        "failed_queries": [min(failed), max(failed)],
        "strategies": summary(played),
        "against_the_optimum": best,
    }
    if as_json:
        print(json.dumps(result))
    else:
        _print(Console(width=160, highlight=False), result)


def _print(out: Console, result: dict[str, Any]) -> None:
    low, high = result["failed_queries"]
    queries = str(low) if low == high else f"{low} to {high}"
    rounds = f"{result['rounds']} rounds from seed {result['seed']}"
    out.print(f"{result['operators']} operators, {queries} failed queries, {rounds}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("strategy")
    for share in SHARES:
        table.add_column(f"{share:.0%} back after, s", justify="right")
    table.add_column("mean without a query, s", justify="right")
    table.add_column("planner, ms", justify="right")
    for line in result["strategies"]:
        cells = [_cell(line[f"until_{share:.0%}_s"]) for share in SHARES]
        table.add_row(line["strategy"], *cells, _cell(line["mean_without_s"]), _cell(line["planner_ms"]))
    out.print(table)
    out.print("medians over the rounds, with the lowest and the highest; the mean is weighted by priority")
    best = result["against_the_optimum"]
    if best is not None:
        out.print(
            f"against the optimum: {_cell(best['ratio'])} of its worth, {best['optimal']} of {best['decisions']} "
            f"decisions optimal, {best['unsolved']} not solved in time"
        )


def _cell(values: list[float | None] | None) -> str:
    if values is None:
        return "-"
    middle, low, high = ("never" if value is None else f"{value:,.4g}" for value in values)
    return f"{middle} ({low}, {high})"
