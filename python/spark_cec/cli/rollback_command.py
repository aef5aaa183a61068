"""`cec rollback`: its help, its options, and its confirmation."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from spark_cec.cli.failures import ExitCode, explain_errors
from spark_cec.cli.options import AsJson, Checkpoint, can_ask

_ROLLBACK = """Take a query back to the end of an earlier batch: its state, its place in its sources, and its output.

Stop the query first. The command says what going back needs and costs, and asks. Then it cuts Spark's offsets and
commits, and this log, behind BATCH. If it is killed, the query does not start before the same command has run again.

The next start replays what the log misses of BATCH, if anything, and goes on with the batch after it. Its input is read
again, in batches that may be cut otherwise. A batch of which something was let go is refused, with the nearest one that
is kept whole. Output of the cec sink is taken back, and a stream that has read it stops by name. Other sinks keep what
they have: rows come again, and a sink that knows batches by their numbers passes over the new ones.

\b
Examples:
  cec rollback /checkpoints/clicks --to 41 --dry-run
  cec rollback /checkpoints/clicks --to 41
  cec rollback /checkpoints/clicks --to 41 --yes --json | jq .replay

\b
Exit codes:
  0  done, or nothing to do; --dry-run: it could be done
  1  the log has lost what that batch has left; nothing was changed
  2  refused, with the reason, or not confirmed; nothing was changed
"""

To = Annotated[int, typer.Option("--to", metavar="BATCH", min=0, help="The last batch that stays.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it needs and costs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command(help=_ROLLBACK, short_help="Take a query back to the end of an earlier batch. Stop it first.")(rollback)


def rollback(
    checkpoint: Checkpoint, to: To, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Checks, prints the costs, asks, and rolls back."""
    with explain_errors("rollback", checkpoint, "read" if dry_run else "read and write"):
        from dataclasses import replace

        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.read_only import ReadOnlyStorage
        from spark_cec.admin.roll_back import ReadProgress, find_way_back, go_back, while_stopped
        from spark_cec.cli.progress import meter
        from spark_cec.cli.show import console, print_json
        from spark_cec.cli.show_rollback import print_done, print_way_back, rollback_json

        asks = not (dry_run or yes)
        if asks and (as_json or not can_ask()):
            raise typer.BadParameter("nobody can be asked here: give --yes, or --dry-run", param_hint="--yes")
        place = find_log(checkpoint)
        generation = None
        with while_stopped(place, dry_run=dry_run) as confirm:
            with meter(place.storage) as progress:
                watched = replace(place, storage=ReadOnlyStorage(place.storage, progress.read))
                way = find_way_back(watched, to, ReadProgress(progress.stores_begin, progress.store_done))
            if way is not None and not as_json:
                print_way_back(console(), way)
            if way is not None and not dry_run and (yes or _is_confirmed()):
                confirm()
                generation = go_back(way)
        if as_json:
            print_json(rollback_json(place, to, way, generation))
        elif way is None:
            print(f"the query is at the end of batch {to} already: nothing to do")
        elif generation is not None:
            print_done(console(), way)
        else:
            print("nothing was changed")
        sys.stdout.flush()
        refused = way is not None and not dry_run and generation is None
        raise typer.Exit(ExitCode.UNREADABLE if refused else ExitCode.OK)


def _is_confirmed() -> bool:
    try:
        return typer.confirm("Go back?", err=True)
    except typer.Abort:
        return False
