"""What is cheap to write is written: a simulated store under the cost-benefit policy, with known costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from spark_cec.checkpoint.effort import (
    BYTE_US,
    FIRST_US,
    LEAST_SAVED,
    RECORD_US,
    WriteCost,
    rewrites_per_check,
    saves_little,
)
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.policy import plan_after
from spark_cec.checkpoint.recovery_target import NEVER_FAILED, Calibration, Forecast
from spark_cec.settings import ExtentBound, Settings
from tests.log.support import commit_meta

SETTINGS = Settings(effort=0.02)
BATCH_MS = 500.0


def commits(cost: WriteCost, count: int, us: float, records: int, bytes_: int = 0) -> None:
    for _ in range(count):
        cost.add(us=us, records=records, bytes_=bytes_, rows=records, windows=records)


def test_before_anything_was_seen_the_prices_hold() -> None:
    assert WriteCost().of(0) == FIRST_US
    assert WriteCost().of(100) == FIRST_US + 100 * RECORD_US


def test_bytes_are_priced_from_the_first_commit_on() -> None:
    """Values of a megabyte: what it takes to write a hundred of them is no less than what a disk takes for that."""
    cost = WriteCost()
    commits(cost, 1, 3_000.0, records=100, bytes_=100_000_000)
    assert cost.of(100) >= 0.25 * 100_000_000 * BYTE_US


@pytest.mark.parametrize("per_record", [1.0, 3.0, 30.0, 300.0, 3_000.0])
@pytest.mark.parametrize("records", [4_000, 100_000])
def test_what_records_take_is_learnt(records: int, per_record: float) -> None:
    cost = WriteCost()
    commits(cost, 12, 2_000.0 + per_record * records, records)
    assert cost.of(records) == pytest.approx(per_record * records, rel=0.6, abs=20_000)


def test_a_slow_commit_of_few_records_is_no_reason_to_check_less() -> None:
    cost = WriteCost()
    commits(cost, 100, 4_900.0, records=50)
    assert cost.of(50) <= FIRST_US + 50 * RECORD_US


def test_what_the_first_commits_of_a_process_take_is_soon_forgotten() -> None:
    """The JVM loads classes and compiles: a hundred milliseconds for a hundred records."""
    cost = WriteCost()
    commits(cost, 4, 100_000.0, records=100)
    assert cost.of(100) == FIRST_US + 100 * RECORD_US
    commits(cost, 3, 100_000.0, records=100)
    assert cost.of(100) > 20_000
    commits(cost, 5, 3_000.0, records=100)
    assert cost.of(100) <= FIRST_US + 100 * RECORD_US


def test_a_pause_tells_nothing() -> None:
    cost = WriteCost()
    commits(cost, 20, 25_000.0, records=10_000)
    commits(cost, 1, 900_000.0, records=10_000)
    assert cost.of(10_000) == pytest.approx(20_000, rel=0.1)


def test_many_small_commits_do_not_drown_a_large_one() -> None:
    """What a commit takes to sort what its batch has touched is not the price of its few records."""
    cost = WriteCost()
    commits(cost, 1, 205_000.0, records=100_000)
    commits(cost, 8, 30_000.0, records=100)
    assert cost.of(100_000) == pytest.approx(200_000, rel=0.1)


def test_commits_without_records_teach_and_forget_nothing() -> None:
    cost = WriteCost()
    commits(cost, 10, 1_000_000.0, records=400)
    known = cost.of(400)
    commits(cost, 1_000, 2_000.0, records=0)
    assert cost.of(400) == known > 500_000


@pytest.mark.parametrize(
    ("bound", "rewrites"),
    [
        (ExtentBound(per_window=2.0), 1.0),
        (ExtentBound(per_window=1.1), 10.0),
        (ExtentBound(per_window=1.0), 10.0),
        (ExtentBound(records=5_000), 0.25),
    ],
)
def test_each_check_costs_the_rewrites_that_q_asks_for_because_of_it(bound: ExtentBound, rewrites: float) -> None:
    assert rewrites_per_check(bound, 1_000) == pytest.approx(rewrites)


@dataclass
class Simulated:
    """A store whose batches bring `inputs` tuples for some of `windows`, under the plans of the policy.

    `hot`: the same windows each time, else others in turn. `checked`: by commit; `lags`: replay in tuples by commit.
    """

    windows: int
    touched: int
    hot: bool
    inputs: int
    us_per_record: float
    settings: Settings
    waves: float = 1.0
    rows: int = 1

    def run(self, commits: int) -> tuple[list[int], list[int]]:
        """Checked windows and tuples to be replayed, after each commit."""
        calibration, forecast = Calibration(), Forecast(load_waves=self.waves)
        ledger = Footprints(version=1, dirty_from=1, dirty_windows=0, live={1: self.windows})
        plan = plan_after(ledger, self.settings, 10_000)
        clean = 1 << 40
        since = np.full(self.windows, clean)
        checks, lags = [], []
        for version in range(2, commits + 2):
            first = 0 if self.hot else version * self.touched
            touched = (first + np.arange(self.touched)) % self.windows
            since[touched] = np.minimum(since[touched], version - 1)
            steps = plan.replay_steps
            step = next((each for each in steps if each.cost + self.inputs <= plan.replay_bound), steps[-1])
            chosen = since < step.before
            if plan.worth_bound is not None:
                cheap = next((each for each in steps if each.cost + self.inputs <= plan.worth_bound), steps[-1])
                chosen |= since < cheap.before
            since[chosen] = clean
            checked, dirty = int(chosen.sum()), int((since < clean).sum())
            records = checked * self.rows
            dirty_from = min(int(since.min()), version)
            ledger.commit(
                version,
                records=checked,
                inputs=self.inputs,
                live_changes={},
                dirty_from=dirty_from,
                dirty_windows=dirty,
            )
            elapsed_us = int(2_000 + self.us_per_record * records)
            calibration.note_batch(version - 2, BATCH_MS)
            calibration.note_commit(
                commit_meta(
                    version, inputs=self.inputs, records=records, opened=0, checked=records, elapsed_us=elapsed_us
                ),
                windows=checked,
            )
            plan = calibration.plan(self.settings, forecast, ledger, 10_000)
            checks.append(records)
            lags.append(ledger.replay)
        return checks, lags


def test_a_small_store_is_clean_after_every_commit() -> None:
    """400 windows with batches of half a second: to write them takes 1 ms."""
    checks, lags = Simulated(400, 100, False, 100, 3.0, SETTINGS).run(60)
    assert lags[10:] == [0] * 50
    assert checks[10:] == [100] * 50


def test_without_effort_only_u_is_kept() -> None:
    _, lags = Simulated(400, 100, False, 100, 3.0, replace(SETTINGS, effort=0.0, replay_bound=1_000)).run(60)
    assert max(lags) <= 1_000
    assert lags[-1] > 500


@pytest.mark.parametrize("us_per_record", [1.0, 30.0, 3_000.0])
@pytest.mark.parametrize("rows", [1, 700])
@pytest.mark.parametrize("waves", [1.0, 4.0])
@pytest.mark.parametrize("windows", [40, 1_000, 20_000])
def test_the_effort_is_kept_from_small_to_large(windows: int, waves: float, rows: int, us_per_record: float) -> None:
    """All windows are touched at each batch. U asks for nothing here."""
    settings = replace(SETTINGS, replay_bound=1 << 60, extent_bound=ExtentBound(records=1 << 60))
    store = Simulated(windows, windows, True, windows, us_per_record, settings, waves, rows)
    checks, lags = store.run(400)
    spent = sum(checks[100:]) * us_per_record * waves / (300 * BATCH_MS * 1000)
    whole = windows * rows * us_per_record * waves / (BATCH_MS * 1000)
    # Between one writing and none in 300 batches there is nothing.
    assert spent <= max(2 * SETTINGS.effort, 2 * whole / 300)
    if whole + waves * FIRST_US / (BATCH_MS * 1000) < SETTINGS.effort / 4:
        assert max(lags[100:]) == 0
    # A window is not written much less often than pays for it, where its price is not far from the list's.
    if us_per_record <= 3.0:
        priced = windows * rows * (RECORD_US + us_per_record) * waves / (BATCH_MS * 1000) + waves * 0.002
        assert max(lags[100:]) <= (2.5 * priced / SETTINGS.effort + 2) * windows


def test_what_would_cost_more_than_it_saves_is_left_to_u() -> None:
    """Ever other windows of a large store: each is written once in U, as without the policy."""
    store = Simulated(200_000, 20_000, False, 100_000, 3.0, SETTINGS)
    with_it, without = store.run(60), replace(store, settings=replace(SETTINGS, effort=0.0)).run(60)
    assert with_it == without


@pytest.mark.parametrize("touched", [2_000, 10_000])
def test_where_deferring_saves_little_every_commit_leaves_the_store_clean(touched: int) -> None:
    """So many windows that few change twice within U, whatever a record costs; at random, as in a uniform load."""
    settings = replace(SETTINGS, replay_bound=30_000)
    store = Simulated(25_000, touched, False, touched, 300.0, settings)
    checks, lags = store.run(60)
    lazy, _ = replace(store, settings=replace(settings, effort=0.0)).run(60)
    assert set(lags[1:]) == {0}
    assert sum(checks[20:]) <= LEAST_SAVED * sum(lazy[20:])
    fewer = replace(store, windows=19_000)
    assert max(fewer.run(60)[1]) > 0, "these change twice"


@pytest.mark.parametrize(
    ("bound", "windows", "little"), [(150, 100, False), (149, 100, True), (1, 0, True), (9, 0, False)]
)
def test_what_deferring_divides_the_records_by(bound: int, windows: int, little: bool) -> None:
    assert saves_little(bound, windows) is little


def test_stores_that_share_a_core_share_the_effort() -> None:
    alone = Calibration().worth_bound(SETTINGS, NEVER_FAILED, Footprints(1, 1, 5, {}, {}, {1: 5}))
    assert alone is None, "nothing is known yet"
    calibration = Calibration()
    calibration.note_commit(commit_meta(2, inputs=1_000, checked=0, records=0))
    calibration.note_batch(1, BATCH_MS)
    ledger = Footprints(2, 1, 10_000, {}, {}, {1: 10_000})
    one = calibration.worth_bound(SETTINGS, NEVER_FAILED, ledger)
    four = calibration.worth_bound(SETTINGS, Forecast(load_waves=4.0), ledger)
    assert one is not None
    assert four == pytest.approx(4 * one, rel=0.01)
    assert one == int((FIRST_US + 2 * 10_000 * RECORD_US) / 0.02 / 500)
