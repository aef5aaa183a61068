"""`cec pipeline simulate`, which the command line finds by an entry point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spark_cec.errors import CecError
from spark_cec.extras import need
from spark_cec_lab.simulation.pipelines.simulate import Arrivals, Cluster, Strategy

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


class WrongArgument(CecError):
    """An option has a value that makes no sense: the message says which."""


def register(app: typer.Typer) -> None:
    """Gives `cec pipeline` this command."""
    app.command(help=_SIMULATE, short_help="Compare how queries come back after a correlated failure.")(simulate)


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
    need("cec pipeline simulate", "tune")
    from spark_cec_lab.simulation.pipelines.comparison import SHARES, distance, play, summary

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
        from spark_cec_lab.simulation.pipelines.plots import save_available

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
        _print(Console(width=160, highlight=False), result, SHARES)


def _print(out: Console, result: dict[str, Any], shares: Sequence[float]) -> None:
    low, high = result["failed_queries"]
    queries = str(low) if low == high else f"{low} to {high}"
    rounds = f"{result['rounds']} rounds from seed {result['seed']}"
    out.print(f"{result['operators']} operators, {queries} failed queries, {rounds}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("strategy")
    for share in shares:
        table.add_column(f"{share:.0%} back after, s", justify="right")
    table.add_column("mean without a query, s", justify="right")
    table.add_column("planner, ms", justify="right")
    for line in result["strategies"]:
        cells = [_cell(line[f"until_{share:.0%}_s"]) for share in shares]
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
