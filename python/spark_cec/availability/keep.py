"""Bounds the bytes that wait for a flow by buckets: the flow holds those that write them, or goes on without an input.

A row of a channel is unread if its bucket is stable in that channel, and the flow has not given it out. It *waits* if
another channel holds it back. It is *due* if the flow alone must read it. Rows whose bucket their own channel may still
add to do not count: only that channel can let them go in.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_cec.availability.buckets import BatchTimes, ChannelFacts, find_boundary, find_holders

LOW = 0.8
"""The share of the bound below which the flows upstream run again, or a channel that was given up is back."""

SMALL = 0.125
"""The share of the bound that may wait in all the inputs that run, because their rows wait for a short time alone."""

LEAST_S = 5.0
"""A flow is held for so many seconds at least, because each start of a query costs some."""


class AtKeep(str, Enum):
    """What happens when more waits than the bound."""

    BLOCK = "block"
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class Unread:
    """The stored bytes of a channel that a flow has not given out. A batch counts as a whole."""

    channel: str
    due_bytes: int = 0
    waiting_bytes: int = 0


def measure_unread(
    channels: Sequence[ChannelFacts], bucket_ms: int, absent: Collection[str] = ()
) -> tuple[Unread, ...]:
    """What is unread of each channel. `absent`: the channels for which nobody waits."""
    ends = {each.name: find_boundary(each) // bucket_ms * bucket_ms for each in channels}
    lowest_ms = min((end for name, end in ends.items() if name not in absent), default=None)
    return tuple(_measure(each, ends[each.name], lowest_ms) for each in channels)


def measure_waits(channels: Sequence[ChannelFacts], bucket_ms: int) -> dict[str, int]:
    """By channel that holds rows of others back, the stored bytes of the batches with such rows."""
    ends = {each.name: find_boundary(each) // bucket_ms * bucket_ms for each in channels}
    return {
        name: sum(
            batch.size
            for each in channels
            for batch in each.backlog.batches
            if _has_row_between(batch, max(end_ms, each.position.until_ms), ends[each.name])
        )
        for name, end_ms in find_holders(channels, bucket_ms).items()
    }


def _measure(channel: ChannelFacts, end_ms: int, lowest_ms: int | None) -> Unread:
    due = waiting = 0
    for batch in channel.backlog.batches:
        if lowest_ms is not None and _has_row_between(batch, max(lowest_ms, channel.position.until_ms), end_ms):
            waiting += batch.size
        elif _has_row_between(batch, channel.position.until_ms, end_ms):
            due += batch.size
    return Unread(channel.name, due, waiting)


def _has_row_between(batch: BatchTimes, begin_ms: int, end_ms: int) -> bool:
    """Whether the batch may have a row from `begin_ms` on and before `end_ms`."""
    first, last = batch.times.first_ms, batch.times.last_ms
    return first is not None and last is not None and last >= begin_ms and max(first, begin_ms) < end_ms


@dataclass(frozen=True, slots=True)
class Blocking:
    """Which inputs a flow holds back. Empty if less waits than the bound.

    `unread_bytes`: what waits for the flow. `spares`: whether some inputs run, because the flow waits for one of them.
    The flow needs them.
    """

    inputs: frozenset[str] = frozenset()
    unread_bytes: int = 0
    spares: bool = False


def decide_blocking(before: Blocking, seen: Sequence[Unread] | None, keep_bytes: int) -> Blocking:
    """What a flow holds after a look at its channels. `seen`: None if its query did not look, as between two runs.

    If most of the bytes wait for an input, the flow holds the inputs whose rows wait. Then the input that they wait for
    can come back. If most are due, it holds all, and reads what is there.
    """
    if seen is None:
        return before
    unread = sum(each.due_bytes + each.waiting_bytes for each in seen)
    waiting = sum(each.waiting_bytes for each in seen)
    if not (unread > keep_bytes or (before.inputs and unread >= LOW * keep_bytes)):
        return Blocking(unread_bytes=unread)
    # The two limits lie apart, so that inputs that pass one another are not held by turns. Both are below the bound at
    # which all run again: a flow that holds all its inputs comes below that by itself.
    share = 0.25 if before.spares else 0.5
    spares = waiting >= share * keep_bytes
    if spares:
        chosen = _choose_ahead(before, seen, keep_bytes)
    else:
        chosen = [each for each in seen if each.due_bytes or each.waiting_bytes]
    return Blocking(frozenset(each.channel for each in chosen), unread, spares)


def _choose_ahead(before: Blocking, seen: Sequence[Unread], keep_bytes: int) -> list[Unread]:
    """The inputs whose rows wait. Two slow ones are ahead of one another by turns, so little that waits does not count.
    """
    least = SMALL * keep_bytes / len(seen)
    held = before.inputs if before.spares else frozenset[str]()
    return [each for each in seen if each.waiting_bytes > (0 if each.channel in held else least)]


def choose_held(
    blockings: Mapping[str, Blocking], inputs: Mapping[str, Collection[str]], upstream: Mapping[str, Collection[str]]
) -> dict[str, frozenset[str]]:
    """By flow that holds others, the flows that it holds: those that write what waits, and all that feed them.

    `inputs`: the channels that each flow reads. `upstream`: each flow, and those that feed it. A flow that another one
    waits for is not held. Else each of two flows might hold what the other one needs.
    """
    needed = {
        one
        for name, each in blockings.items()
        if each.spares
        for spared in frozenset(inputs[name]) - each.inputs
        for one in upstream[spared]
    }
    return {
        name: frozenset(one for held in each.inputs for one in upstream[held]) - needed
        for name, each in blockings.items()
        if each.inputs
    }


Holds = Mapping[tuple[str, str], float]
"""By a flow that holds, and the flow that it holds: since when, in s by the driver's clock."""


def settle_holds(before: Holds, wanted: Mapping[str, Collection[str]], now_s: float) -> dict[tuple[str, str], float]:
    """Who holds whom from now on. `wanted`: as `choose_held` answers."""
    kept = {
        (by, held): since_s
        for (by, held), since_s in before.items()
        if held in wanted.get(by, ()) or now_s - since_s < LEAST_S
    }
    return {**{(by, one): now_s for by, held in wanted.items() for one in held}, **kept}
