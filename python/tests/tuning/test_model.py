"""The formulas against their definitions, at the edges of a double, and against wrong arguments."""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import exp, expm1
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from spark_cec.errors import CecError
from spark_cec.tuning import (
    ModelInputError,
    daly_interval,
    effective_period,
    mean_time_to_failure,
    optimal_interval,
    utilization,
    utilization_dag_without_failure,
    utilization_with_failure,
    utilization_with_restart,
    utilization_without_failure,
)

RATE, COST, RESTART, PERIOD, DELAY = 0.005, 5.0, 10.0, 40.0, 0.5


def test_each_formula_as_the_paper_writes_it() -> None:
    lost = expm1(RATE * PERIOD)
    assert utilization_without_failure(PERIOD, checkpoint_s=COST) == pytest.approx(35 / 40)
    assert mean_time_to_failure(PERIOD, failures_per_s=RATE) == pytest.approx(1 / RATE - PERIOD / lost)
    three = utilization_with_failure(PERIOD, checkpoint_s=COST, failures_per_s=RATE)
    assert three == pytest.approx(RATE * 35 / lost)
    four = utilization_with_restart(PERIOD, checkpoint_s=COST, failures_per_s=RATE, restart_s=RESTART)
    assert four == pytest.approx(RATE * 35 / (exp(RATE * (PERIOD + RESTART)) - exp(RATE * RESTART)))
    ten = utilization(PERIOD, checkpoint_s=COST, failures_per_s=RATE, restart_s=RESTART, operators=50, delay_s=DELAY)
    assert ten == pytest.approx(float(four) * exp(-RATE * 49 * DELAY))


@pytest.mark.parametrize("period", [0.01, 1.0, 40.0, 900.0])
def test_mean_time_to_failure_is_the_mean_of_a_truncated_exponential(period: float) -> None:
    area, _ = quad(lambda t: t * RATE * exp(-RATE * t), 0.0, period)
    expected = area / -expm1(-RATE * period)
    assert mean_time_to_failure(period, failures_per_s=RATE) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("exposure", ["1e-12", "1e-6", "0.1", "0.2", "0.5", "0.99999", "1", "1.00001", "3", "40"])
def test_mean_time_to_failure_keeps_its_digits(exposure: str) -> None:
    with localcontext() as context:
        context.prec = 60
        x = Decimal(exposure)
        expected = float(1 - x / (x.exp() - 1))
    assert mean_time_to_failure(float(exposure), failures_per_s=1.0) == pytest.approx(expected, rel=1e-15, abs=0)


def test_mean_time_to_failure_of_an_endless_interval_is_that_of_the_process() -> None:
    assert mean_time_to_failure(1e6, failures_per_s=RATE) == pytest.approx(1 / RATE)


@given(
    rate=st.floats(1e-7, 0.5),
    cost=st.floats(0.0, 20.0),
    work=st.floats(0.01, 100.0),
    restart=st.floats(0.0, 30.0),
    operators=st.integers(1, 60),
    delay=st.floats(0.0, 1.0),
)
def test_utilization_is_work_over_effective_period(
    rate: float, cost: float, work: float, restart: float, operators: int, delay: float
) -> None:
    down: dict[str, Any] = {"failures_per_s": rate, "restart_s": restart, "operators": operators, "delay_s": delay}
    took = effective_period(cost + work, **down)
    share = utilization(cost + work, checkpoint_s=cost, **down)
    assert share == pytest.approx((cost + work - cost) / float(took), rel=1e-11)
    assert 0.0 <= share < 1.0


def test_effective_period_adds_one_cost_after_another() -> None:
    failures = effective_period(PERIOD, failures_per_s=RATE)
    assert failures == pytest.approx(expm1(RATE * PERIOD) / RATE)
    restarts = effective_period(PERIOD, failures_per_s=RATE, restart_s=RESTART)
    # e^(λT) - 1 failures on average, each followed by a restart that takes (e^(λR) - 1)/λ until it succeeds.
    assert restarts == pytest.approx(float(failures) + expm1(RATE * PERIOD) * expm1(RATE * RESTART) / RATE)
    deep: dict[str, Any] = {"failures_per_s": RATE, "restart_s": RESTART, "operators": 50, "delay_s": DELAY}
    overlapping, waiting = effective_period(PERIOD, **deep), effective_period(PERIOD, **deep, overlap=False)
    assert restarts < overlapping < waiting
    assert waiting == pytest.approx(
        float(effective_period(PERIOD + 49 * DELAY, failures_per_s=RATE, restart_s=RESTART))
    )


def test_the_dag_without_failure_is_the_limit_of_rare_failures() -> None:
    deep: dict[str, Any] = {"checkpoint_s": COST, "operators": 50, "delay_s": DELAY}
    overlapping = utilization_dag_without_failure(PERIOD, **deep)
    assert overlapping == utilization_without_failure(PERIOD, checkpoint_s=COST)
    assert utilization(PERIOD, failures_per_s=1e-13, **deep) == pytest.approx(float(overlapping), rel=1e-9)
    waiting = utilization_dag_without_failure(PERIOD, overlap=False, **deep)
    assert waiting == pytest.approx(35 / 64.5)


def test_nothing_overflows() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert utilization(1e6, checkpoint_s=1.0, failures_per_s=1.0) == 0.0
        assert mean_time_to_failure(1e6, failures_per_s=1.0) == pytest.approx(1.0)
        assert effective_period(1e6, failures_per_s=1.0) == np.inf


def test_numbers_give_a_number_and_arrays_their_common_shape() -> None:
    one = utilization(PERIOD, checkpoint_s=COST, failures_per_s=RATE)
    assert isinstance(one, float)
    rates = np.array([0.001, RATE, 0.05])[:, None]
    periods = [20.0, PERIOD]
    table = utilization(periods, checkpoint_s=COST, failures_per_s=rates)
    assert isinstance(table, np.ndarray)
    assert table.shape == (3, 2)
    assert table[1, 1] == one
    pair = utilization_dag_without_failure(PERIOD, checkpoint_s=1, operators=[1, 2], delay_s=1)
    assert np.asarray(pair).shape == (2,)


GOOD: dict[str, Any] = {"checkpoint_s": 1.0, "failures_per_s": 0.1, "restart_s": 2.0, "operators": 3, "delay_s": 0.5}


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        ("failures_per_s", 0.0, "greater than 0"),
        ("failures_per_s", -1.0, "greater than 0"),
        ("failures_per_s", [0.1, float("nan")], "finite"),
        ("failures_per_s", "often", "number"),
        ("checkpoint_s", -0.1, "negative"),
        ("restart_s", -1.0, "negative"),
        ("restart_s", float("inf"), "finite"),
        ("operators", 0, "at least 1"),
        ("operators", 2.5, "whole"),
        ("operators", [3, 0], "at least 1"),
        ("delay_s", -1e-9, "negative"),
        ("interval_s", 0.0, "greater than 0"),
        ("interval_s", 1.0, "longer than the checkpoint"),
        ("interval_s", [5.0, 0.5], "longer than the checkpoint"),
    ],
)
def test_a_wrong_argument_is_named(name: str, value: object, mend: str) -> None:
    with pytest.raises(ModelInputError, match=mend) as caught:
        utilization(**({"interval_s": 10.0} | GOOD | {name: value}))
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name}=")
    assert isinstance(caught.value, CecError)
    assert isinstance(caught.value, ValueError)


def test_the_offending_element_of_an_array_is_shown() -> None:
    with pytest.raises(ModelInputError, match=r"interval_s=3: must be longer than .*checkpoint_s=4"):
        utilization_without_failure([5.0, 3.0], checkpoint_s=[1.0, 4.0])


def test_an_optimum_needs_a_cost() -> None:
    with pytest.raises(ModelInputError, match="checkpoint_s=0"):
        optimal_interval(checkpoint_s=0.0, failures_per_s=0.1)
    with pytest.raises(ModelInputError, match="restart_s=-1"):
        daly_interval(checkpoint_s=1.0, failures_per_s=0.1, restart_s=-1.0)
