"""Runs a setup to its end: inputs with files, their flows, a chain of flows that answer, and the sink."""

from __future__ import annotations

import random
import statistics

from spark_cec_lab.simulation.availability.board import Board
from spark_cec_lab.simulation.availability.channel import Channel, Rows
from spark_cec_lab.simulation.availability.clock import Clock, Signal
from spark_cec_lab.simulation.availability.keeper import Keeper
from spark_cec_lab.simulation.availability.query import Query, begin
from spark_cec_lab.simulation.availability.setup import Outcome, Setup

_PATIENCE_MS = 600_000.0
_USUAL_WINDOWS = 8


class _Input:
    """An input and its flow. A file has the rows of a moment; after a failure, those of the whole failure."""

    def __init__(self, clock: Clock, setup: Setup, out: Channel) -> None:
        self.out = out
        self._clock = clock
        self._setup = setup
        self._rows = max(setup.rows_per_s * setup.every_ms // 1000 // len(setup.inputs), 1)
        self._away = [(each.begin_ms, each.end_ms) for each in setup.failures if each.name == out.name]
        self._kept = list[Rows]()
        self._files = list[Rows]()
        self._comes = Signal()

    def start(self, in_ms: int, looks_in_ms: float) -> None:
        """The first file comes in `in_ms`."""
        self._clock.after(in_ms, self._write)
        self._clock.after(looks_in_ms, self._trigger)

    def _write(self) -> None:
        now = round(self._clock.now)
        self._kept.append(Rows(now, self._rows, self._rows))
        if not any(begin_ms <= now < end_ms for begin_ms, end_ms in self._away):
            self._files += self._kept
            self._kept = []
            self._comes.send()
        self._clock.after(self._setup.every_ms, self._write)

    def _trigger(self) -> None:
        costs, rows = self._setup.costs, self._files
        if not rows:
            self._clock.wait(costs.poll_ms / 2, self._trigger, self._comes)
            return
        self._files = []
        self._clock.after(costs.source_ms * costs.share, lambda: self.out.publish(rows, self._clock.now))
        self._clock.after(costs.source_ms, self._trigger)


def simulate(setup: Setup, seed: int) -> Outcome:
    """One run. The seed decides when files come, and when queries and keepers look first."""
    clock, chance, costs = Clock(), random.Random(seed), setup.costs
    inputs = {name: _Input(clock, setup, Channel(name)) for name in setup.inputs}
    first_ms = chance.randrange(setup.every_ms)  # one thread writes the files of all inputs
    for each in inputs.values():
        each.start(first_ms, chance.uniform(0, costs.source_ms + costs.poll_ms))
    channels, read, keepers = {name: each.out for name, each in inputs.items()}, dict[str, Keeper](), list[Keeper]()
    for number in range(setup.chain):
        out = Channel(f"counts{number + 1}")
        flow = Query(clock, setup, channels, out, begin(channels))
        keepers.append(Keeper(clock, setup, flow, channels, read))
        flow.start(chance.uniform(0, costs.flow_ms + costs.poll_ms))
        keepers[-1].start(chance.uniform(0, costs.look_ms))
        channels, read = {out.name: out}, {out.name: keepers[-1]}
    board = Board(clock, setup, keepers[-1])
    board.start(chance.uniform(0, costs.sink_ms + costs.poll_ms))
    clock.run_until(lambda: clock.now >= setup.back_ms, _PATIENCE_MS)
    latest_ms, last = setup.back_ms + _PATIENCE_MS, setup.back_ms // setup.window_ms * setup.window_ms
    clock.run_until(lambda: last in board.stable and all(each.open is None for each in keepers), latest_ms)
    corrected_ms = None if clock.now >= latest_ms - costs.poll_ms else clock.now - setup.back_ms
    settled_ms = clock.now + setup.settled_ms
    clock.run_until(lambda: clock.now >= settled_ms, settled_ms)
    return _measure(setup, board, corrected_ms, sum(len(each.epochs) for each in keepers), first_ms)


def _measure(setup: Setup, board: Board, corrected_ms: float | None, epochs: int, first_ms: int) -> Outcome:
    window_ms, cut_ms = setup.window_ms, setup.cut_ms
    delays = {start: at - _find_due(setup, start + window_ms) for start, at in board.first_ms.items()}
    before = [
        each for start, each in delays.items() if cut_ms - _USUAL_WINDOWS * window_ms <= start < cut_ms - window_ms
    ]
    starts = range(min(board.stable, default=0), max(board.stable, default=-window_ms) + 1, window_ms)
    one = max(setup.rows_per_s * setup.every_ms // 1000 // len(setup.inputs), 1) * len(setup.inputs)
    right = {start: one * _count_files(first_ms, setup.every_ms, start, start + window_ms) for start in starts}
    return Outcome(
        delay_new_ms=max(each for start, each in delays.items() if start >= cut_ms - window_ms),
        usual_ms=statistics.median(before),
        tentative=board.tentative,
        first_tentative_ms=None if board.first_tentative_ms is None else board.first_tentative_ms - cut_ms,
        corrected_ms=corrected_ms,
        wrong=sum(board.stable.get(start) != {rows: 1} for start, rows in right.items()),
        epochs=epochs,
    )


def _find_due(setup: Setup, end_ms: int) -> int:
    """When a window that ends at `end_ms` can be answered. If all inputs are away, nobody knows that it has ended."""
    next_ms = end_ms + setup.every_ms  # a row after the end must come
    away = [each for each in setup.failures if each.begin_ms <= next_ms < each.end_ms]
    is_there = {each.name for each in away} < set(setup.inputs)
    return end_ms if is_there else _find_due(setup, min(each.end_ms for each in away))


def _count_files(first_ms: int, every_ms: int, begin_ms: int, end_ms: int) -> int:
    """How many files of an input have a time from `begin_ms` to `end_ms`."""
    return sum(1 for _ in range(first_ms + max(-(-(begin_ms - first_ms) // every_ms), 0) * every_ms, end_ms, every_ms))
