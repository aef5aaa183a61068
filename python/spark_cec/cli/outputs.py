"""What `cec outputs` prints: the batches that the sink has published, and what of the sources went into each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from spark_cec.cli.damage import Finding, of_error
from spark_cec.cli.find_log import Place
from spark_cec.cli.show import counted, place_json, print_findings
from spark_cec.errors import DamagedLog
from spark_cec.log.cuts import Cut, cuts_of
from spark_cec.log.manifest import Manifest, load, read_batch, readable_batches

_SHOWN_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Input:
    """What a batch read of a source, as that writes it: from `start` (None: not known) to `end` (None: nothing yet)."""

    source: str
    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """A published batch and its inputs, in Spark's order; none where the log does not say."""

    manifest: Manifest
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The newest batches, oldest first, what was ever taken back, and what of all that cannot be read."""

    place: Place
    batches: tuple[OutputBatch, ...]
    cuts: tuple[Cut, ...]
    findings: tuple[Finding, ...]


def read_outputs(place: Place, last: int) -> Outputs:
    """The newest `last` batches that are published."""
    there, damaged_cuts = readable_batches(place.storage)
    findings = [*map(of_error, damaged_cuts)]
    cuts = () if damaged_cuts else cuts_of(place.storage).known
    # One more than are shown: a batch begins where the one before it ended.
    known = {each.batch: each for each in _read(place, there[-last - 1 :], findings)}
    shown = [OutputBatch(each, _inputs(each, known.get(each.batch - 1))) for each in known.values()]
    return Outputs(place, tuple(shown[-last:]), cuts, tuple(findings))


def _read(place: Place, wanted: list[int], findings: list[Finding]) -> Iterator[Manifest]:
    for batch in wanted:
        try:
            yield load(place.storage, batch)
        except DamagedLog as error:
            findings.append(of_error(error))
        except FileNotFoundError:  # retired a moment ago
            continue


def _inputs(batch: Manifest, before: Manifest | None) -> tuple[Input, ...]:
    named = before is not None and [each.source for each in before.consumed] == [e.source for e in batch.consumed]
    starts = [each.end for each in before.consumed] if before and named else [None] * len(batch.consumed)
    return tuple(Input(each.source, start, each.end) for each, start in zip(batch.consumed, starts, strict=True))


def outputs_json(found: Outputs) -> dict[str, Any]:
    """The fields of `cec outputs --json`."""
    return {
        **place_json(found.place),
        "batches": [
            {
                "batch": each.manifest.batch,
                "rows": each.manifest.rows,
                "frames": len(each.manifest.frames),
                "replaces_all": each.manifest.truncate,
                "generation": each.manifest.generation,
                "published_ms": each.manifest.wall_ms,
                "watermark_ms": each.manifest.boundary_ms,
                "inputs": [{"source": i.source, "from": i.start, "to": i.end} for i in each.inputs],
            }
            for each in found.batches
        ],
        "cuts": [{"after": cut.after, "generation": cut.generation, "cut_ms": cut.wall_ms} for cut in found.cuts],
        "damages": [finding.to_json() for finding in found.findings],
    }


def print_outputs(out: Console, found: Outputs) -> None:
    """Two lines or more a batch: what it is, then what went into it."""
    print_findings(out, found.findings)
    if not found.batches:
        out.print("no batch of output is published: only the cec sink writes into the log")
    for cut in found.cuts:
        behind = f"all behind batch {cut.after}" if cut.after >= 0 else "all of it"
        out.print(f"taken back by run {cut.generation}, {_time(cut.wall_ms)}: {behind}")
    for each in found.batches:
        batch = each.manifest
        late = "" if batch.boundary_ms is None else f", watermark {_time(batch.boundary_ms)}"
        whole = ", replaces all before" if batch.truncate else ""
        rows, frames = counted(batch.rows, "row"), counted(len(batch.frames), "frame")
        out.print(f"batch {batch.batch}: {rows} in {frames}, published {_time(batch.wall_ms)}{late}{whole}")
        for read in each.inputs:
            begin = "" if read.start is None else f" from {_shown(read.start)}"
            out.print(f"    {read.source}{begin} to {_shown(read.end or 'nothing yet')}")


def _shown(offset: str) -> str:
    try:
        return f"batch {read_batch(offset)}"
    except ValueError:
        return offset[:_SHOWN_CHARACTERS]


def _time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # event time is what users make of it
        return f"{ms} ms since 1970"
