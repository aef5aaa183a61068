"""Compares the input that a recovery needs with the input that the source still has. Pure; for Kafka's offset format.

Spark's Kafka source writes a batch's end as `{"topic": {"0": 17}}`: for each partition the offset after the last one
read. Batch D begins at the end of batch D - 1. The first batch begins at the initial offsets that the source recorded.
If the beginning lacks a partition, Spark reads that partition from offset 0, because it is new to the query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

Available = Mapping[str, "Topic"]
"""The offsets that the broker still has, by topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's partitions, each with its first offset and the offset after its last one, and the retention time in ms.
    """

    partitions: Mapping[int, tuple[int, int]]
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """The offsets that a replay reads of one partition: `offset` inclusive to `end` exclusive, none if they are equal.
    """

    topic: str
    partition: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionMargin:
    """A replay needs offsets `needed` inclusive to `end` exclusive; the source has them from `earliest` on.

    If a replay needs none, `needed` equals `end`. If the partition or its topic is gone, `exists` is false. `is_left`:
    the query has gone on without it (`failOnDataLoss=false`), and a replay would stop there.
    """

    topic: str
    partition: int
    needed: int
    end: int
    earliest: int
    latest: int
    exists: bool = True
    is_left: bool = False

    @property
    def spare(self) -> int:
        """Offsets that the source has before the first needed one; negative if needed offsets are gone."""
        return self.needed - self.earliest

    @property
    def lost(self) -> bool:
        """Whether a needed offset is gone. If the replay needs none, the answer is false.

        A last batch that ended before the first one began has read another topic of that name.
        """
        is_short = self.needed < self.end and (not self.exists or self.spare < 0 or self.latest < self.end)
        return self.is_left or self.needed > self.end or is_short

    @property
    def share(self) -> float:
        """Spare offsets over all from the source's first to `end`. 1: the replay needs none. 0: a needed is gone."""
        if self.lost:
            return 0.0
        return 1.0 if self.needed >= self.end else self.spare / (self.end - self.earliest)


@dataclass(frozen=True, slots=True)
class Margin:
    """The margins of all partitions that the replayed batches have read."""

    partitions: tuple[PartitionMargin, ...]

    @property
    def recoverable(self) -> bool:
        """Whether the source still has every needed offset."""
        return not self.lost

    @property
    def lost(self) -> tuple[PartitionMargin, ...]:
        """The partitions that lack a needed offset."""
        return tuple(each for each in self.partitions if each.lost)

    @property
    def gone(self) -> tuple[str, ...]:
        """A description of the loss for each partition with a loss."""
        return tuple(_describe(each) for each in self.lost)

    @property
    def share(self) -> float:
        """The smallest share over all partitions: spare offsets over all offsets from the source's first to `end`.

        1 means that a replay needs nothing. 0 means that retention deletes a needed record next, or has already deleted
        one.

        The setting `cec.sources.margin` is a bound on the share, because the share needs neither clock nor permission.
        If the share is small, retention is close to a needed record, and the stores should write their windows.
        """
        return min((each.share for each in self.partitions), default=1.0)

    @property
    def needed(self) -> int:
        """How many offsets the replay reads."""
        return sum(max(each.end - each.needed, 0) for each in self.partitions)

    @property
    def nearest(self) -> PartitionMargin | None:
        """The needed partition with the smallest share, of those that have lost an offset before; None without one."""
        losing = [each for each in self.partitions if each.needed < each.end and each.earliest > 0]
        return min(losing, key=lambda each: each.share, default=None)

    @property
    def unread(self) -> Margin:
        """The margin of a query that continues without a replay: it needs every offset that it has not read yet.

        Partitions from which nothing was ever deleted stay as they are, because their offsets say nothing about
        retention.
        """
        return Margin(
            tuple(replace(p, end=max(p.end, p.latest)) if p.exists and p.earliest > 0 else p for p in self.partitions)
        )

    def __str__(self) -> str:
        if self.lost:
            return f"input that a replay needs is gone: {'; '.join(self.gone)}"
        nearest = min((p for p in self.partitions if p.needed < p.end), key=lambda each: each.share, default=None)
        if nearest is None:
            return "no input is needed"
        where = f"{nearest.topic}-{nearest.partition}"
        return f"{where} is needed from offset {nearest.needed} on, and the source has it from {nearest.earliest} on"


def kafka_margin(available: Available, start: str, end: str) -> Margin:
    """Compares the offsets that a replay needs with the available ones.

    `start` and `end` as in `needed_partitions`. Raises `ValueError` if they are not Kafka offsets.
    """
    known = [_make_margin(available.get(each.topic), each) for each in needed_partitions(start, end)]
    ends = _parse_offsets(end)
    left = [
        PartitionMargin(topic, partition, offset, offset, 0, 0, exists=False, is_left=True)
        for (topic, partition), offset in sorted(_parse_offsets(start).items())
        if (topic, partition) not in ends
    ]
    return Margin((*known, *left))


def needed_partitions(start: str, end: str) -> tuple[Needed, ...]:
    """The offsets that a replay reads of each partition, sorted by topic and partition.

    `start` is the recorded end of batch D - 1, or `initial_offsets` if D is the first batch. `end` is the recorded end
    of the last committed batch. Raises `ValueError` if they are not Kafka offsets.
    """
    begins, ends = _parse_offsets(start), _parse_offsets(end)
    return tuple(
        Needed(topic, partition, begins.get((topic, partition), 0), until)
        for (topic, partition), until in sorted(ends.items())
    )


def initial_offsets(noted: bytes) -> str:
    """The offsets that the source recorded at its first start, in `<checkpoint>/sources/<position>/0`.

    Raises `ValueError` if the file has another format version.
    """
    head, _, offsets = noted.lstrip(b"\0").partition(b"\n")
    if head != b"v1":
        raise ValueError(f"initial offsets of an unknown version: {head[:20]!r}")
    return offsets.decode()


def parse_available(answer: str) -> dict[str, Topic]:
    """Parses the shim's answer on available offsets, JSON as text. Raises `ValueError` if it has another form."""
    try:
        return {
            topic: Topic(
                {int(partition): (int(first), int(end)) for partition, (first, end) in entry["partitions"].items()},
                None if entry["retention_ms"] is None else int(entry["retention_ms"]),
            )
            for topic, entry in json.loads(answer).items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not what Kafka has: {answer[:200]}") from error


def _make_margin(topic: Topic | None, each: Needed) -> PartitionMargin:
    there = topic.partitions.get(each.partition) if topic else None
    earliest, latest = there or (0, 0)
    return PartitionMargin(each.topic, each.partition, each.offset, each.end, earliest, latest, there is not None)


def _parse_offsets(text: str) -> dict[tuple[str, int], int]:
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not offsets of Kafka: {text[:200]}") from error


def _describe(each: PartitionMargin) -> str:
    where = f"{each.topic}-{each.partition}"
    if each.is_left:
        return f"{where} was deleted, and the query went on without it, so a replay stops there"
    if each.needed > each.end:
        return f"{where} was made again: it was read up to offset {each.needed} before, and up to {each.end} since"
    if not each.exists:
        return f"{where} does not exist any more"
    if each.latest < each.end:
        return f"{where} was made again: it ends at offset {each.latest}, and is needed up to {each.end}"
    gone = f"{min(each.earliest, each.end) - each.needed} of {each.end - each.needed} offsets are gone"
    return f"{where} begins at offset {each.earliest}, and is needed from {each.needed} on: {gone}"
