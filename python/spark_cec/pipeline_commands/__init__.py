"""`cec pipeline` and `cec watch`, which the command line finds by entry points."""

from __future__ import annotations

import typer

from spark_cec.cli.failures import explain_errors
from spark_cec.cli.subcommands import HANDED_OVER, add_commands, hand_over
from spark_cec.extras import need


def register(app: typer.Typer) -> None:
    """Gives the command line this command."""
    app.command(short_help="Run pipelines of queries; show, check and verify them.", **HANDED_OVER)(pipeline)


def register_watch(app: typer.Typer) -> None:
    """Gives the command line `cec watch`, which knows queries and pipelines."""
    from spark_cec.pipeline_commands.watch import WATCH_HELP, watch

    app.command(help=WATCH_HELP, short_help="Show a query or a pipeline in the terminal, as it changes.")(watch)


def pipeline(context: typer.Context) -> None:
    """Hand the arguments over to the commands of pipelines."""
    with explain_errors("pipeline", "", "read and write"):
        need("`cec pipeline`", "pipeline")
        from spark_cec.pipeline_commands.app import make_app

        app = make_app()
        add_commands(app, "pipeline")
        hand_over(app, context)
