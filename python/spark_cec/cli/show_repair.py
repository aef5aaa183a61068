"""Prints the result of `cec repair`: for people, and as one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from spark_cec.admin.damage import Finding, damage_finding
from spark_cec.admin.fall_back import FallbackPlan
from spark_cec.admin.find_log import Place
from spark_cec.cli.show import counted, place_json, print_findings, store_json
from spark_cec.log.home import LOG_FILE
from spark_cec.log.manifest import RETIRED, Manifest
from spark_cec.log.output_rollbacks import CUTS
from spark_cec.log.repair import RepairReport
from spark_cec.recovery.fallback import Base, FallbackCost


def repair_json(
    place: Place, report: RepairReport, fallback: FallbackPlan | None, due: tuple[int, int] | None,
    lost: Sequence[Finding], kept_from: int | None, elsewhere: range | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The fields of `cec repair --json`; `fallback` is null if every store is whole, or no version is.

    `replay`: the replay of the next start, if every store is whole and bytes were removed. `lost_output`: rows of the
    sink that no reader can read. `kept_from`: the rebuilt retirement bound, if its note was damaged. `other_sink`: the
    batches that had another sink, as the caller has said.
    """
    return {
        **place_json(place),
        "dry_run": report.dry_run,
        "bytes_removed": report.bytes_removed,
        "removed": [{**damage_finding(each.damage).to_json(), "kept_as": each.kept_as} for each in report.removed],
        "lost": [{**store_json(each.store), "reason": each.reason} for each in fallback.found.losses]
        if fallback
        else [],
        "fallback": _fallback_json(fallback) if fallback else None,
        "replay": {"first": due[0], "last": due[1]} if due else None,
        "log_file": "damaged" if place.damage else "sound",
        "kept_from": kept_from,
        "other_sink": {"first": elsewhere[0], "last": elsewhere[-1]} if elsewhere else None,
        "lost_output": [each.to_json() for each in lost],
    }


def print_repair(
    out: Console, place: Place, report: RepairReport, *, whole: bool, due: tuple[int, int] | None,
    kept_from: int | None = None,
) -> None:  # fmt: skip
    """Prints each removed range and the next step. `whole`: every store can be rebuilt.

    `due`: the batches that the next start replays; `kept_from` as in `repair_json`.
    """
    if kept_from is not None:
        out.print(
            f"{RETIRED} {'would be' if report.dry_run else 'was'} written anew: output is kept from batch {kept_from} "
            f"on, the oldest that is there"
        )
    for each in report.removed:
        print_findings(out, [damage_finding(each.damage)])
        out.print(f"        {'would be kept' if report.dry_run else 'kept'} as {place.home}/{each.kept_as}")
    if place.damage is not None:
        out.print(f"{LOG_FILE} {'would be' if report.dry_run else 'was'} written anew, with the id {place.log_id}")
    if not report.removed:
        out.print("nothing to take out: all bytes of all segments are sound" if not whole else
                  "nothing to repair: all bytes of all segments are sound")  # fmt: skip
        return
    what = f"{counted(report.bytes_removed, 'byte')} in {counted(len(report.removed), 'place')}"
    if report.dry_run:
        out.print(f"{what} would be taken out; run `cec repair` without --dry-run to do it")
    else:
        out.print(f"{what} taken out; run `cec verify` to see whether anything is still missing")
    if due is not None:
        what = f"batch {due[1]}" if due[0] == due[1] else f"batches {due[0]} to {due[1]}"
        out.print(f"every store can be rebuilt; the next start of the query replays {what}")


def print_lost_output(out: Console, lost: Sequence[Finding]) -> None:
    """Prints the lost rows, which a replay does not write again."""
    print_findings(out, lost)
    cuts = [each for each in lost if each.where.startswith(f"{CUTS}/")]
    if cuts:
        out.print(
            f"{cuts[0].where} says from which batch on output was taken back, and nothing else does: the query cannot "
            f"write, and nobody can read, until it is restored from a copy"
        )
    if len(lost) > len(cuts):
        out.print(
            "these rows of the sink's output are lost: no start of the query writes them again. Restore the log from "
            'a copy; until then a read that comes to them fails, or passes over them with option("failOnDataLoss", '
            '"false")'
        )
    if any(each.reason.startswith("the manifest of batch") for each in lost):
        out.print(
            "if the query had another sink for the batches whose manifests are missing, their rows are there: run "
            "`cec repair` with --other-sink FIRST-LAST, so that readers pass over them"
        )


def print_other_sink(out: Console, noted: Sequence[Manifest], *, dry_run: bool) -> None:
    """Prints which batches are noted as those of another sink."""
    if noted:
        what = f"batches {noted[0].batch} to {noted[-1].batch}" if len(noted) > 1 else f"batch {noted[0].batch}"
        out.print(f"{'would be noted' if dry_run else 'noted'}: another sink had {what}, and readers pass over them")


def print_fallback(out: Console, fallback: FallbackPlan, *, dry_run: bool) -> None:
    """Prints the lost stores, and how the query gets them back."""
    newest = {loss.store: loss for loss in reversed(fallback.found.losses)}
    for store, loss in sorted(newest.items()):
        older = sum(each.store == store for each in fallback.found.losses) - 1
        more = f" (and {counted(older, 'older version')} with it)" if older else ""
        out.print(f"lost    store {store}: {loss.reason}{more}", style="bold red")
    found, cost = fallback.found, fallback.cost
    if not isinstance(found, Base) and found.carried:
        out.print(
            f"the state of batch {fallback.committed_batch} is lost, back to version {found.carried}, which was "
            f"carried here from another checkpoint: carry it from there once more, restore the checkpoint from a copy, "
            f"or start a new one"
        )
        return
    if not isinstance(found, Base):
        out.print(
            f"the state of batch {fallback.committed_batch} is lost: batches from {max(found.needs_batch - 1, 0)} on "
            f"would bring it back, but Spark's offset log begins at batch {found.oldest_batch}; restore the "
            f"checkpoint from a copy, or start a new one"
        )
        return
    assert cost is not None, "a base has a cost"
    out.print(
        f"the log still has all stores at version {found.version}: the next start of the query "
        f"{'would begin' if dry_run else 'begins'} from there, and a replay of batches {found.replay_from} to "
        f"{fallback.committed_batch} ({counted(cost.batches, 'batch', 'batches')}, {_format_input(cost)}) "
        f"brings back what is lost"
    )


def _format_input(cost: FallbackCost) -> str:
    if not cost.lost_footers:
        return f"about {counted(cost.inputs, 'input tuple')}"
    return f"how much input is not known: {counted(cost.lost_footers, 'commit')} of them left no count"


def _fallback_json(fallback: FallbackPlan) -> dict[str, Any] | None:
    if not isinstance(fallback.found, Base) or fallback.cost is None:
        return None
    return {
        "version": fallback.found.version,
        "committed_batch": fallback.committed_batch,
        "replay_from": fallback.found.replay_from,
        "batches": fallback.cost.batches,
        "input_tuples": fallback.cost.inputs if not fallback.cost.lost_footers else None,
    }
