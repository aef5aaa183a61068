"""`cec pipeline`: its commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_cec.cli.subcommands import HELP_OPTIONS
from spark_cec.extras import need
from spark_cec.pipeline.graph import Graph, GraphError, to_json
from spark_cec.pipeline.load import load_pipeline
from spark_cec.pipeline_commands.run import RUN_HELP, STATUS_HELP, run, status
from spark_cec.pipeline_commands.verify import VERIFY_HELP, verify

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


def make_app() -> typer.Typer:
    """The commands as an application, to which others may be added."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP_OPTIONS,
    )
    app.callback(help="Pipelines: queries that are joined by logs.")(pipeline)
    app.command(help=RUN_HELP, short_help="Run a pipeline.")(run)
    app.command(help=STATUS_HELP, short_help="Show what the flows of a pipeline are doing.")(status)
    app.command(help=VERIFY_HELP, short_help="Read every byte of the logs of a pipeline's flows.")(verify)
    app.command(help=_GRAPH, short_help="Show and check the graph of a pipeline.")(graph)
    return app


def pipeline() -> None:
    """Take the options that all commands have: none but help."""


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
        need("cec pipeline graph --png", "tune")
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
