"""Two replicas of a pipeline give out the same rows in each bucket, and a reader may change from one to the other.

How buckets fall into batches differs between replicas. So rows are addressed by their bucket, and not by their batch
(Balazinska et al., SIGMOD 2005, section 4.2). Two rules make the rows of a bucket the same:

1. The replicas agree on the batches of each flow that reads a source (`agent.agreements`). Such a flow works row by
   row, so both channels have the same rows in the batch of each number. A row in them is late if the batches before its
   own say so, however far a reader has come.
2. For any other channel the writer vouches: no row below its boundary will come. So none is late.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_cec.log.times import TimeRange

REPLICAS = ("a", "b")

MOST_BEHIND_MS, MOST_BUCKETS_BEHIND = 10_000, 2
"""A reader changes from a replica that still gives rows if the other one is ahead by more than both, event time."""


def choose_copy(present: str, ends: Mapping[str, int], until_ms: int, bucket_ms: int) -> str:
    """The replica whose channel a reader reads next.

    `present`: the one that it has read, empty for none. `ends`: by replica that can be read, one at least, the end of
    the buckets that are stable in its channel. `until_ms`: the reader has all rows below.
    """
    best = min(ends, key=lambda each: (-ends[each], each))
    if present not in ends:
        return best
    is_stalled = ends[present] <= until_ms < ends[best]
    is_far_behind = ends[best] - ends[present] > max(MOST_BEHIND_MS, MOST_BUCKETS_BEHIND * bucket_ms)
    return best if is_stalled or is_far_behind else present


def find_floors(batches: Iterable[tuple[int, TimeRange]], delay_ms: int, bucket_ms: int) -> dict[int, int]:
    """By batch of a channel, the end of the buckets that the batches before it have closed; none for the first ones.

    `batches`: those with rows, in their order, with the range of their times. Rows below that end are late. If a read
    begins in the midst of a channel, the batches before it have no rows that it needs, and close no bucket that it
    reads.
    """
    floors, latest_ms = dict[int, int](), None
    for batch, times in batches:
        if latest_ms is not None:
            floors[batch] = (latest_ms - delay_ms) // bucket_ms * bucket_ms
        if times.last_ms is not None:
            latest_ms = times.last_ms if latest_ms is None else max(latest_ms, times.last_ms)
    return floors
