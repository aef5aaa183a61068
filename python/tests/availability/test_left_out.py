"""Which inputs an open epoch leaves out, by what one plan of its query knows of all its channels."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cec.availability.buckets import (
    Backlog,
    BatchTimes,
    ChannelFacts,
    Position,
    find_back,
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


def next_absent(channels: Sequence[ChannelFacts], absent: Collection[str], waited_s: dict[str, float]) -> frozenset[str]:
    """The channels that are left out after a look. Its flow runs a long batch, so it says nothing new."""
    held_s = {name: waited_s[name] for name in find_holders(channels, BUCKET_MS, absent)}
    back = find_back(channels, BUCKET_MS, absent)
    epoch = EpochLook(frozenset(absent), Progress(0), Progress(50, 50), held_s, back)
    left_out = decide(FlowLook(Progress(0, 0), {"app": 0.1}), epoch, WAIT_S).leaves_out
    return frozenset(absent) if left_out is None else left_out


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 200), max_size=5), min_size=len(NAMES), max_size=len(NAMES)),
    st.sets(st.sampled_from(NAMES), max_size=len(NAMES) - 1),
    st.lists(st.sampled_from([0.0, 1.5, 3.0]), min_size=len(NAMES), max_size=len(NAMES)),
    st.integers(0, 12),
)
def test_a_boundary_is_left_that_counts(
    times: list[list[int]], absent: set[str], waited: list[float], until: int
) -> None:
    """However often the keeper looks at the same plan. Without one no bucket is ever stable again."""
    channels = [facts_of(name, until * BUCKET_MS, each) for name, each in zip(NAMES, times, strict=True)]
    left_out = frozenset(absent)
    for _ in range(3):
        left_out = next_absent(channels, left_out, dict(zip(NAMES, waited, strict=True)))
        assert find_stable_end(channels, BUCKET_MS, left_out) is not None


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 200), max_size=5), min_size=len(NAMES), max_size=len(NAMES)),
    st.sets(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES) - 1),
    st.integers(0, 12),
)
def test_a_channel_that_is_back_costs_no_bucket(times: list[list[int]], absent: set[str], until: int) -> None:
    """To wait for it again takes no time: the same buckets are stable with and without it."""
    channels = [facts_of(name, until * BUCKET_MS, each) for name, each in zip(NAMES, times, strict=True)]
    back = find_back(channels, BUCKET_MS, absent)
    assert back <= absent
    assert find_stable_end(channels, BUCKET_MS, absent - back) == find_stable_end(channels, BUCKET_MS, absent)


def test_rows_of_an_input_that_is_back_are_answered_although_all_others_are_away() -> None:
    """Its epoch waits for web2 alone, which went away meanwhile. Nobody else has rows, and app is back."""
    channels = [facts_of(name, 40, times) for name, times in zip(NAMES, ([70, 90], [10], [20], [45]), strict=True)]
    waited_s = dict.fromkeys(NAMES, WAIT_S)
    assert next_absent(channels, {"app", "tel", "web"}, waited_s) == {"tel", "web", "web2"}
