"""Which inputs an open epoch leaves out, by what one plan of its query knows of all its channels."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cec.availability.buckets import (
    Backlog,
    BatchTimes,
    ChannelFacts,
    Position,
    find_back,
    find_boundary,
    find_holders,
    find_stable_end,
)
from spark_cec.availability.failure import EpochLook, FlowLook, Progress, decide
from spark_cec.log.times import TimeRange

NAMES = ("app", "tel", "web", "web2")
BUCKET_MS = 10
WAIT_S = 2.7


def facts_of(name: str, until_ms: int, times: Sequence[int]) -> ChannelFacts:
    """A channel with a row of each time, in a batch of its own."""
    batches = Backlog.of(BatchTimes(number, 1, TimeRange(ms, ms, 0)) for number, ms in enumerate(sorted(times)))
    return ChannelFacts(name, Position(until_ms, -1, 0), batches, len(times) - 1, 0)


CHANNELS = st.lists(st.lists(st.integers(1, 200), max_size=5), min_size=len(NAMES), max_size=len(NAMES))


def make(times: Sequence[Sequence[int]], until: int) -> list[ChannelFacts]:
    return [facts_of(name, until * BUCKET_MS, each) for name, each in zip(NAMES, times, strict=True)]


@settings(max_examples=300, deadline=None)
@given(CHANNELS, st.sets(st.sampled_from(NAMES)), st.integers(0, 12))
def test_a_boundary_is_left_that_counts(times: list[list[int]], absent: set[str], until: int) -> None:
    """Also if nobody is waited for, as by an order that was old. Else no bucket would ever be stable again."""
    channels = make(times, until)
    counted = [find_boundary(each) for each in channels if each.name not in absent]
    end_ms = min(counted) if counted else max(map(find_boundary, channels))
    assert find_stable_end(channels, BUCKET_MS, absent) == end_ms // BUCKET_MS * BUCKET_MS


@settings(max_examples=300, deadline=None)
@given(CHANNELS, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 200)), st.integers(0, 12), st.integers(1, 80))
def test_a_channel_that_is_back_is_near_and_has_gone_on(
    times: list[list[int]], left_ms: dict[str, int], until: int, most_lag_ms: int
) -> None:
    channels = make(times, until)
    boundaries = {each.name: find_boundary(each) for each in channels}
    back = find_back(channels, left_ms, most_lag_ms)
    assert back <= left_ms.keys()
    assert all(boundaries[name] > left_ms[name] for name in back)
    assert all(max(boundaries.values()) - boundaries[name] < most_lag_ms for name in back)
    furthest = max(NAMES, key=lambda name: max(times[NAMES.index(name)], default=0))
    rows = times[NAMES.index(furthest)]
    if rows and max(rows) == max(boundaries.values()) and max(rows) > left_ms.get(furthest, 999):
        assert furthest in back


def test_rows_of_an_input_that_is_back_are_answered_although_all_others_are_away() -> None:
    """Its epoch waits for web2 alone, which went away meanwhile. Nobody else has rows, and app is back."""
    channels, absent = make(([70, 90], [10], [20], [45]), 4), frozenset({"app", "tel", "web"})
    held_s = dict.fromkeys(find_holders(channels, BUCKET_MS, absent), WAIT_S)
    assert held_s == {"web2": WAIT_S}
    back = find_back(channels, dict.fromkeys(absent, 40), 30)
    epoch = EpochLook(absent, Progress(0), Progress(50, 50), held_s, back)
    flow = FlowLook(Progress(0, 0), {"app": 0.1})  # it runs a long batch, so it says nothing new
    assert decide(flow, epoch, WAIT_S).leaves_out == frozenset({"tel", "web", "web2"})
