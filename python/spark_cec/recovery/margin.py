"""How far back a recovery would have to read, against what the source still has; pure, for Kafka's form of offsets.

Spark's Kafka source writes a batch's end as `{"topic": {"0": 17}}`: for each partition the offset after the last one
read. What batch D begins with is the end of batch D - 1, and for the first batch what the source noted as its initial
offsets. A partition that is not in there is read from offset 0, because Spark reads a partition that is new to a query
from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

Available = Mapping[str, "Topic"]
"""What is still there, by topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the broker has it: each partition's first offset and the one after its last; retention by time."""

    partitions: Mapping[int, tuple[int, int]]
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """One partition: a replay reads it from `offset` up to, but without, `end`; nothing of it if they are equal."""

    topic: str
    partition: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionMargin:
    """One partition: a replay needs `needed` up to, but without, `end`; the source has offsets from `earliest` on.

    `needed` = `end` if a replay needs nothing of it. `exists` is false if the partition, or its topic, is gone.
    """

    topic: str
    partition: int
    needed: int
    end: int
    earliest: int
    latest: int
    exists: bool = True

    @property
    def spare(self) -> int:
        """Offsets that the source has beyond what is needed; negative: so many that are needed are gone."""
        return self.needed - self.earliest

    @property
    def lost(self) -> bool:
        """Whether something that a replay needs is gone. Where nothing is needed nothing is lost."""
        return self.needed < self.end and (not self.exists or self.spare < 0 or self.latest < self.end)


@dataclass(frozen=True, slots=True)
class Margin:
    """All partitions that the batches to be replayed have read."""

    partitions: tuple[PartitionMargin, ...]

    @property
    def recoverable(self) -> bool:
        """Whether the source still has all that a replay needs."""
        return not self.lost

    @property
    def lost(self) -> tuple[PartitionMargin, ...]:
        """The partitions of which something is gone."""
        return tuple(each for each in self.partitions if each.lost)

    @property
    def gone(self) -> tuple[str, ...]:
        """What is gone, in words: one for each partition."""
        return tuple(_words(each) for each in self.lost)

    @property
    def share(self) -> float:
        """Of what lies before the replay's end, how much the source has beyond the replay's beginning: from 1 (nothing
        has to be replayed) down to 0 (the next record to be deleted is needed, or one is gone); the worst partition.

        This is what `cec.sources.margin` is compared with, because it needs no clock and no permission: when retention
        has nearly caught up with the first record that a replay needs, windows should be written.
        """
        return min((_share(each) for each in self.partitions), default=1.0)

    @property
    def unread(self) -> Margin:
        """The same for a query that goes on without a replay: it needs all that it has not read yet.

        Partitions of which nothing was ever deleted are left alone: how much lies before them says nothing yet.
        """
        return Margin(
            tuple(replace(p, end=max(p.end, p.latest)) if p.exists and p.earliest > 0 else p for p in self.partitions)
        )

    def __str__(self) -> str:
        if self.lost:
            return f"input that a replay needs is gone: {'; '.join(self.gone)}"
        nearest = min((p for p in self.partitions if p.needed < p.end), key=_share, default=None)
        if nearest is None:
            return "no input is needed"
        where = f"{nearest.topic}-{nearest.partition}"
        return f"{where} is needed from offset {nearest.needed} on, and the source has it from {nearest.earliest} on"


def kafka_margin(available: Available, start: str, end: str) -> Margin:
    """What a replay needs against what there is.

    `start` and `end` as for `needed_partitions`. Raises `ValueError` if they are not Kafka offsets.
    """
    return Margin(tuple(_partition(available.get(each.topic), each) for each in needed_partitions(start, end)))


def needed_partitions(start: str, end: str) -> tuple[Needed, ...]:
    """What a replay reads of each partition, sorted.

    `start` is the recorded end of batch D - 1, or `initial_offsets` if D is the first batch; `end` is that of the last
    committed batch. Raises `ValueError` if they are not Kafka offsets.
    """
    begins, ends = _offsets(start), _offsets(end)
    return tuple(
        Needed(topic, partition, begins.get((topic, partition), 0), until)
        for (topic, partition), until in sorted(ends.items())
    )


def initial_offsets(noted: bytes) -> str:
    """The offsets that the source noted at its first start, in `<checkpoint>/sources/<position>/0`.

    Raises `ValueError` if the file is of another version.
    """
    head, _, offsets = noted.lstrip(b"\0").partition(b"\n")
    if head != b"v1":
        raise ValueError(f"initial offsets of an unknown version: {head[:20]!r}")
    return offsets.decode()


def parse_available(answer: str) -> dict[str, Topic]:
    """What the shim's `AskedTopics.available` answers. Raises `ValueError` if it is something else."""
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


def _partition(topic: Topic | None, each: Needed) -> PartitionMargin:
    there = topic.partitions.get(each.partition) if topic else None
    earliest, latest = there or (0, 0)
    return PartitionMargin(each.topic, each.partition, each.offset, each.end, earliest, latest, there is not None)


def _offsets(text: str) -> dict[tuple[str, int], int]:
    try:
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not offsets of Kafka: {text[:200]}") from error


def _share(each: PartitionMargin) -> float:
    if each.lost:
        return 0.0
    return 1.0 if each.needed >= each.end else each.spare / (each.end - each.earliest)


def _words(each: PartitionMargin) -> str:
    where = f"{each.topic}-{each.partition}"
    if not each.exists:
        return f"{where} does not exist any more"
    if each.latest < each.end:
        return f"{where} was made again: it ends at offset {each.latest}, and is needed up to {each.end}"
    gone = f"{min(each.earliest, each.end) - each.needed} of {each.end - each.needed} offsets are gone"
    return f"{where} begins at offset {each.earliest}, and is needed from {each.needed} on: {gone}"
