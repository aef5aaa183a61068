"""Reads the batches that the sink has published, and the inputs of each from the sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_cec.admin.damage import Finding, of_error
from spark_cec.admin.find_log import Place
from spark_cec.errors import DamagedLog
from spark_cec.log.manifest import Manifest, load, readable_batches
from spark_cec.log.output_rollbacks import Cut, read_cuts


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
    cuts = () if damaged_cuts else read_cuts(place.storage).known
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
