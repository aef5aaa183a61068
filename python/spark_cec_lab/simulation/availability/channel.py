"""A channel: the batches that a query has given out, as its readers know them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_cec.availability.buckets import Backlog, BatchTimes, ChannelFacts, Position
from spark_cec.log.times import TimeRange
from spark_cec_lab.simulation.availability.clock import Signal


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one time, in ms. `of`: how many rows of the inputs they come of."""

    time_ms: int
    rows: int
    of: int


@dataclass(slots=True)
class Channel:
    """The batches with rows, in order: what is in them, and what a reader learns of them."""

    name: str
    batches: list[tuple[Rows, ...]] = field(default_factory=list)
    times: list[BatchTimes] = field(default_factory=list)
    came_ms: list[float] = field(default_factory=list)
    latest_ms: list[int] = field(default_factory=list)
    grows: Signal = field(default_factory=Signal)

    @property
    def newest(self) -> int:
        """The number of the newest batch, -1 without one."""
        return len(self.batches) - 1

    def publish(self, rows: Sequence[Rows], now: float) -> None:
        """Gives a batch out. One without rows is none: no reader learns anything from it."""
        if not rows:
            return
        times = TimeRange(min(each.time_ms for each in rows), latest_ms := max(each.time_ms for each in rows))
        self.times.append(BatchTimes(len(self.batches), sum(each.rows for each in rows), times, now))
        self.batches.append(tuple(rows))
        self.came_ms.append(now)
        self.latest_ms.append(max([latest_ms, *self.latest_ms[-1:]]))
        self.grows.send()

    def fork(self) -> Channel:
        """A channel with the same batches, which goes on by itself."""
        return Channel(
            self.name, self.batches.copy(), self.times.copy(), self.came_ms.copy(), self.latest_ms.copy()
        )  # fmt: skip

    def count_until(self, then_ms: float) -> int:
        """How many batches came until then."""
        return bisect_right(self.came_ms, then_ms)

    def facts(self, position: Position) -> ChannelFacts:
        """What a reader at this position knows. Rows of an input are never late, and no writer says more than its rows.
        """
        times = tuple(self.times[position.first :])
        return ChannelFacts(
            self.name, position, Backlog(times, self.latest_ms[-1] if times else None), self.newest, 0
        )  # fmt: skip

    def between(self, start: Position, end: Position) -> Iterable[Rows]:
        """The rows of the batch of a reader from one position to another."""
        for batch in self.batches[start.first : end.batch + 1]:
            for each in batch:
                if start.until_ms <= each.time_ms < end.until_ms:
                    yield each
