"""`cec watch`: a query or a pipeline in the terminal, as it changes."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated

import typer

from spark_cec.cli.failures import ExitCode, explain_errors

WATCH_HELP = """Show a query, or a pipeline, in the terminal as it changes. Press q or Esc to leave.

Of a query: mode and settings, the newest batch, what a recovery would need, q against Q and u against U with their
curves, each operator, the last recoveries with foretold and measured time, a replay that runs, and damage. Of a
pipeline: each flow, what it waits for, and the executors. Writes nothing: it is safe while the query runs.

\b
Examples:
  cec watch /checkpoints/clicks
  cec watch /data/shop
  cec watch s3://bucket/checkpoints/clicks --every 5
  cec watch /checkpoints/clicks --once
  cec watch /checkpoints/clicks --json | jq '.totals.replay_inputs'

\b
Exit codes:
  0  ok
  1  at the last look there was damage, a failed flow, or no driver of the pipeline any more
  2  wrong usage, or the log cannot be read
"""


def watch(
    place: Annotated[
        str, typer.Argument(metavar="CHECKPOINT|HOME", help="A query's checkpoint, its log, or a pipeline's home.")
    ],
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as text; so it is without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows it."""
    with explain_errors("watch", place):
        path = place.rstrip("/") or place
        sound = _watch_pipeline if _is_pipeline(path) else _watch_query
        if not sound(path, every, once=once, as_json=as_json):
            raise typer.Exit(ExitCode.DAMAGE)


def _watch_query(path: str, every_s: float, *, once: bool, as_json: bool) -> bool:
    from rich.console import RenderableType

    from spark_cec.cli.live import follow
    from spark_cec.cli.show import console, print_json
    from spark_cec.cli.watch_query import QueryWatcher, is_sound, look_json, show_look
    from spark_cec.errors import CecError

    watcher = QueryWatcher(path)
    newest = watcher.look()
    failure: CecError | OSError | None = None
    if as_json:
        print_json(look_json(newest))
    elif once:
        console().print(show_look(newest, _width()))
    else:

        def look() -> RenderableType:
            nonlocal newest, failure
            try:
                newest, failure = watcher.look(), None
            except (CecError, OSError) as error:  # it may be there again a moment later
                failure = error
            return show_look(newest, _width(), f"cannot be read now: {failure}" if failure else None)

        follow(look, every_s)
    if failure is not None:
        raise failure
    return is_sound(newest)


def _is_pipeline(path: str) -> bool:
    from spark_cec.admin.find_log import open_to_read
    from spark_cec.pipeline.replicas import list_replicas
    from spark_cec.recovery.query_files import PIPELINE_FILE

    return open_to_read(path).exists(PIPELINE_FILE) or bool(list_replicas(path))


def _watch_pipeline(path: str, every_s: float, *, once: bool, as_json: bool) -> bool:
    from spark_cec.cli.show import console
    from spark_cec.pipeline.home import open_homes
    from spark_cec.pipeline_commands.run import follow_pipeline, is_well, make_tables, status_json

    homes = open_homes(path)
    newest = {name: home.status() for name, home in homes.items()}
    if as_json:
        print(json.dumps({"kind": "pipeline", **status_json(newest)}))
    elif once:
        console().print(make_tables(newest))
    else:
        newest = follow_pipeline(homes, newest, every_s)
    return is_well(newest)


def _width() -> int:
    """The columns of the terminal; many if there is none, because a file cuts nothing off."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000
