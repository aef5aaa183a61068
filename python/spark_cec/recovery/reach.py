"""How far back a recovery would reach: the batches, their time, and what they read of each source.

All of it is in Spark's own files in the checkpoint: the offset log, and what sources noted at their first start.
No source is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.log.storage import Storage
from spark_cec.recovery.margin import Needed, initial_offsets, needed_partitions

SHOWN = 3
"""Partitions that a sentence names; it counts the others."""

_NO_OFFSET = "-"
_SHOWN_CHARACTERS = 200
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One entry of Spark's offset log. `timestamp_ms`: wall clock when the batch was planned, None if it does not say.

    `offsets`: where each source ends, as it writes that, None for one that had nothing yet; in Spark's order.
    `watermark_ms`: event time, None if there is no watermark.
    """

    timestamp_ms: int | None
    offsets: tuple[str | None, ...]
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceReach:
    """What a recovery reads of one source: from `start` (None: from where it began) to `end`, as the source writes it.

    `partitions`: the same by partition, None unless the offsets have Kafka's form.
    """

    start: str | None
    end: str | None
    partitions: tuple[Needed, ...] | None


@dataclass(frozen=True, slots=True)
class Reach:
    """A recovery replays the batches `first` to `committed`, none if `first` is above that; then the query goes on.

    `timestamp_ms`: wall clock when batch `first` was planned, None if it was not yet, or Spark has forgotten it.
    `sources`: in the order of Spark's offset log; empty where that cannot be read.
    """

    first: int
    committed: int
    timestamp_ms: int | None
    sources: tuple[SourceReach, ...]

    @property
    def is_due(self) -> bool:
        """Whether a recovery has anything to replay."""
        return self.first <= self.committed

    def describe(self, now_ms: int) -> str:
        """In one line for people; `now_ms` is the wall clock."""
        if not self.is_due:
            return f"a recovery now would replay nothing: it goes on with batch {self.first}{self._where()}"
        ago = "" if self.timestamp_ms is None else f", {_duration(now_ms - self.timestamp_ms)} ago"
        return f"a recovery now would need input since batch {self.first}{self._where()}{ago}"

    def describe_need(self, now_ms: int) -> str:
        """What of the sources it reads, in a few words; `now_ms` is the wall clock."""
        ago = "" if self.timestamp_ms is None else f", {_duration(now_ms - self.timestamp_ms)} ago"
        return f"since batch {self.first}{self._where()}{ago}"

    def _where(self) -> str:
        """The partitions of which most is needed."""
        needed = [each for source in self.sources for each in source.partitions or ()]
        if not needed:
            return ""
        needed.sort(key=lambda each: (each.offset - each.end, each.topic, each.partition))
        named = ", ".join(f"{each.topic}-{each.partition} from offset {each.offset}" for each in needed[:SHOWN])
        return f" ({named}{f' and {len(needed) - SHOWN} more' if len(needed) > SHOWN else ''})"


def read_reach(checkpoint: Storage, first: int, committed: int) -> Reach:
    """How far back a recovery of batch `committed` (at least 0) reaches that replays from batch `first` on (D).

    `checkpoint` is rooted at Spark's checkpoint. What is not there, or of another form, is left out. `OSError` as the
    storage.
    """
    begin = read_planned(checkpoint, first - 1) if first > 0 else PlannedBatch(None, ())
    end, planned = read_planned(checkpoint, committed), read_planned(checkpoint, first)
    sources: tuple[SourceReach, ...] = ()
    if begin is not None and end is not None:
        sources = tuple(_source(checkpoint, n, begin.offsets, last) for n, last in enumerate(end.offsets))
    return Reach(first, committed, planned.timestamp_ms if planned else None, sources)


def read_planned(checkpoint: Storage, batch: int) -> PlannedBatch | None:
    """A batch of Spark's offset log; None if it has no such batch. Offsets are read from format version 1 only."""
    try:
        lines = checkpoint.read(f"offsets/{batch}").decode(errors="replace").split("\n")
    except FileNotFoundError:
        return None
    offsets = lines[2:] if lines[0] == "v1" else []
    metadata = lines[1] if len(lines) > 1 else ""
    return PlannedBatch(
        _time_in(metadata, "batchTimestampMs"),
        tuple(None if line == _NO_OFFSET else line for line in offsets if line),
        _time_in(metadata, "batchWatermarkMs"),
    )


def describe_batches(checkpoint: Storage, first: int, last: int, names: Sequence[str]) -> str:
    """What the batches `first` to `last` of Spark's offset log read, by source; `names` are these, in Spark's order.

    Of offsets of Kafka's form it says how many rows that is; markers of transactions take an offset, and are none.
    """
    batches = f"batch {last} reads" if first == last else f"batches {first} to {last} read"
    known = read_reach(checkpoint, first, last).sources
    if len(known) != len(names):
        return f"{batches} {', '.join(names)}"
    return f"{batches} {'; '.join(map(_source_words, names, known))}"


def _source_words(name: str, source: SourceReach) -> str:
    if source.partitions is None:
        start = "its beginning" if source.start is None else source.start[:_SHOWN_CHARACTERS]
        return f"{name} from {start} to {(source.end or 'there')[:_SHOWN_CHARACTERS]}"
    read = [each for each in source.partitions if each.offset < each.end]
    rows = sum(each.end - each.offset for each in read)
    ranges = [f"{each.topic}-{each.partition} {each.offset} to {each.end - 1}" for each in read[:SHOWN]]
    more = [f"{len(read) - SHOWN} more partitions"] if len(read) > SHOWN else []
    return f"{name}, where {rows} rows are expected ({', '.join([*ranges, *more]) or 'nothing'})"


def _source(checkpoint: Storage, number: int, begins: Sequence[str | None], end: str | None) -> SourceReach:
    start = begins[number] if number < len(begins) else None
    if end is None:
        return SourceReach(start, end, None)
    if start is not None:
        return SourceReach(start, end, _partitions(start, end))
    noted = _noted(checkpoint, number, end)
    return SourceReach(noted, end, None if noted is None else _partitions(noted, end))


def _noted(checkpoint: Storage, number: int, end: str) -> str | None:
    """Where a source of Kafka's began. None if it is of another kind, or nothing was noted.

    Spark numbers the directories without the sources that occur in a query twice: the one that is meant may be an
    earlier one, and then has the same topics.
    """
    topics = {each.topic for each in _partitions(end, end) or ()}
    if not topics:
        return None
    for candidate in range(number, -1, -1):
        try:
            noted = initial_offsets(checkpoint.read(f"sources/{candidate}/0"))
        except (FileNotFoundError, ValueError):
            continue
        if topics & {each.topic for each in _partitions(noted, noted) or ()}:
            return noted
    return None


def _partitions(start: str, end: str) -> tuple[Needed, ...] | None:
    try:
        return needed_partitions(start, end)
    except ValueError:
        return None


def _time_in(metadata: str, field: str) -> int | None:
    try:
        return int(json.loads(metadata)[field]) or None
    except (ValueError, KeyError, TypeError):
        return None


def _duration(ms: int) -> str:
    """In the largest unit of which there are two, or in seconds: `4 minutes`, `90 minutes`, `1 second`."""
    seconds = max(ms, 0) // 1000
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), _UNITS[-1])
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'}"
