"""SUnion: reads several channels by buckets of tuple time (Balazinska et al., SIGMOD 2005, section 4.2).

A bucket is the rows of all channels whose time is in one interval, `[k * length, (k + 1) * length)`. It is stable once
every channel's boundary has passed its end: no row of it will come. A batch of the reader is whole stable buckets.

The functions are pure: facts in, positions out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_cec.log.times import TimeRange


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """A batch of a channel: its rows, the range of their times, and when it came, in ms by the reader's clock.

    `size`: its stored bytes; 0 if nobody asked for them.
    """

    batch: int
    rows: int
    times: TimeRange
    came_ms: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader is in a channel, which its offset says.

    `until_ms`: all rows below were given out, or are late. `batch`: the newest batch that was looked at; -1 for none.
    `first`: the oldest batch that may have rows at `until_ms` or later.
    """

    until_ms: int
    batch: int
    first: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Batches with rows, in order, and the latest time of a row in them, ms since the epoch; None without one."""

    batches: tuple[BatchTimes, ...] = ()
    latest_ms: int | None = None

    @classmethod
    def of(cls, batches: Iterable[BatchTimes]) -> Backlog:
        """The backlog with the latest time, which is worth keeping: an input may be away for days."""
        known = tuple(batches)
        return cls(known, max((each.times.last_ms for each in known if each.times.last_ms is not None), default=None))


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """What is known of a channel.

    `backlog`: the batches from `position.first` on. `newest`: the newest batch. `delay_ms`: how far a row may be behind
    the latest one. `said_ms`: the time below which no row will come, as the channel's writer says; None if it says
    nothing.
    """

    name: str
    position: Position
    backlog: Backlog
    newest: int
    delay_ms: int
    said_ms: int | None = None


def as_of(channel: ChannelFacts, then_ms: float) -> ChannelFacts:
    """The channel without the batches that came after `then_ms`, but with all that the reader has looked at.

    What the writer says counts up to the first row of a batch that is left out: else that row would be late.
    """
    later = (each.batch for each in channel.backlog.batches if each.came_ms > then_ms)
    young = next((batch for batch in later if batch > channel.position.batch), None)
    if young is None:
        return channel
    said_ms = channel.said_ms
    if said_ms is not None:
        hidden = (each.times.first_ms for each in channel.backlog.batches if each.batch >= young)
        said_ms = min([said_ms, *(ms for ms in hidden if ms is not None)])
    backlog = Backlog.of(each for each in channel.backlog.batches if each.batch < young)
    return replace(channel, backlog=backlog, newest=young - 1, said_ms=said_ms)


def leave_out_future(channel: ChannelFacts, most_ms: int) -> ChannelFacts:
    """The channel without the rows whose time is after `most_ms`, as far as the ranges of its batches tell.

    A clock that is wrong makes such rows. Nobody can say that another input is away because it has not come so far. And
    where an input is not waited for, they must not decide for it which of its rows are late. A batch may have other
    rows, too. They may wait, so it counts up to `most_ms`. But nothing tells how far they go, so the boundary follows
    the first one.
    """
    latest_ms, said_ms = channel.backlog.latest_ms, channel.said_ms
    if said_ms is not None and said_ms > most_ms:
        channel = replace(channel, said_ms=most_ms)
    if latest_ms is None or latest_ms <= most_ms:
        return channel
    kept, ends = list[BatchTimes](), list[int]()
    for each in channel.backlog.batches:
        first, last = each.times.first_ms, each.times.last_ms
        if first is None or last is None or last <= most_ms:
            kept.append(each)
            ends += [] if last is None else [last]
        elif first <= most_ms:
            kept.append(replace(each, times=replace(each.times, last_ms=most_ms)))
            ends.append(first)
    return replace(channel, backlog=Backlog(tuple(kept), max(ends, default=None)))


def find_boundary(channel: ChannelFacts) -> int:
    """The channel's boundary, ms since the epoch: no row below it will come.

    It never goes back: what the position has is a boundary.
    """
    own_ms = _find_own_boundary(channel)
    return channel.position.until_ms if own_ms is None else max(channel.position.until_ms, own_ms)


def _find_own_boundary(channel: ChannelFacts) -> int | None:
    """The boundary that its rows and its writer tell, whatever the reader has read; None if they tell none."""
    latest_ms = channel.backlog.latest_ms
    known = (None if latest_ms is None else latest_ms - channel.delay_ms, channel.said_ms)
    return max((ms for ms in known if ms is not None), default=None)


def is_back(channel: ChannelFacts, bucket_ms: int, left_ms: int, ahead_ms: int, most_lag_ms: int) -> bool:
    """Whether a channel that was given up is there again.

    `left_ms`: its boundary then. `ahead_ms`: the highest boundary now. It has a stable bucket that the reader has not
    read. Or it has gone on, and is less than `most_lag_ms` behind: an input that is always some seconds behind must be
    waited for, or all of its rows would be late.
    """
    if _floor(find_boundary(channel), bucket_ms) > channel.position.until_ms:
        return True
    return _is_near(channel, left_ms, ahead_ms, most_lag_ms)


def note_left(
    known: Mapping[str, int], channels: Sequence[ChannelFacts], absent: Collection[str]
) -> dict[str, int]:
    """The boundaries that the channels `absent` had when they were left out. `known`: the last answer."""
    return {each.name: known.get(each.name, _find_own_boundary(each) or 0) for each in channels if each.name in absent}


def find_back(channels: Sequence[ChannelFacts], left_ms: Mapping[str, int], most_lag_ms: int) -> frozenset[str]:
    """Those of the channels that nobody waits for which are back.

    `left_ms`: as of `note_left`. A channel is back if it has gone on, and is less than
    `most_lag_ms` behind the furthest one.
    """
    ahead_ms = max(map(find_boundary, channels), default=0)
    return frozenset(
        each.name
        for each in channels
        if each.name in left_ms and _is_near(each, left_ms[each.name], ahead_ms, most_lag_ms)
    )


def _is_near(channel: ChannelFacts, left_ms: int, ahead_ms: int, most_lag_ms: int) -> bool:
    """Whether a channel whose boundary was `left_ms` has gone on, and is less than `most_lag_ms` behind `ahead_ms`."""
    own_ms = _find_own_boundary(channel)
    return own_ms is not None and own_ms > left_ms and ahead_ms - own_ms < most_lag_ms


def find_holders(channels: Sequence[ChannelFacts], bucket_ms: int, absent: Collection[str] = ()) -> dict[str, int]:
    """The channels that hold rows of others back, slowest first, each with the end of its own stable buckets, in ms.

    A channel holds rows of another one back if their bucket is stable there, and not here. `absent`: the channels that
    hold nobody back. Their own rows wait, too: they may be back, and another one away.
    """
    ends = sorted(((_floor(find_boundary(each), bucket_ms), each) for each in channels), key=lambda end: end[0])
    return {
        each.name: end_ms
        for end_ms, each in ends
        if each.name not in absent
        and any(other_ms > end_ms and _has_row_between(other, end_ms, other_ms) for other_ms, other in ends)
    }


@dataclass(frozen=True, slots=True)
class Held:
    """A channel holds rows of others back, from before `to_ms`, event time, since `since`, s by the reader's clock."""

    since: float
    to_ms: int


def note_holders(
    known: Mapping[str, Held], holders: Mapping[str, int], ahead_ms: int, now: float
) -> dict[str, Held]:  # fmt: skip
    """Since when each channel holds rows of others back, slowest first. `known`: the last answer.

    `holders`: as of `find_holders`. `ahead_ms`: the highest boundary. An input that is slow holds rows back, too. So
    its wait ends only when its boundary has passed all rows that waited at the begin. If the highest boundary is lower
    now, that one counts: the clock that says which rows count was ahead for a moment.
    """
    held = {}
    for name, end_ms in holders.items():
        before = known.get(name)
        if before is None or end_ms >= min(before.to_ms, ahead_ms):
            held[name] = Held(now, ahead_ms)
        else:
            held[name] = Held(before.since, min(before.to_ms, ahead_ms))
    return held


@dataclass(frozen=True, slots=True)
class Stand:
    """A channel's boundary.

    `behind_since`: since when it is there, and the writer of another channel says that its own is a bucket further, s
    by the reader's clock. None: no writer says so. Then the channels may all have no rows.
    """

    boundary_ms: int
    behind_since: float | None


def note_stands(
    known: Mapping[str, Stand], channels: Collection[ChannelFacts], bucket_ms: int, now: float
) -> dict[str, Stand]:  # fmt: skip
    """How each channel's boundary stands. `known`: the last answer."""
    said_ms = max((each.said_ms for each in channels if each.said_ms is not None), default=None)

    def note(name: str, ms: int) -> Stand:
        if said_ms is None or _floor(said_ms, bucket_ms) <= _floor(ms, bucket_ms):
            return Stand(ms, None)
        before = known.get(name)
        stays = before is not None and before.boundary_ms == ms and before.behind_since is not None
        return before if before is not None and stays else Stand(ms, now)

    return {each.name: note(each.name, find_boundary(each)) for each in channels}


def find_silent(stands: Mapping[str, Stand], until: float, absent: Collection[str] = ()) -> dict[str, float]:
    """The channels that hold back rows which the reader may have in its state, with since when they do.

    Those rows were read, so `find_holders` does not see them. A channel has stood still, and behind another one, since
    `until` or longer. What it did before the other one went on says nothing: they may have had no rows.
    """
    return {
        name: each.behind_since
        for name, each in stands.items()
        if name not in absent and each.behind_since is not None and each.behind_since <= until
    }


def find_stable_end(channels: Sequence[ChannelFacts], bucket_ms: int, absent: Collection[str] = ()) -> int | None:
    """The end of the buckets that are stable now, ms since the epoch; None without a channel.

    The boundaries of the channels `absent` do not count. If nobody is waited for, that of the furthest one does: else
    no bucket would ever be stable again.
    """
    boundaries = [find_boundary(each) for each in channels if each.name not in absent]
    end_ms = min(boundaries) if boundaries else max(map(find_boundary, channels), default=None)
    return None if end_ms is None else _floor(end_ms, bucket_ms)


def plan_end(
    channels: Sequence[ChannelFacts], bucket_ms: int, max_rows: int | None, *, may_be_empty: bool,
    absent: Collection[str] = (),
) -> int | None:  # fmt: skip
    """The end of the next batch, ms since the epoch; None if no bucket became stable.

    `absent`: the channels whose boundary does not count. `max_rows`: the batch ends earlier if it would have more rows,
    as far as the ranges of times tell, but has one bucket with rows at least. `may_be_empty`: whether stable buckets
    without a row are worth a batch.
    """
    end = find_stable_end(channels, bucket_ms, absent)
    if end is None or all(each.position.until_ms >= end for each in channels):
        return None
    begins = [ms for each in channels if (ms := _first_row(each, end)) is not None]
    if not begins:
        has_others = any(_has_untimed_or_late(each) for each in channels)
        return end if may_be_empty or has_others else None
    if max_rows is None:
        return end
    # The estimate grows with the end, so the last end within the bound is found by halving.
    low, high = _floor(min(begins), bucket_ms) // bucket_ms + 1, end // bucket_ms
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_estimate_rows(each, middle * bucket_ms) for each in channels) <= max_rows:
            low = middle
        else:
            high = middle - 1
    return low * bucket_ms


def advance(channel: ChannelFacts, end_ms: int) -> Position:
    """The reader's position after a batch that ends at `end_ms`."""
    until_ms = max(end_ms, channel.position.until_ms)
    left = (
        each.batch
        for each in channel.backlog.batches
        if each.times.last_ms is not None and each.times.last_ms >= until_ms
    )
    newest = max(channel.newest, channel.position.batch)
    return Position(until_ms, newest, next(left, newest + 1))


def _first_row(channel: ChannelFacts, end_ms: int) -> int | None:
    """The earliest time before `end_ms` at which a row may be due; None if there is none."""
    until = channel.position.until_ms
    starts = [
        max(each.times.first_ms, until)
        for each in channel.backlog.batches
        if each.times.first_ms is not None and each.times.last_ms is not None and each.times.last_ms >= until
    ]
    return min((ms for ms in starts if ms < end_ms), default=None)


def _has_row_between(channel: ChannelFacts, begin_ms: int, end_ms: int) -> bool:
    """Whether a row may be due whose time is from `begin_ms` on and before `end_ms`."""
    return any(
        each.times.first_ms is not None
        and each.times.first_ms < end_ms
        and each.times.last_ms is not None
        and each.times.last_ms >= max(channel.position.until_ms, begin_ms)
        for each in channel.backlog.batches
    )


def _has_untimed_or_late(channel: ChannelFacts) -> bool:
    """Whether a batch that was not looked at yet has rows without a time, or late ones."""
    until = channel.position.until_ms
    return any(
        each.times.nulls or (each.times.first_ms is not None and each.times.first_ms < until)
        for each in channel.backlog.batches
        if each.batch > channel.position.batch
    )


def _estimate_rows(channel: ChannelFacts, end_ms: int) -> float:
    """The rows from the position to `end_ms`, if the times of each batch are spread evenly."""
    until, found = channel.position.until_ms, 0.0
    for each in channel.backlog.batches:
        first, last = each.times.first_ms, each.times.last_ms
        if first is None or last is None:
            continue
        begin = max(first, until)
        length = last + 1 - first
        found += each.rows * max(min(last + 1, end_ms) - begin, 0) / length
    return found


def _floor(ms: int, bucket_ms: int) -> int:
    return ms // bucket_ms * bucket_ms
