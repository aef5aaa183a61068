"""Reads the batches that the sink has published, and the inputs of each from the sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_cec.admin.damage import Finding, error_finding
from spark_cec.admin.find_log import Place
from spark_cec.errors import DamagedLog
from spark_cec.log.boundary import Boundary, read_boundary, still_holds
from spark_cec.log.late import count_late
from spark_cec.log.manifest import Manifest, load, readable_batches
from spark_cec.log.output_rollbacks import Cut, read_cuts
from spark_cec.log.readers import list_readers


@dataclass(frozen=True, slots=True)
class Input:
    """A batch's range in one source, in the source's own form: `start` (None: unknown) to `end` (None: no data yet)."""

    source: str
    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """A published batch and its inputs, in Spark's order; empty if the log does not record them."""

    manifest: Manifest
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class LateRows:
    """How many rows were kept aside because they came too late for a reader of this name."""

    reader: str
    rows: int


@dataclass(frozen=True, slots=True)
class Outputs:
    """The newest batches, oldest first, all cuts, and the unreadable files. `boundary`: None if none is known.

    `late`: by reader, if it has any.
    """

    place: Place
    batches: tuple[OutputBatch, ...]
    cuts: tuple[Cut, ...]
    findings: tuple[Finding, ...]
    boundary: Boundary | None = None
    late: tuple[LateRows, ...] = ()


def read_outputs(place: Place, last: int) -> Outputs:
    """The newest `last` published batches."""
    there, damaged_cuts = readable_batches(place.storage)
    findings = [*map(error_finding, damaged_cuts)]
    cuts = () if damaged_cuts else read_cuts(place.storage).known
    # Reads one more than it shows: a batch begins where the previous one ended.
    known = {each.batch: each for each in _load_manifests(place, there[-last - 1 :], findings)}
    shown = [OutputBatch(each, _derive_inputs(each, known.get(each.batch - 1))) for each in known.values()]
    boundary = read_boundary(place.storage)
    holds = boundary is not None and still_holds(place.storage, boundary)
    late = tuple(_count_late(place, findings))
    return Outputs(place, tuple(shown[-last:]), cuts, tuple(findings), boundary if holds else None, late)


def _count_late(place: Place, findings: list[Finding]) -> Iterator[LateRows]:
    for reader in list_readers(place.storage):
        found = count_late(place.storage, reader)
        if found is not None:
            rows, damages = found
            findings += map(error_finding, damages)
            yield LateRows(reader, rows)


def _load_manifests(place: Place, wanted: list[int], findings: list[Finding]) -> Iterator[Manifest]:
    for batch in wanted:
        try:
            yield load(place.storage, batch)
        except DamagedLog as error:
            findings.append(error_finding(error))
        except FileNotFoundError:  # retired a moment ago
            continue


def _derive_inputs(batch: Manifest, before: Manifest | None) -> tuple[Input, ...]:
    named = before is not None and [each.source for each in before.consumed] == [e.source for e in batch.consumed]
    starts = [each.end for each in before.consumed] if before and named else [None] * len(batch.consumed)
    return tuple(Input(each.source, start, each.end) for each, start in zip(batch.consumed, starts, strict=True))
