"""Opens, stops and closes the epochs of a flow, as `pipeline.epoch_keeper` does, by the same decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_cec.availability.failure import EpochLook, FlowLook, Inputs, Orders, Progress, decide, has_passed
from spark_cec.pipeline.options import Pace, Step
from spark_cec_lab.simulation.availability.channel import Channel
from spark_cec_lab.simulation.availability.clock import Clock, Signal
from spark_cec_lab.simulation.availability.query import Query
from spark_cec_lab.simulation.availability.setup import Setup


@dataclass(slots=True)
class Epoch:
    """A fork of a flow: its note, and its query. `begins_after`: the flow's last batch in its past.

    `closed_after`: None while it is open; else the flow's output up to that batch replaces the epoch's. `has_passed`:
    the flow's output before it replaces that of all epochs before it.
    """

    number: int
    begins_after: int
    absent: frozenset[str]
    query: Query
    begun: Progress
    inputs: Inputs
    pace: Pace
    has_passed: bool
    is_suspended: bool = False
    closed_after: int | None = None

    @property
    def has_rows(self) -> bool:
        """Whether it has given out rows of its own."""
        return self.query.out.newest > self.begins_after


@dataclass(frozen=True, slots=True)
class _Spare:
    """A fork that works ahead, without a note. `begins_after`: the flow's last batch in its past."""

    absent: frozenset[str]
    begins_after: int
    query: Query


class Keeper:
    """Looks at a flow now and then. `read`: the keepers of the flows that it reads, by name."""

    def __init__(
        self, clock: Clock, setup: Setup, flow: Query, channels: Mapping[str, Channel], read: Mapping[str, Keeper]
    ) -> None:
        self.flow = flow
        self.epochs = list[Epoch]()
        self.changes = Signal()
        self._clock = clock
        self._setup = setup
        self._channels = channels
        self._read = read
        self._progress = self._answered = Progress()
        self._moved_ms = 0.0
        self._forked_at: Progress | None = None
        self._spare: _Spare | None = None

    @property
    def open(self) -> Epoch | None:
        """The open epoch."""
        return self.epochs[-1] if self.epochs and self.epochs[-1].closed_after is None else None

    def start(self, in_ms: float) -> None:
        """Looks for the first time then."""
        self._clock.after(in_ms, self._look)

    def _look(self) -> None:
        flow, open_ = self._look_at_flow(), self.open
        orders = decide(flow, None if open_ is None else self._look_at_epoch(open_), self._setup.within.wait_ms / 1000)
        starts = self._keep_spare(orders)
        starts = self._carry_out(orders, open_, flow.inputs) or starts
        # The start of a query is the keeper's own work, so it does not look meanwhile.
        self._clock.after(self._setup.costs.look_ms + (self._setup.costs.fork_ms if starts else 0.0), self._look)

    def _look_at_flow(self) -> FlowLook:
        if self.flow.progress.until_ms is not None and self.flow.progress != self._progress:
            self._progress, self._moved_ms = self.flow.progress, self._clock.now
        open_ = {name: each.open for name, each in self._read.items()}
        inputs = frozenset((name, each.number) for name, each in open_.items() if each is not None)
        still_s = (self._clock.now - self._moved_ms) / 1000
        return FlowLook(self._progress, self.flow.held_s, still_s, inputs, is_written=True)

    def _look_at_epoch(self, open_: Epoch) -> EpochLook:
        query, pause_s = open_.query, self._pause_ms(open_.inputs, open_.pace) / 1000
        return EpochLook(
            open_.absent, open_.begun, query.progress, query.held_s, query.back, False, open_.is_suspended,
            open_.inputs, pause_s, still_s=(self._clock.now - query.moved_ms) / 1000,
        )  # fmt: skip

    def _keep_spare(self, orders: Orders) -> bool:
        """Starts a fork that works ahead, or drops it; answers whether it starts one."""
        spare, absent = self._spare, orders.opens if orders.forks is None else orders.forks
        if spare is not None and not (absent is not None and spare.absent <= absent and self._stands_as_forked()):
            spare.query.stop()
            self._spare = None
        if orders.forks is None or self._stands_as_forked() or orders.forks & self._read.keys():
            return False
        self._forked_at, begins_after = self._progress, self.flow.out.newest
        query = self._fork(orders.forks, frozenset())
        self._spare = _Spare(orders.forks, begins_after, query)
        query.start(self._setup.costs.fork_ms)
        return True

    def _stands_as_forked(self) -> bool:
        return self._forked_at == self._progress

    def _carry_out(self, orders: Orders, open_: Epoch | None, inputs: Inputs) -> bool:
        """Answers whether it starts a query."""
        starts = False
        if open_ is not None and orders.closes:
            self._close(open_)
        elif open_ is not None and not open_.is_suspended:
            step = self._setup.within.find_step(orders, open_.pace)
            if step is not Step.KEEP:
                open_.query.stop()
                open_.is_suspended = step is Step.SUSPEND
            if step is Step.START_AGAIN:
                open_.pace, starts = self._setup.within.while_correcting, True
                open_.query.start(self._setup.costs.fork_ms, self._pause_ms(open_.inputs, open_.pace))
        if open_ is not None and orders.leaves_out is not None:
            open_.absent = open_.query.absent = orders.leaves_out
        if orders.opens is None:
            return starts
        spare, self._spare = self._spare, None
        if spare is not None and inputs:
            spare.query.stop()
            spare = None
        self._open(orders.opens, inputs, open_, spare)
        return spare is None

    def _fork(self, absent: frozenset[str], inputs: Inputs) -> Query:
        channels = dict(self._channels)
        for name, number in inputs:
            channels[name] = self._read[name].epochs[number - 1].query.out
        pause_ms, within = self._pause_ms(inputs, self._setup.within.while_away), self._setup.within
        yields_ms = 0 if inputs or pause_ms else within.yields_ms
        return Query(
            self._clock, self._setup, channels, self.flow.out.fork(), self.flow.state, absent, pause_ms, self.flow.held,
            yields_ms,
        )  # fmt: skip

    def _open(self, absent: frozenset[str], inputs: Inputs, replaced: Epoch | None, spare: _Spare | None) -> None:
        query = self._fork(absent, inputs) if spare is None else spare.query
        query.absent = absent
        begins_after = self.flow.out.newest if spare is None else spare.begins_after
        number, begun, pace = len(self.epochs) + 1, Progress(self.flow.state.until_ms), self._setup.within.while_away
        if replaced is not None:
            self._answered = self._answered.join(replaced.query.progress)
        is_running = replaced is not None and not replaced.is_suspended
        passed = has_passed(self.flow.progress, self._answered, is_running=is_running)
        self.epochs.append(Epoch(number, begins_after, absent, query, begun, inputs, pace, passed))
        if spare is None:
            query.start(self._setup.costs.fork_ms)
        self.changes.send()

    def _close(self, open_: Epoch) -> None:
        open_.closed_after = self.flow.out.newest
        open_.query.stop()
        self.changes.send()

    def _pause_ms(self, inputs: Inputs, pace: Pace) -> int:
        return 0 if inputs else self._setup.within.pause_ms(pace)
