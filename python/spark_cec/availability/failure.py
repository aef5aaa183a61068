"""Decides when a flow answers tentatively, and when it stops (Balazinska et al., section 4). The functions are pure.

A flow that has waited for an input for alpha * X is in UP_FAILURE. Then an epoch (`availability.epochs`) processes the
rows of the other inputs. When the input is back, the flow itself gives out the stable rows: STABILIZATION. The epoch
goes on meanwhile. It is closed when the flow has passed it. A flow that reads one with an open epoch has one, too.
An epoch for which another input goes away does not wait for that one either, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

_FORKS_AT = 0.6
_FORKS_UNWRITTEN_AT = 0.75
_FORKS_AHEAD_S = 3.0
"""A flow is forked after this part of alpha * X, and so long before its end at most. A start takes about a second, and
the first batch has all rows that wait. If the flow has not written its stores, the fork has batches to replay first. A
flow without stores never says that it has.
"""

_STANDS_STILL = 2.0
"""An epoch that has not moved for so many times alpha * X has no rows to read."""

_NEAR = 2.0
"""A flow that stands still is behind by alpha * X at least. Up to so many times that, another epoch comes in time."""


class FailureState(str, Enum):
    """The states of the paper's figure 5."""

    STABLE = "stable"
    UP_FAILURE = "up-failure"
    STABILIZATION = "stabilization"


Inputs = frozenset[tuple[str, int]]
"""Epochs of other flows, by flow and number."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query is, in event time, ms since 1970; None if it is unknown.

    `until_ms`: the end of the newest buckets that it has read. `answered_ms`: the time up to which it has given out
    rows. Behind a join, or a function over a state, rows come one batch later than their last bucket.
    """

    until_ms: int | None = None
    answered_ms: int | None = None

    def has_reached(self, other: Progress) -> bool:
        """Whether a query with this progress has given out all that one with the other progress has."""
        return _is_at_least(self.until_ms, other.until_ms) and _is_at_least(self.answered_ms, other.answered_ms)

    def join(self, other: Progress) -> Progress:
        """The least progress that has reached both."""
        return Progress(_find_later(self.until_ms, other.until_ms), _find_later(self.answered_ms, other.answered_ms))


@dataclass(frozen=True, slots=True)
class FlowLook:
    """A look at a flow. `still_s`: for how many seconds its `progress` has not changed. `is_written`: its stores are
    written up to that.

    `held_s`: the channels for which rows wait, and for how many seconds. `inputs`: the open epochs of the
    flows that it reads.
    """

    progress: Progress
    held_s: Mapping[str, float] = field(default_factory=dict)
    still_s: float = 0.0
    inputs: Inputs = frozenset()
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class EpochLook:
    """A look at the open epoch. `absent`: the channels for which it does not wait. `has_ended`: its query has failed.

    `begun`: the flow's progress when the epoch was opened. `progress` and `held_s`: as of the flow, but of the epoch's
    own query. `back`: those of `absent` that were back when `held_s` was noted. `is_suspended`: its query was stopped,
    and its rows count. `inputs`: the epochs of other flows that it reads. `pause_s`: how long each row waits in it.
    `before`: the progress of the epochs in whose place it came, whose rows readers may still show. `runs_on`: Spark has
    failed to stop its query. `still_s`: for how many seconds its `progress` has not changed.
    """

    absent: frozenset[str]
    begun: Progress
    progress: Progress
    held_s: Mapping[str, float] = field(default_factory=dict)
    back: frozenset[str] = frozenset()
    has_ended: bool = False
    is_suspended: bool = False
    inputs: Inputs = frozenset()
    pause_s: float = 0.0
    before: Progress = field(default_factory=Progress)
    runs_on: bool = False
    still_s: float = 0.0

    @property
    def waits_s(self) -> Mapping[str, float]:
        """`held_s` without the flows whose epochs it reads: those have rows later, and open another epoch themselves.
        """
        read = {name for name, _ in self.inputs}
        return {name: each for name, each in self.held_s.items() if name not in read}


@dataclass(frozen=True, slots=True)
class Orders:
    """`prepares`: write the flow's stores, so that a fork has nothing to replay. `forks`: have a fork that works ahead,
    and does not wait for these channels; None: have none. Its rows do not count before an epoch opens. `suspends`: stop
    the epoch's query. `closes`: close the epoch, so that its rows do not count any more.

    `opens`: open an epoch that does not wait for these channels; None: open no epoch. The set is empty if only an input
    of the flow answers tentatively. `leaves_out`: the open epoch goes on, and waits for all channels but these; None:
    for the same as before.
    """

    state: FailureState
    prepares: bool = False
    forks: frozenset[str] | None = None
    suspends: bool = False
    closes: bool = False
    opens: frozenset[str] | None = None
    leaves_out: frozenset[str] | None = None


def decide(flow: FlowLook, epoch: EpochLook | None, wait_s: float) -> Orders:
    """The orders after a look. `wait_s`: alpha * X, how long rows may wait. `epoch`: None if none is open."""
    is_due = _is_held(flow.held_s, wait_s) or bool(flow.inputs)
    state = FailureState.UP_FAILURE if is_due else FailureState.STABLE
    if epoch is None and not is_due:
        forks_at = _FORKS_AT if flow.is_written else _FORKS_UNWRITTEN_AT
        forks_at_s = max(forks_at * wait_s, wait_s - _FORKS_AHEAD_S)
        # Of a flow whose input is slow, and comes, each batch makes a fork old.
        stands_still = flow.still_s >= forks_at_s / 2
        forks = _list_held(flow.held_s, wait_s / 2) if stands_still and _is_held(flow.held_s, forks_at_s) else None
        return Orders(state, prepares=_is_held(flow.held_s, wait_s / 2), forks=forks)
    if epoch is None:
        return Orders(state, opens=_find_absent(flow, frozenset(), wait_s))
    if epoch.has_ended:
        return Orders(state, closes=True)
    if is_due and _needs_another(flow, epoch, wait_s):
        return Orders(state, closes=True, opens=_find_absent(flow, epoch.absent, wait_s))
    left_out = _find_left_out(epoch, wait_s)
    changed = None if epoch.is_suspended or left_out == epoch.absent else left_out
    if is_due or not _has_gone_on(flow, epoch):
        # An epoch that was read and is closed has no more rows, and its files go soon.
        suspends = not epoch.is_suspended and not epoch.inputs <= flow.inputs
        return Orders(FailureState.UP_FAILURE, suspends=suspends, leaves_out=None if suspends else changed)
    # While its query runs, the epoch may have given out more than its progress says. So the query is stopped first.
    is_running = not (epoch.is_suspended or epoch.runs_on)
    if has_passed(flow.progress, epoch.progress.join(epoch.before), is_running=is_running):
        return Orders(FailureState.STABLE, closes=True)
    # The epoch may stay ahead for ever, if an input is always a little behind. So it stops when the flow is in time.
    # It may let rows wait, and has a long batch then. If it stands still for much longer, there are none.
    waited_s = epoch.still_s if epoch.still_s < _STANDS_STILL * wait_s else 0.0
    if bool(epoch.inputs) or _find_lag_s(flow, epoch) + waited_s <= wait_s:
        return Orders(FailureState.STABILIZATION, suspends=not epoch.is_suspended)
    return Orders(FailureState.STABILIZATION, leaves_out=changed)


def has_passed(flow: Progress, answered: Progress, *, is_running: bool) -> bool:
    """Whether a flow has given out all that its epochs have. `answered`: their progress.

    `is_running`: the last one's query runs, so it may have given out more than its progress says.
    """
    return not is_running and flow.has_reached(answered)


def _find_absent(flow: FlowLook, before: frozenset[str], wait_s: float) -> frozenset[str]:
    """The channels for which a new epoch does not wait. `before`: those for which the one before did not.

    Those that hold rows back still are not waited for again: that would take longer than the bound. A channel is waited
    for if the epoch of its flow is read instead. Inputs rarely go away at one moment. So one that has been waited for
    half of the time counts as away, too.
    """
    if not _is_held(flow.held_s, wait_s):
        return frozenset()
    away = _list_held(flow.held_s, wait_s / 2) | (before & flow.held_s.keys())
    return away - {name for name, _ in flow.inputs}


def _find_left_out(epoch: EpochLook, wait_s: float) -> frozenset[str]:
    """The channels for which the open epoch does not wait from now on.

    One that is back is waited for again. The epoch's own query decides: while the flow runs a long batch, its facts are
    old.
    """
    away = _list_held(epoch.waits_s, wait_s / 2) if _is_held(epoch.waits_s, wait_s) else frozenset()
    return (epoch.absent - epoch.back) | away


def _needs_another(flow: FlowLook, epoch: EpochLook, wait_s: float) -> bool:
    """Whether another epoch must take the place of the open one.

    It reads other epochs than there are. Or it was stopped, and rows wait again. Or the flow has gone on and
    stands still again, so the rows that came between belong into the answer. But another epoch begins after the flow's
    last batch. If that is far behind, it would have all rows since to process, and would come later than the bound. If
    the open one has had no batch yet, another one would come even later.
    """
    is_near = epoch.progress.until_ms is not None and _find_lag_s(flow, epoch) <= _NEAR * wait_s
    stands_again = flow.still_s >= wait_s and _has_gone_on(flow, epoch) and is_near
    return flow.inputs != epoch.inputs or (_is_held(flow.held_s, wait_s) and (epoch.is_suspended or stands_again))


def _find_lag_s(flow: FlowLook, epoch: EpochLook) -> float:
    """How far the flow is behind, in seconds of event time; below 0 if the epoch is behind the flow."""
    return ((epoch.progress.until_ms or 0) - (flow.progress.until_ms or 0)) / 1000 + epoch.pause_s


def _has_gone_on(flow: FlowLook, epoch: EpochLook) -> bool:
    """Whether the flow has had a batch since the epoch was opened."""
    now, then = flow.progress.until_ms, epoch.begun.until_ms
    return now is not None and (then is None or now > then)


def _is_held(held_s: Mapping[str, float], wait_s: float) -> bool:
    """Whether rows have waited for so long."""
    return any(each >= wait_s for each in held_s.values())


def _list_held(held_s: Mapping[str, float], wait_s: float) -> frozenset[str]:
    return frozenset(name for name, each in held_s.items() if each >= wait_s)


def _find_later(mine: int | None, other: int | None) -> int | None:
    return max((each for each in (mine, other) if each is not None), default=None)


def _is_at_least(mine: int | None, other: int | None) -> bool:
    return other is None or (mine is not None and mine >= other)
