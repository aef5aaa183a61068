"""The model against chance: formulas (4) and (10) against simulated failures (the paper's figures 5 and 12)."""

from __future__ import annotations

import random
from math import sqrt
from typing import Any

import numpy as np
import pytest

from spark_cec.tuning import ModelInputError, optimal_interval, utilization
from spark_cec_lab.tuning.simulate import Simulation, _stretches, simulate

COST, RESTART, DELAY = 5.0, 10.0, 0.5
SEED = 61


def scores(rate: float, operators: int) -> list[float]:
    """Distance of the simulated mean from the model, in standard errors, at T* and on both sides of it."""
    best = float(optimal_interval(checkpoint_s=COST, failures_per_s=rate))
    system: dict[str, Any] = {"failures_per_s": rate, "restart_s": RESTART, "operators": operators, "delay_s": DELAY}
    found = []
    for interval in (0.7 * best, best, 1.4 * best):
        outcome = simulate(interval, checkpoint_s=COST, seed=SEED, **system)
        expected = float(utilization(interval, checkpoint_s=COST, **system))
        found.append((outcome.mean - expected) / outcome.standard_error)
    return found


@pytest.mark.parametrize("operators", [1, 5, 25, 50])
@pytest.mark.parametrize("rate", [0.1, 0.05, 0.025, 0.005])
def test_the_model_is_within_three_standard_errors(rate: float, operators: int) -> None:
    found = scores(rate, operators)
    assert max(abs(score) for score in found) < 3.0, f"seed {SEED}, λ={rate}, n={operators}: {found}"


def test_the_standard_errors_are_neither_too_wide_nor_is_there_a_drift() -> None:
    rate, interval = 0.05, 16.0
    system: dict[str, Any] = {"checkpoint_s": COST, "failures_per_s": rate, "restart_s": RESTART}
    expected = float(utilization(interval, **system))
    outcomes = [simulate(interval, seed=seed, runs=100, failures_per_run=2000, **system) for seed in range(60)]
    found = np.array([(outcome.mean - expected) / outcome.standard_error for outcome in outcomes])
    assert abs(found.mean()) < 4 / sqrt(60), found
    assert 0.7 < found.std() < 1.35, found
    assert np.mean([outcome.standard_error for outcome in outcomes]) < 0.01 * expected


def walk(rng: random.Random, rate: float, failures: int, interval: float, operators: int) -> float:
    """One run, event by event and operator by operator, with nothing in common with the simulator."""
    horizon, now, valid = failures / rate, 0.0, 0
    failure = rng.expovariate(rate)
    while now < horizon:
        # `now` is a moment at which the system has just become ready.
        started = now
        number = 1
        while True:
            leaves = started + number * interval
            for _ in range(operators - 1):
                leaves += DELAY
            if leaves > min(failure, horizon):
                break
            valid += 1
            number += 1
        now = failure
        failure = now + rng.expovariate(rate)
        while failure < now + RESTART:
            now = failure
            failure = now + rng.expovariate(rate)
        now += RESTART
    return valid * (interval - COST) / horizon


@pytest.mark.parametrize(("rate", "operators"), [(0.1, 1), (0.05, 25), (0.005, 50)])
def test_the_vectorised_simulator_does_what_a_slow_walk_does(rate: float, operators: int) -> None:
    interval = 1.1 * float(optimal_interval(checkpoint_s=COST, failures_per_s=rate))
    rng = random.Random(SEED)
    slow = Simulation(np.array([walk(rng, rate, 1000, interval, operators) for _ in range(60)]))
    system: dict[str, Any] = {"failures_per_s": rate, "restart_s": RESTART, "operators": operators, "delay_s": DELAY}
    fast = simulate(interval, checkpoint_s=COST, seed=SEED, **system)
    apart = abs(slow.mean - fast.mean) / sqrt(slow.standard_error**2 + fast.standard_error**2)
    assert apart < 3.5, f"seed {SEED}: {slow.mean} against {fast.mean}"


def test_a_seed_repeats_and_another_does_not() -> None:
    system: dict[str, Any] = {"checkpoint_s": COST, "failures_per_s": 0.01, "runs": 5, "failures_per_run": 50}
    first = simulate(30.0, seed=1, **system)
    assert (first.utilization == simulate(30.0, seed=1, **system).utilization).all()
    assert (first.utilization != simulate(30.0, seed=2, **system).utilization).all()
    assert first.utilization.shape == (5,)


def test_a_run_is_cut_at_its_horizon_however_many_failures_it_takes() -> None:
    class Hurried(np.random.Generator):
        """Failures ten times as often as the simulator budgets for."""

        def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
            return super().exponential(scale / 10.0, size)

    begin, end = _stretches(Hurried(np.random.PCG64(SEED)), 4, 30, rate=0.5)
    assert (end[:, -1] == 60.0).all()
    assert (begin[:, 1:] == end[:, :-1]).all()
    assert (begin[:, 0] == 0.0).all()


@pytest.mark.parametrize(
    ("name", "value"), [("runs", 0), ("failures_per_run", 0), ("operators", 0), ("restart_s", -1.0)]
)
def test_a_wrong_argument_is_named(name: str, value: float) -> None:
    good: dict[str, Any] = {"checkpoint_s": COST, "failures_per_s": 0.01, "seed": 1}
    with pytest.raises(ModelInputError) as caught:
        simulate(30.0, **(good | {name: value}))
    assert caught.value.name == name
