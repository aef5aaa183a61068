"""Which epoch a reader by buckets reads, of one flow or of its replicas (Balazinska et al., SIGMOD 2005, section 4.3).

A reader prefers stable rows. It reads an epoch if it has all stable rows that there are. An epoch comes from one
replica as a whole, because its rows depend on what had come there.

Rows are addressed by their bucket. So the rows of an epoch are replaced when the reader has the stable rows of all
buckets that it has read of it, in either replica. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MOST_BEHIND_MS, MOST_BUCKETS_BEHIND = 3_000, 2
"""A reader changes to the epoch of the other replica if that one is ahead by more than both, event time.

A change takes all rows of the first one back, so a small difference is no reason.
"""


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """An epoch that is open. `end_ms`: the end of the buckets that are stable in its channel, ms since 1970.

    `pause_ms`: how long each row waits in it. Its end is so far behind the rows that have come.
    """

    number: int
    end_ms: int
    pause_ms: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader has of an epoch: its rows up to `until_ms`, event time, and none of another epoch."""

    replica: str
    number: int
    until_ms: int


def choose_epoch(
    present: Reading | None, epochs: Mapping[str, OpenEpoch], ends: Mapping[str, int], until_ms: int, wait_ms: int,
    bucket_ms: int, still: Collection[str] = (),
) -> str | None:  # fmt: skip
    """The replica whose open epoch a reader reads next; None if it reads none.

    Call it if the reader has left no stable rows for its next batch: all of them would come tentatively, too.

    `epochs`: by replica, those that are open and can be read. `ends`: by replica that can be read, the end of the
    buckets that are stable in the flow's own channel. `until_ms`: the reader has all stable rows below. `wait_ms`: how
    far the stable rows of a replica may be behind before it opens an epoch. `still`: the replicas whose end has not
    moved for so long.

    Without replicas both maps have the key "" at most.
    """
    stable_ms = max([until_ms, *ends.values()])
    # A replica without an epoch is in time, or its driver is gone. If it is in time, it is less than `wait_ms` behind.
    in_time = ends.keys() - epochs.keys() - set(still)
    due = {
        replica: each.end_ms
        for replica, each in epochs.items()
        if each.end_ms > stable_ms and (not in_time or each.end_ms + each.pause_ms > stable_ms + wait_ms)
    }
    if present is not None:
        # The other replica may be gone, and its epoch old. The next epoch of the same replica knows more.
        known_ms = min(due.get(present.replica, present.until_ms), present.until_ms)
        due = {name: end for name, end in due.items() if name == present.replica or end >= known_ms}
    if not due:
        return None
    best = min(due, key=lambda each: (-due[each], each))
    if present is None or present.replica not in due or epochs[present.replica].number != present.number:
        return best
    is_far_behind = due[best] - due[present.replica] > max(MOST_BEHIND_MS, MOST_BUCKETS_BEHIND * bucket_ms)
    return best if is_far_behind else present.replica


def stays(present: Reading, until_ms: int) -> bool:
    """Whether the rows of an epoch that is not read any more still count: stable rows do not replace all of them yet.

    `until_ms`: the reader has all stable rows below.
    """
    return present.until_ms > until_ms
