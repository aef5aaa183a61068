"""Tells how far back a recovery would replay: the batches, their time, and their range in each source.

Reads only Spark's own files in the checkpoint: the offset log, and the initial offsets that each source recorded. Asks
no source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.log.storage import Storage
from spark_cec.recovery.margin import Needed, initial_offsets, needed_partitions

SHOWN = 3
"""The number of partitions that a sentence names; it counts the others."""

_NO_OFFSET = "-"
_SHOWN_CHARACTERS = 200
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One entry of Spark's offset log. `timestamp_ms` is the wall clock of its planning, None if the entry lacks it.

    `offsets`: the end of each source, in the source's own form and in Spark's order; None if the source had no data
    yet. `watermark_ms`: event time, None without a watermark.
    """

    timestamp_ms: int | None
    offsets: tuple[str | None, ...]
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The range that a recovery reads of one source, in the source's own form; `start` is None for its beginning.

    `partitions`: the range of each partition, None unless the offsets have Kafka's form.
    """

    start: str | None
    end: str | None
    partitions: tuple[Needed, ...] | None


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """The replay of a recovery: batches `first` to `committed`, none if `first` is above `committed`.

    `timestamp_ms`: wall clock of the planning of batch `first`, None if Spark's offset log lacks the batch. `sources`:
    in the order of Spark's offset log; empty if that is unreadable.
    """

    first: int
    committed: int
    timestamp_ms: int | None
    sources: tuple[SourceRange, ...]

    @property
    def is_due(self) -> bool:
        """Whether a recovery has a batch to replay."""
        return self.first <= self.committed

    def describe(self, now_ms: int) -> str:
        """Describes the replay in one line; `now_ms` is the wall clock."""
        if not self.is_due:
            return (
                f"a recovery now would replay nothing: it goes on with batch {self.first}{self._describe_partitions()}"
            )
        ago = "" if self.timestamp_ms is None else f", {_format_duration(now_ms - self.timestamp_ms)} ago"
        return f"a recovery now would need input since batch {self.first}{self._describe_partitions()}{ago}"

    def describe_need(self, now_ms: int) -> str:
        """Describes the input that the replay needs, in a few words; `now_ms` is the wall clock."""
        ago = "" if self.timestamp_ms is None else f", {_format_duration(now_ms - self.timestamp_ms)} ago"
        return f"since batch {self.first}{self._describe_partitions()}{ago}"

    def _describe_partitions(self) -> str:
        """The partitions with the largest ranges, in parentheses; empty without partitions."""
        needed = [each for source in self.sources for each in source.partitions or ()]
        if not needed:
            return ""
        needed.sort(key=lambda each: (each.offset - each.end, each.topic, each.partition))
        named = ", ".join(f"{each.topic}-{each.partition} from offset {each.offset}" for each in needed[:SHOWN])
        return f" ({named}{f' and {len(needed) - SHOWN} more' if len(needed) > SHOWN else ''})"


def read_replay_input(checkpoint: Storage, first: int, committed: int) -> ReplayInput:
    """The replay of a recovery of batch `committed` (at least 0), from batch `first` (D) on.

    `checkpoint` is rooted at Spark's checkpoint. Missing entries and entries of another form are left out. Errors:
    `OSError` of the storage.
    """
    begin = read_planned(checkpoint, first - 1) if first > 0 else PlannedBatch(None, ())
    end, planned = read_planned(checkpoint, committed), read_planned(checkpoint, first)
    sources: tuple[SourceRange, ...] = ()
    if begin is not None and end is not None:
        sources = tuple(_read_source_range(checkpoint, n, begin.offsets, last) for n, last in enumerate(end.offsets))
    return ReplayInput(first, committed, planned.timestamp_ms if planned else None, sources)


def read_planned(checkpoint: Storage, batch: int) -> PlannedBatch | None:
    """A batch of Spark's offset log; None if the log lacks it. Reads offsets of format version 1 only."""
    try:
        return parse_planned(checkpoint.read(f"offsets/{batch}"))
    except FileNotFoundError:
        return None


def parse_planned(entry: bytes) -> PlannedBatch:
    """The batch of an entry of Spark's offset log."""
    lines = entry.decode(errors="replace").split("\n")
    offsets = lines[2:] if lines[0] == "v1" else []
    metadata = lines[1] if len(lines) > 1 else ""
    return PlannedBatch(
        _parse_time(metadata, "batchTimestampMs"),
        tuple(None if line == _NO_OFFSET else line for line in offsets if line),
        _parse_time(metadata, "batchWatermarkMs"),
    )


def describe_batches(checkpoint: Storage, first: int, last: int, names: Sequence[str]) -> str:
    """Describes the input of batches `first` to `last`, by source; `names` are the sources' names, in Spark's order.

    For offsets of Kafka's form the text counts rows. The count includes transaction markers, which take an offset but
    are no rows.
    """
    batches = f"batch {last} reads" if first == last else f"batches {first} to {last} read"
    known = read_replay_input(checkpoint, first, last).sources
    if len(known) != len(names):
        return f"{batches} {', '.join(names)}"
    return f"{batches} {'; '.join(map(_describe_source, names, known))}"


def _describe_source(name: str, source: SourceRange) -> str:
    if source.partitions is None:
        start = "its beginning" if source.start is None else source.start[:_SHOWN_CHARACTERS]
        return f"{name} from {start} to {(source.end or 'there')[:_SHOWN_CHARACTERS]}"
    read = [each for each in source.partitions if each.offset < each.end]
    rows = sum(each.end - each.offset for each in read)
    ranges = [f"{each.topic}-{each.partition} {each.offset} to {each.end - 1}" for each in read[:SHOWN]]
    more = [f"{len(read) - SHOWN} more partitions"] if len(read) > SHOWN else []
    return f"{name}, where {rows} rows are expected ({', '.join([*ranges, *more]) or 'nothing'})"


def _read_source_range(checkpoint: Storage, number: int, begins: Sequence[str | None], end: str | None) -> SourceRange:
    start = begins[number] if number < len(begins) else None
    if end is None:
        return SourceRange(start, end, None)
    if start is not None:
        return SourceRange(start, end, _parse_partitions(start, end))
    noted = _read_initial_offsets(checkpoint, number, end)
    return SourceRange(noted, end, None if noted is None else _parse_partitions(noted, end))


def _read_initial_offsets(checkpoint: Storage, number: int, end: str) -> str | None:
    """The initial offsets of a Kafka source; None for another kind of source, or if no file records them.

    Spark does not number the second use of one source in a query. So the source's directory may have a lower number; it
    is recognized by its topics.
    """
    topics = {each.topic for each in _parse_partitions(end, end) or ()}
    if not topics:
        return None
    for candidate in range(number, -1, -1):
        try:
            noted = initial_offsets(checkpoint.read(f"sources/{candidate}/0"))
        except (FileNotFoundError, ValueError):
            continue
        if topics & {each.topic for each in _parse_partitions(noted, noted) or ()}:
            return noted
    return None


def _parse_partitions(start: str, end: str) -> tuple[Needed, ...] | None:
    try:
        return needed_partitions(start, end)
    except ValueError:
        return None


def _parse_time(metadata: str, field: str) -> int | None:
    try:
        return int(json.loads(metadata)[field]) or None
    except (ValueError, KeyError, TypeError):
        return None


def _format_duration(ms: int) -> str:
    """The time in the largest unit that gives at least 2, or in seconds: `4 minutes`, `90 minutes`, `1 second`."""
    seconds = max(ms, 0) // 1000
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), _UNITS[-1])
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'}"
