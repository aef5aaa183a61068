"""The query of a flow, or of an epoch of it: it reads channels by buckets, and counts rows in windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_cec.availability.buckets import (
    ChannelFacts,
    Held,
    Position,
    advance,
    as_of,
    find_back,
    find_boundary,
    find_holders,
    note_holders,
    note_left,
    plan_end,
)
from spark_cec.availability.failure import Progress
from spark_cec_lab.simulation.availability.channel import Channel, Rows
from spark_cec_lab.simulation.availability.clock import Clock, Signal
from spark_cec_lab.simulation.availability.setup import Setup


@dataclass(frozen=True, slots=True)
class State:
    """What a fork takes over: positions in the channels, open windows with their rows, and how far the query is.

    `until_ms`: the end of its newest batch, up to where it has given windows out.
    """

    positions: Mapping[str, Position]
    windows: Mapping[int, int] = field(default_factory=dict)
    until_ms: int = 0


class Query:
    """Plans batches as the agent does, and runs them one after the other.

    A window comes in the batch of its last bucket. `absent`: the channels for which it does not wait.
    `pause_ms`: how long each row waits in it. `held`: the waits of its flow. `yields_ms`: for how long it plans
    nothing when all channels of `absent` are back.
    """

    def __init__(
        self, clock: Clock, setup: Setup, channels: Mapping[str, Channel], out: Channel, state: State,
        absent: frozenset[str] = frozenset(), pause_ms: int = 0, held: Mapping[str, Held] | None = None,
        yields_ms: float = 0.0,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._setup = setup
        self._channels = channels
        self.out = out
        self.state = state
        self.absent = absent
        self.pause_ms = pause_ms
        self._run = 0
        self.held = dict(held or {})
        self._left_ms = dict[str, int]()
        self.back = frozenset[str]()
        self._asked_ms = 0.0
        self._is_idle_in = -1
        self.progress = Progress()
        self.moved_ms = clock.now
        self._yields_ms = yields_ms
        self._yields_until: float | None = None

    def start(self, in_ms: float, pause_ms: int | None = None) -> None:
        """Runs from then on, after the last batch. A start after a stop may have another pause."""
        self._run += 1
        self.pause_ms = self.pause_ms if pause_ms is None else pause_ms
        run = self._run
        self._clock.after(in_ms, lambda: self._trigger(run))

    def stop(self) -> None:
        """Runs no more. A batch without output is forgotten."""
        self._run += 1
        self.held, self._left_ms, self.back = {}, {}, frozenset()

    @property
    def held_s(self) -> dict[str, float]:
        """As of its last plan, the channels that hold rows of others back, and for how many seconds.

        A query without a batch plans all the time.
        """
        asked_ms = self._clock.now if self._is_idle_in == self._run else self._asked_ms
        return {name: asked_ms / 1000 - each.since for name, each in self.held.items()}

    def _trigger(self, run: int) -> None:
        if run != self._run:
            return
        self._is_idle_in = -1
        before, costs, window_ms = self.state, self._setup.costs, self._setup.window_ms
        channels = {name: each.facts(before.positions[name]) for name, each in self._channels.items()}
        end_ms = self._plan(channels)
        if end_ms is None:
            self._wait(run)
            return
        moved = {name: advance(each, end_ms) for name, each in channels.items()}
        rows = list[Rows]()
        for name, each in self._channels.items():
            rows += each.between(before.positions[name], moved[name])
        found = _count(before, rows, window_ms)
        takes_ms = costs.flow_ms + sum(each.rows for each in rows) * costs.row_us / 1000

        def give_out() -> None:
            if run == self._run:
                closed = sorted(start for start in found if start + window_ms <= end_ms)
                self.out.publish([Rows(each, self._setup.keys, found[each]) for each in closed], self._clock.now)
                left = {start: rows for start, rows in found.items() if start not in closed}
                self.state = State(moved, left, end_ms)

        def end() -> None:
            if run == self._run:
                self.progress, self.moved_ms = Progress(end_ms, end_ms), self._clock.now
                self._trigger(run)

        self._clock.after(takes_ms * costs.share, give_out)
        self._clock.after(takes_ms, end)

    def _wait(self, run: int) -> None:
        """Triggers again when a batch has come, or has waited for long enough."""
        now = self._clock.now
        hidden = [each.came_ms[each.count_until(now - self.pause_ms) :][:1] for each in self._channels.values()]
        times = [came for each in hidden for came in each]
        ripe = Signal()
        if times and self.pause_ms:
            self._clock.after(max(min(times) + self.pause_ms - now, 0.0), ripe.send)
        if self._yields_until is not None and self._yields_until > now:
            self._clock.after(self._yields_until - now, ripe.send)
        grows = (each.grows for each in self._channels.values())
        self._is_idle_in = run
        self._clock.wait(self._setup.costs.poll_ms / 2, lambda: self._trigger(run), ripe, *grows)

    def _plan(self, channels: dict[str, ChannelFacts]) -> int | None:
        """The end of the next batch, None if no bucket became stable. Leaves the rows that must wait out of `channels`.
        """
        bucket_ms = self._setup.bucket_ms
        now = self._asked_ms = self._clock.now
        known = list(channels.values())
        ahead_ms = max(map(find_boundary, known)) // bucket_ms * bucket_ms
        holders = find_holders(known, bucket_ms, self.absent)
        self.held = note_holders(self.held, holders, ahead_ms, now / 1000)
        self._left_ms = note_left(self._left_ms, known, self.absent)
        most_lag_ms = self._setup.within.wait_ms // 2
        back = find_back(known, self._left_ms, most_lag_ms)
        if self.pause_ms:
            channels.update({name: as_of(each, now - self.pause_ms) for name, each in channels.items()})
        self.back = back & find_back(list(channels.values()), self._left_ms, most_lag_ms)
        if self._yields():
            return None
        return plan_end(list(channels.values()), bucket_ms, None, may_be_empty=False, absent=self.absent)

    def _yields(self) -> bool:
        """Whether it leaves the processors to its flow for a while, because all channels are back."""
        if self.absent:
            until = self._clock.now + self._yields_ms if self._yields_until is None else self._yields_until
            self._yields_until = until if self.back >= self.absent else None
        return self._yields_until is not None and self._clock.now < self._yields_until


def _count(state: State, rows: list[Rows], window_ms: int) -> dict[int, int]:
    """The open windows, by their begin, with these rows."""
    found = dict(state.windows)
    for each in rows:
        start = each.time_ms // window_ms * window_ms
        found[start] = found.get(start, 0) + each.of
    return found


def begin(channels: Mapping[str, Channel]) -> State:
    """The state of a query before its first batch."""
    return State(dict.fromkeys(channels, Position(0, -1, 0)))
