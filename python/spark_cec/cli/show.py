"""Prints results: for people, and as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from spark_cec.admin.check import StoreCheck, Verification
from spark_cec.admin.damage import Finding, FindingKind
from spark_cec.admin.find_log import Place
from spark_cec.ids import StoreId
from spark_cec.recovery.query_files import Fallback

_STYLES = {FindingKind.TORN: "yellow", FindingKind.CORRUPT: "bold red", FindingKind.LOST: "bold red"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class _Output(Console):
    """A console whose caller handles a closed pipe: rich would exit with the code for damage."""

    def on_broken_pipe(self) -> None:
        """Re-raises the `BrokenPipeError` that rich is handling."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output: coloured on a terminal only, and without line breaks inside a line, for other programs."""
    return _Output(width=1_000, soft_wrap=True, highlight=False, markup=False, emoji=False)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line."""
    print(json.dumps(value))


def size(count: int) -> str:
    """Bytes, in the largest unit that gives at least 1."""
    amount, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def counted(count: int, thing: str, things: str | None = None) -> str:
    """`1 store`, `2 stores`; `things` is an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def print_findings(out: Console, findings: Iterable[Finding]) -> None:
    """Prints one line for each finding: kind, place, bytes, reason."""
    for each in findings:
        place = each.where if each.offset is None else f"{each.where} at byte {each.offset}"
        lost = "" if each.bytes_lost is None else f"{counted(each.bytes_lost, 'byte')}, "
        out.print(Text.assemble((f"{each.kind.value:8}", _STYLES[each.kind]), f"{place}: {lost}{each.reason}"))


def verification_json(result: Verification) -> dict[str, Any]:
    """The fields of `cec verify --json`."""
    return {
        **place_json(result.place),
        "ok": not result.findings,
        "committed_batch": result.committed.batch if result.committed else None,
        "damages": [finding.to_json() for finding in result.findings],
        "segments": [
            {"segment": each.segment, "bytes": each.size, "frames": each.frames, "damages": len(each.damages)}
            for each in result.segments
        ],
        "output_batches": result.output_batches,
        "stores": [_check_json(check) for check in result.stores],
        "fallback": fallback_json(result.decided),
    }


def print_verification(out: Console, result: Verification) -> None:
    """Prints the findings, then one line of sums."""
    print_findings(out, result.findings)
    sound = sum(check.damage is None for check in result.stores)
    read = sum(segment.size for segment in result.segments)
    frames = sum(segment.frames for segment in result.segments)
    sums = [
        f"{size(read)} in {counted(len(result.segments), 'segment')}",
        counted(frames, "sound frame"),
        counted(result.output_batches, "output batch", "output batches"),
        f"{sound:,} of {counted(len(result.stores), 'store version')} rebuilt",
    ]
    count = len(result.findings)
    verdict = Text(f"{counted(count, 'damage')} found: ", "bold red") if count else Text("ok: ", "green")
    out.print(verdict + Text(", ".join(sums)))
    if result.place.checkpoint is None:
        out.print("no checkpoint was given: stores were rebuilt as the log has them, and Spark may have committed more")
    if result.decided:
        out.print(describe_fallback(result.decided))


def store_json(store: StoreId) -> dict[str, Any]:
    """The three parts of a store's id."""
    return {"operator": store.operator, "partition": store.partition, "store": store.name}


def _check_json(check: StoreCheck) -> dict[str, Any]:
    return {
        **store_json(check.store),
        "version": check.version,
        "ok": check.damage is None,
        "open_windows": None if check.damage else check.open_windows,
        "scanned_records": None if check.damage else check.scanned,
        "reason": check.damage.reason if check.damage else None,
    }


def fallback_json(decided: Fallback | None) -> dict[str, Any] | None:
    """The decided fallback, in `cec verify --json` and `cec inspect --json`."""
    return {"version": decided.version, "committed_batch": decided.committed_batch} if decided else None


def describe_fallback(decided: Fallback) -> str:
    """The decided fallback in words."""
    return (
        f"`cec repair` was here: the next start begins from version {decided.version}, and brings back what is lost "
        f"with a replay up to batch {decided.committed_batch}"
    )


def place_json(place: Place) -> dict[str, Any]:
    """The log's home and id."""
    return {"log_home": place.home, "log_id": place.log_id}
