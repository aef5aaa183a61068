"""The lab's commands, which `cec` finds by entry points."""

from __future__ import annotations

import typer

from spark_cec.cli.failures import explain_errors
from spark_cec.cli.subcommands import HANDED_OVER, hand_over
from spark_cec.extras import need


def register_bench(app: typer.Typer) -> None:
    """Gives the command line `cec bench`."""
    app.command(short_help="Compare with Spark's own state stores.", **HANDED_OVER)(bench)


def bench(context: typer.Context) -> None:
    """Hand the arguments over to the benchmark."""
    with explain_errors("bench", "", "read and write"):
        need("`cec bench`", "spark")
        from spark_cec_lab.bench.command import app

        hand_over(app, context)
