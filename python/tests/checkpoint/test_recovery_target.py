"""Bounds from measured costs: a simulated store, whose true costs are known, must stay under its target."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.recovery_target import (
    AIMED_SHARE,
    NEVER_FAILED,
    PRIOR_LOAD_US_PER_RECORD,
    Calibration,
    Forecast,
    Rate,
)
from spark_cec.log.frame import CommitMeta
from spark_cec.settings import ExtentBound, Settings
from spark_cec.tuning.optimum import optimal_interval
from tests.log.support import commit_meta

TARGET = Settings(recovery_target_ms=5_000.0)
TUNED = Settings(autotune=True)


def ledger(windows: int, dirty: int = 0) -> Footprints:
    return Footprints(version=1, dirty_from=1, dirty_windows=dirty, live={1: windows})


def measured(*, base_ms: float = 1_000.0, load_us: float = 4.0, replay_us: float = 50.0) -> Calibration:
    return Calibration(load_us, base_ms, Rate(replay_us * 10, 10))


def test_one_pause_does_not_make_the_replay_dear_for_long() -> None:
    paused = Rate()
    for n in range(20):
        paused.add(3.6e9 if n == 10 else 1_000.0, 100)
    assert 10.0 < paused.value < 20.0
    for _ in range(20):
        paused.add(3.6e9, 100)
    assert paused.value > 1e6, "but what lasts is believed"


def test_the_estimate_is_the_sum_of_its_parts() -> None:
    assert measured().estimate_ms(500_000, 20_000, NEVER_FAILED) == 1_000 + 2_000 + 1_000
    assert measured().estimate_ms(500_000, 20_000, Forecast(replay_ratio=0.5)) == 1_000 + 2_000 + 500
    assert measured(load_us=0.0).estimate_ms(1_000_000, 0, NEVER_FAILED) == 1_000 + PRIOR_LOAD_US_PER_RECORD * 1_000


def test_nothing_is_foretold_of_a_replay_that_was_never_timed() -> None:
    assert measured(replay_us=0.0).estimate_ms(10, 1, NEVER_FAILED) == 0.0
    assert measured(replay_us=0.0).estimate_ms(0, 0, NEVER_FAILED) == 1_000.0


@pytest.mark.parametrize("seed", range(50))
def test_bounds_that_are_kept_keep_the_estimate_under_the_target(seed: int) -> None:
    dice = random.Random(seed)
    windows = dice.randrange(1, 200_000)
    calibration = measured(
        base_ms=dice.uniform(0, 2_000), load_us=dice.uniform(0.5, 8), replay_us=dice.choice([0.01, 1, 60, 3_000])
    )
    forecast = Forecast(replay_ratio=dice.uniform(0.3, 3))
    bounds = calibration.bounds(TARGET, forecast, ledger(windows))
    extent, replay = bounds.extent_bound.records, bounds.replay_bound
    assert extent >= windows, f"seed {seed}: fewer records than a state needs"
    foretold = calibration.estimate_ms(extent, replay, forecast)
    assert foretold <= AIMED_SHARE * 5_000 + calibration.replay.value * 3 / 1_000, f"seed {seed}: {foretold} ms"
    assert replay == TARGET.replay_bound or foretold > 0.7 * AIMED_SHARE * 5_000, (
        f"seed {seed}: {foretold} ms is too little"
    )


def test_a_target_out_of_reach_asks_for_all_that_can_be_done() -> None:
    bounds = measured(base_ms=9_000).bounds(TARGET, NEVER_FAILED, ledger(1_000))
    assert (bounds.extent_bound, bounds.replay_bound) == (ExtentBound(records=1_000), 1)


def test_without_target_and_autotune_the_settings_stay() -> None:
    settings = Settings(ExtentBound(records=7), 8)
    assert measured().bounds(settings, NEVER_FAILED, ledger(3)) is settings


def test_the_rates_follow_what_is_seen() -> None:
    calibration = Calibration()
    for version in range(2, 60):
        calibration.note_commit(commit_meta(version, inputs=1_000, records=10, elapsed_us=500))
        calibration.note_batch(version - 1, 40.0 if version < 20 else 80.0)
    assert calibration.replay.value == pytest.approx(80.0, rel=0.02)
    assert calibration.write.value == pytest.approx(50.0)


def test_a_batch_counts_once_and_only_if_it_was_first_run_here() -> None:
    calibration = Calibration()
    calibration.note_commit(commit_meta(5, inputs=100))
    for batch in (3, 4, 4, 5):
        calibration.note_batch(batch, 1.0)
    assert (calibration.replay.us, calibration.replay.things) == (1_000.0, 100.0)


def test_a_batch_without_input_makes_the_next_one_dearer() -> None:
    calibration = Calibration()
    for version, inputs in ((2, 0), (3, 100)):
        calibration.note_commit(commit_meta(version, inputs=inputs))
    calibration.note_batch(1, 9.0)
    assert calibration.replay.value == 0.0
    calibration.note_batch(2, 10.0)
    assert calibration.replay.value == pytest.approx((9_000 + 10_000) / 100)


@pytest.mark.parametrize("empty", [1, 50, 500, 7_000])
def test_an_idle_store_keeps_its_rate(empty: int) -> None:
    """One partition has no input for hours, while the others are busy: its tuples are no dearer for that."""
    calibration = Calibration()
    version = 2
    for inputs in (*[100] * 20, *[0] * empty, 100):
        calibration.note_commit(commit_meta(version, inputs=inputs))
        calibration.note_batch(version - 1, 5.0)
        version += 1
        assert 49.9 <= calibration.replay.value <= 100.1 or version == 3
    assert Calibration.of(calibration.sign_footer(commit_meta(version), NEVER_FAILED)).replay.value <= 100.1


@pytest.mark.parametrize("time", [math.inf, math.nan, 1e300, -1.0])
def test_a_time_in_the_log_that_cannot_be_is_not_known(time: float) -> None:
    """An earlier release wrote such ones."""
    names = ("load_us_per_record", "replay_us_per_tuple", "recovery_base_ms", "recovery_estimate_ms")
    meta = CommitMeta.decode(commit_meta(7, **dict.fromkeys(names, time)).encode())
    assert meta == commit_meta(7)
    assert Calibration.of(meta) == Calibration()


def test_batches_that_nobody_times_are_forgotten() -> None:
    calibration = Calibration()
    for version in range(1, 1_000):
        calibration.note_commit(commit_meta(version, inputs=1))
    calibration.note_batch(1, 5.0)
    assert calibration.replay.value == 0.0


def test_the_base_is_the_first_commit_until_there_was_a_recovery() -> None:
    calibration = Calibration()
    for elapsed in (900.0, 5_000.0):
        calibration.record_start(elapsed, NEVER_FAILED)
    assert calibration.base_ms == 900.0
    calibration.record_start(5_000.0, Forecast(base_ms=1_200.0))
    assert calibration.base_ms == 1_200.0


def test_a_footer_brings_everything_back_after_a_restart() -> None:
    before = measured()
    meta = before.sign_footer(commit_meta(7, inputs=50, extent=10, replay=20), NEVER_FAILED)
    assert meta.recovery_estimate_ms == before.estimate_ms(10, 20, NEVER_FAILED)
    after = Calibration.of(meta)
    assert (after.load_us_per_record, after.base_ms) == (4.0, 1_000.0)
    assert after.replay.value == pytest.approx(50.0)
    assert Calibration.of(None) == Calibration()


def test_loads_that_wait_for_each_other_are_dearer() -> None:
    calibration = Calibration()
    calibration.note_load(10.0, NEVER_FAILED)
    assert calibration.load_us_per_record == 0.0, "nothing was scanned"
    calibration.scanned = 1_000
    calibration.note_load(10.0, Forecast(load_waves=3.0))
    assert calibration.load_us_per_record == pytest.approx(30.0)


def test_autotune_spends_the_share_of_t_star() -> None:
    calibration = replace(measured(), write=Rate(2.0 * 100, 100))
    forecast = Forecast(failures_per_s=1 / 600)
    bounds = calibration.bounds(TUNED, forecast, ledger(5_000_000, dirty=1_000_000))
    best_s = float(optimal_interval(checkpoint_s=2.0, failures_per_s=1 / 600))
    assert bounds.checkpoint_share == pytest.approx(2.0 / best_s)
    assert bounds.replay_bound == int(best_s * 1e6 / 50)


@pytest.mark.parametrize(
    ("calibration", "forecast"),
    [
        (measured(), Forecast(failures_per_s=1.0)),
        (replace(measured(), write=Rate(1, 1)), NEVER_FAILED),
    ],
    ids=["cost unknown", "rate unknown"],
)
def test_autotune_waits_for_numbers(calibration: Calibration, forecast: Forecast) -> None:
    assert calibration.bounds(TUNED, forecast, ledger(9, dirty=9)) is TUNED


def test_autotune_never_takes_more_than_all_the_time() -> None:
    calibration = replace(measured(), write=Rate(1e6, 1))
    assert calibration.bounds(TUNED, Forecast(failures_per_s=10.0), ledger(1_000, dirty=1_000)).checkpoint_share <= 1.0


@pytest.mark.parametrize(("open_windows", "changed", "hot"), [(100_000, 600, False), (600, 600, True)])
def test_autotune_finds_the_cost_of_what_changes(open_windows: int, changed: int, hot: bool) -> None:
    """`changed` windows a batch: others each time, or always the same. Only what changes in T* is paid for."""
    calibration, forecast = replace(measured(), write=Rate(20.0, 1.0)), Forecast(failures_per_s=1 / 60)
    dirty, checkpoints, since, interval_s = 0, 0, 0, 1.0
    for version in range(2, 2_000):  # a batch a second; a replay runs as fast
        dirty, since, checked = changed if hot else min(dirty + changed, open_windows), since + 1, 0
        if since >= interval_s:
            checked, dirty, since, checkpoints = dirty, 0, 0, checkpoints + 1
        calibration.note_commit(commit_meta(version, inputs=20_000, records=0, checked=checked))
        bounds = calibration.bounds(TUNED, forecast, ledger(open_windows, dirty))
        interval_s = bounds.replay_bound / 20_000
    mean_s = 2_000 / checkpoints
    best_s = float(optimal_interval(checkpoint_s=20e-6 * changed * (1 if hot else mean_s), failures_per_s=1 / 60))
    assert max(best_s, 1.0) / 2 < mean_s < max(best_s, 1.0) * 2
