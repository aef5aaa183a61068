"""`cec repair`: its help, its options, and its confirmation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from spark_cec.cli.failures import ExitCode, explain_errors
from spark_cec.cli.options import AsJson, Checkpoint, can_ask

if TYPE_CHECKING:
    from spark_cec.admin.find_log import Place
    from spark_cec.log.reader import SegmentReport

_REPAIR = """Take damaged bytes out of the log. Stop the query first.

Damaged ranges, torn ends included, are copied to broken/ under the log's home, then each damaged segment is replaced by
its sound bytes. Sound segments are not touched.

Where a store cannot be rebuilt any more, it says so, and has the next start of the query begin from the newest version
that the log still has of all stores: a longer replay, whose cost it says, brings back what is lost. It needs the input
of those batches, and Spark's offset log of them. A query that runs is refused. One without state here takes no lock, so
that nothing tells whether it runs: the command asks.

If the query had another sink for some batches, their missing manifests look like lost output. With --other-sink they
are noted as batches without rows, and readers pass over them.

\b
Examples:
  cec repair /checkpoints/clicks --dry-run
  cec repair /checkpoints/clicks
  cec repair /pipeline/flows/clean --yes
  cec repair /checkpoints/clicks --other-sink 4-7

\b
Exit codes:
  0  nothing to repair, or repaired
  1  --dry-run: there is something to repair; else: something is lost that nothing here brings back: a store of which
     the log has no version to begin from, or rows of the sink's output
  2  wrong usage, or the log cannot be read or written, or not confirmed
"""

_NO_LOCK = "a query without state here takes no lock: nothing here tells whether the query runs"

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken out.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether a query without a lock is stopped.")]

OtherSink = Annotated[
    str | None,
    typer.Option("--other-sink", metavar="FIRST-LAST", help="These batches had another sink, and have no rows here."),
]


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    what = "Take damaged bytes out, and keep them aside. Stop the query first."
    app.command(help=_REPAIR, short_help=what)(repair)


def repair(
    checkpoint: Checkpoint,
    dry_run: DryRun = False,
    yes: Yes = False,
    other_sink: OtherSink = None,
    as_json: AsJson = False,
) -> None:
    """Removes damaged bytes from the log, and records a fallback if a store is lost."""
    with explain_errors("repair", checkpoint, "read" if dry_run else "read and write"):
        from spark_cec.adapters.fsspec_storage import open_storage
        from spark_cec.admin.check import find_lost_output
        from spark_cec.admin.fall_back import keep_runs_out, plan_fallback, record_fallback, replay_due
        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.read_only import WatchedStorage
        from spark_cec.cli.progress import meter
        from spark_cec.cli.show import console, print_json
        from spark_cec.cli.show_repair import (
            print_fallback,
            print_lost_output,
            print_other_sink,
            print_repair,
            repair_json,
        )
        from spark_cec.log.bundles import Bundles
        from spark_cec.log.home import restore_log
        from spark_cec.log.manifest import damaged_retirement, restore_retirement
        from spark_cec.log.other_sink import note_other_sink, plan_other_sink
        from spark_cec.log.repair import find_damaged, plan_repair, remove_damage

        elsewhere = _parse_batches(other_sink)
        place = find_log(checkpoint)
        storage = place.storage if dry_run else Bundles(open_storage(place.home))
        with nullcontext() if dry_run else keep_runs_out(place) as confirm:
            noted = plan_other_sink(storage, elsewhere) if elsewhere else []
            fallback = plan_fallback(place)
            with meter(storage) as progress:
                damaged = find_damaged(WatchedStorage(storage, progress.read), place.log_id)
            if confirm is None:
                report = plan_repair(damaged)
            else:
                _require_stopped(place, damaged, confirm, asks=None if yes else not as_json)
                report = remove_damage(storage, damaged)
                note_other_sink(storage, noted)
                if fallback is not None and report.has_bundles:  # their segments are there again
                    fallback = plan_fallback(find_log(checkpoint))
                record_fallback(place, fallback)
            due = replay_due(place) if report.removed and fallback is None else None
            if place.damage is not None and not dry_run:
                restore_log(storage, place.log_id)
            kept_from = damaged_retirement(storage)
            if kept_from is not None and not dry_run:
                restore_retirement(storage, kept_from)
            lost = find_lost_output(place, {each.batch for each in noted})
        if as_json:
            print_json(repair_json(place, report, fallback, due, lost, kept_from, elsewhere))
        else:
            whole = not (fallback or lost or noted or place.damage) and kept_from is None
            print_repair(console(), place, report, whole=whole, due=due, kept_from=kept_from)
            if fallback is not None:
                print_fallback(console(), fallback, dry_run=dry_run)
            print_lost_output(console(), lost)
            print_other_sink(console(), noted, dry_run=dry_run)
        sys.stdout.flush()
        beyond = bool(lost) or (fallback is not None and fallback.cost is None)
        is_due = dry_run and bool(report.removed or fallback or place.damage or kept_from is not None or noted)
        raise typer.Exit(ExitCode.DAMAGE if beyond or is_due else ExitCode.OK)


def _require_stopped(
    place: Place, damaged: list[SegmentReport], confirm: Callable[[], None], *, asks: bool | None
) -> None:
    """Asks whether the query is stopped if segments are to be written and nothing tells; ends the command if it runs.

    `asks`: None if the user has said that it is stopped, false if nobody can be asked. `confirm`: of `keep_runs_out`.
    """
    from spark_cec.admin.fall_back import has_lock

    if damaged and asks is not None and not has_lock(place):
        if not asks or not can_ask():
            raise typer.BadParameter(f"{_NO_LOCK}. Stop it, and give --yes", param_hint="--yes")
        if not _is_confirmed():
            print("nothing was changed")
            sys.stdout.flush()
            raise typer.Exit(ExitCode.UNREADABLE)
    confirm()


def _parse_batches(text: str | None) -> range | None:
    """The batches from the first to the last that are named, as `4-7` or `4`."""
    found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text or "")
    batches = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if text is not None and not batches:
        why = f"{text!r} names no batches: give the first and the last, as 4-7"
        raise typer.BadParameter(why, param_hint="--other-sink")
    return batches or None


def _is_confirmed() -> bool:
    try:
        return typer.confirm(f"{_NO_LOCK}. Is it stopped?", err=True)
    except typer.Abort:
        return False
