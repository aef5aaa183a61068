"""The simulator of an input that is away: cases that can be reckoned by hand, and what must hold in each case."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_cec.pipeline.options import Pace, Within
from spark_cec_lab.simulation.availability.clock import Clock, Signal
from spark_cec_lab.simulation.availability.machine import simulate
from spark_cec_lab.simulation.availability.setup import Costs, Failure, Outcome, Setup
from spark_cec_lab.simulation.availability.table2 import (
    Constants,
    Load,
    checkpoint_redo_s,
    measure_rows,
    undo_redo_s,
)

COSTS = Costs(source_ms=10, flow_ms=100, sink_ms=10, row_us=0, fork_ms=50, look_ms=10, poll_ms=0)
SLOW = Costs(source_ms=700, flow_ms=1_200, sink_ms=550, row_us=10, fork_ms=1_000, share=0.8)
WAIT_MS, X_MS, CUT_MS = 3_000, 4_000, 10_000
SEEDS = range(5)


def setup(away_ms: int, pace: Pace = Pace.PROCESS, after: Pace = Pace.PROCESS, costs: Costs = COSTS) -> Setup:
    within = Within(X_MS, WAIT_MS, pace, after)
    return Setup(costs, within, (Failure("east", CUT_MS, CUT_MS + away_ms),), every_ms=100)


def run(made: Setup, seed: int = 0) -> Outcome:
    found = simulate(made, seed)
    assert found.wrong == 0 and found.corrected_ms is not None
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_tentative_rows_come_as_can_be_reckoned(seed: int) -> None:
    """Rows wait from the first file after the cut on. Then come a look, and the sink: the fork has worked ahead."""
    found = run(setup(10_000), seed)
    least = COSTS.source_ms + WAIT_MS + COSTS.sink_ms
    # The file; and each may have to wait for one more.
    most = least + 100 + COSTS.flow_ms + COSTS.source_ms + COSTS.look_ms + COSTS.sink_ms
    assert found.first_tentative_ms is not None and least <= found.first_tentative_ms <= most
    assert found.delay_new_ms == found.first_tentative_ms, "the oldest window ends at the cut, and comes then"
    assert found.epochs == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_usually_comes_as_can_be_reckoned(seed: int) -> None:
    """The first file after its end, the input, a batch, and the sink; each may wait for a batch that runs."""
    usual_ms = run(setup(1_000), seed).usual_ms
    assert COSTS.source_ms + COSTS.flow_ms + COSTS.sink_ms <= usual_ms <= 100 + 2 * COSTS.flow_ms + 40


@pytest.mark.parametrize(("row_us", "away_ms"), [(54, 60_000), (110, 120_000)])
def test_an_epoch_that_yields_to_its_flow_answers_in_time(row_us: float, away_ms: int) -> None:
    """The flow needs longer than the epoch yields. Then come all rows that have waited in one batch."""
    costs = Costs(source_ms=100, flow_ms=800, sink_ms=100, row_us=row_us, fork_ms=1_000, share=0.8)
    made = Setup(costs, Within(10_000, 9_000), (Failure("east", 30_000, 30_000 + away_ms),), every_ms=200)
    found = run(made)
    assert found.corrected_ms is not None and found.corrected_ms > 9_000 and found.epochs == 1
    assert found.delay_new_ms < 10_000 + 500


@pytest.mark.parametrize("pace", [Pace.PROCESS, Pace.DELAY])
@pytest.mark.parametrize("seed", SEEDS)
def test_inputs_that_come_and_go_fifty_times_are_answered_in_time(seed: int, pace: Pace) -> None:
    """Any input, for 0.2 to 8 s, and often two at a time. In the end no epoch is open, and all rows are right.

    An epoch that delays holds late rows of an input back, too, and those of the others wait for them.
    """
    chance, begin_ms, failures = random.Random(seed), CUT_MS, list[Failure]()
    for _ in range(50):
        length_ms = chance.randrange(200, 8_000)
        failures.append(Failure(chance.choice(["north", "south", "east"]), begin_ms, begin_ms + length_ms))
        begin_ms += chance.randrange(200, 8_000)
    made = replace(setup(0, pace, pace), failures=tuple(failures))
    found = run(made, seed)
    # A window comes up to a second after its rows, and the usual time is in it.
    most_ms = X_MS + made.bucket_ms + found.usual_ms + (WAIT_MS if pace is Pace.DELAY else 0)
    assert found.delay_new_ms < most_ms, f"seed={seed}"
    assert found.epochs, f"seed={seed}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pace", [Pace.PROCESS, Pace.DELAY])
def test_there_is_no_tentative_row_if_the_input_is_away_for_less_than_alpha_x(pace: Pace, seed: int) -> None:
    found = run(setup(WAIT_MS - 200, pace), seed)
    assert (found.tentative, found.epochs, found.first_tentative_ms) == (0, 0, None)


@pytest.mark.parametrize("costs", [COSTS, SLOW])
def test_a_longer_outage_never_has_fewer_tentative_rows(costs: Costs) -> None:
    rows = [run(setup(away_ms, costs=costs)).tentative for away_ms in range(0, 30_000, 1_500)]
    assert rows == sorted(rows) and rows[0] == 0 < rows[-1]


@pytest.mark.parametrize("costs", [COSTS, SLOW])
def test_a_pace_that_delays_has_fewer_tentative_rows_by_alpha_x(costs: Costs) -> None:
    for seed in SEEDS:
        process = run(setup(20_000, costs=costs), seed)
        delay = run(setup(20_000, Pace.DELAY, Pace.DELAY, costs), seed)
        less = process.tentative - delay.tentative
        assert abs(less - WAIT_MS // 1000 * 100) <= (100 if costs is COSTS else 300), "the windows of alpha X"


def test_all_rows_are_tentative_while_the_input_is_away() -> None:
    """Windows from the one that ends at the cut on, up to the one that the epoch has answered when the flow is back."""
    rows = run(setup(20_000)).tentative
    assert 20 * 100 <= rows <= 22 * 100


def test_with_suspend_no_window_is_answered_while_the_flow_catches_up() -> None:
    """A row costs so much that the flow needs seconds to catch up."""
    dear = replace(COSTS, row_us=100)
    going = run(setup(20_000, costs=dear))
    assert run(setup(20_000, after=Pace.SUSPEND, costs=dear)).tentative <= going.tentative


def test_a_chain_adds_starts_and_not_alpha_x() -> None:
    one = run(setup(20_000))
    four = run(replace(setup(20_000), chain=4))
    added = four.delay_new_ms - one.delay_new_ms
    assert four.epochs == 4 and 0 < added < WAIT_MS, "each flow adds the usual time of one"


def test_inputs_that_go_away_in_turn_leave_an_epoch_that_answers() -> None:
    """At last all inputs have been away. The one that is back is waited for, or the epoch would have no batch."""
    away = (
        Failure("south", 10_000, 35_000), Failure("north", 23_000, 50_000), Failure("east", 29_000, 45_000),
    )  # fmt: skip
    found = run(replace(setup(0), failures=away))
    # No row comes from 29 s to 35 s. Then rows wait for alpha X.
    assert found.delay_new_ms < 6_000 + X_MS + 1_000


@pytest.mark.parametrize("costs", [COSTS, SLOW])
@pytest.mark.parametrize("pace", [Pace.PROCESS, Pace.DELAY])
def test_random_failures_leave_each_stable_row_once_and_right(pace: Pace, costs: Costs) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        away = list[Failure]()
        for _ in range(chance.randint(1, 4)):
            begin_ms = chance.randrange(10_000, 60_000)
            name = chance.choice(["north", "south", "east"])
            away.append(Failure(name, begin_ms, begin_ms + chance.randrange(100, 30_000)))
        made = setup(0, pace, chance.choice(list(Pace)), costs)
        run(replace(made, failures=tuple(away), chain=chance.randint(1, 3)), seed)


def test_a_seed_repeats_a_run() -> None:
    assert run(setup(20_000), 3) == run(setup(20_000), 3)


def test_the_clock_runs_actions_in_their_order_and_what_waits_for_signals_once() -> None:
    clock, told, comes, goes = Clock(), list[tuple[str, float]](), Signal(), Signal()
    clock.after(5, lambda: told.append(("late", clock.now)))
    clock.after(2, lambda: told.append(("early", clock.now)))
    clock.wait(1, lambda: told.append(("signal", clock.now)), comes, goes)
    clock.after(3, comes.send)
    clock.after(3, goes.send)
    clock.run_until(lambda: False, 100)
    assert told == [("early", 2), ("signal", 4), ("late", 5)]


EACH = Constants(copy_us=1, compare_us=2, process_us=10)


def test_table_2_as_reckoned_by_hand() -> None:
    load = Load(state=1_000, cut_s=5, rows_per_s=1_000, usual_s=0.5, interval_s=0.2)
    assert checkpoint_redo_s(load, EACH) == pytest.approx(0.5 + 0.001 + 5_100 * 10e-6)
    assert undo_redo_s(load, EACH) == pytest.approx(0.5 + 1_000 * 12e-6 + 5_100 * 12e-6)


def test_checkpoint_redo_wins_everywhere_and_two_operators_double_the_slope() -> None:
    for state in (0, 100, 100_000):
        for rate in (500, 4_000):
            load = Load(state, 5, rate)
            assert checkpoint_redo_s(load, EACH) < undo_redo_s(load, EACH)
            for way in (checkpoint_redo_s, undo_redo_s):
                rest = way(replace(load, rows_per_s=0), EACH)
                two = way(replace(load, rows_per_s=2 * rate), EACH)
                assert two - rest == pytest.approx(2 * (way(load, EACH) - rest))


def test_the_constants_are_those_of_rows_in_memory() -> None:
    assert all(0.001 < each < 100 for each in measure_rows(10_000, 3))
