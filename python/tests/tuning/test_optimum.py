"""T*: its digits over fourteen orders of magnitude, and that nothing beats it."""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw

from spark_cec.tuning import (
    checkpoint_cost,
    daly_interval,
    optimal_interval,
    optimal_utilization,
    utilization,
    young_interval,
    zhuang_interval,
)


def exact(cost: float) -> float:
    """x - 1 + e^(-x) = cost by Newton's method in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        wanted = Decimal(cost)
        x = (2 * wanted).sqrt() + wanted
        for _ in range(60):
            x -= (x - 1 + (-x).exp() - wanted) / (1 - (-x).exp())
        return float(x)


@pytest.mark.parametrize(
    "cost",
    [1e-14, 1e-12, 1e-9, 1e-6, 1e-3, 0.025, 0.1, 0.3678, 0.4999999, 0.5, 0.5000001, 1.0, 2.5, 10.0, 36.0, 100.0, 1e4],
)
def test_all_digits_are_right(cost: float) -> None:
    best = optimal_interval(checkpoint_s=cost, failures_per_s=1.0)
    assert best == pytest.approx(exact(cost), rel=1e-15, abs=0)
    # λ only scales time.
    slow = optimal_interval(checkpoint_s=cost * 7e5, failures_per_s=1 / 7e5)
    assert slow == pytest.approx(exact(cost) * 7e5, rel=2e-15)


def test_the_closed_form_alone_loses_its_digits() -> None:
    cost = 1e-12
    naive = cost + 1.0 + float(np.real(lambertw(-np.exp(-cost - 1.0))))
    assert abs(naive / exact(cost) - 1.0) > 1e-6
    moderate = 0.7 + 1.0 + float(np.real(lambertw(-np.exp(-1.7))))
    assert optimal_interval(checkpoint_s=0.7, failures_per_s=1.0) == pytest.approx(moderate, rel=1e-14)


RATES = st.floats(1e-6, 10.0)
COSTS = st.floats(1e-3, 100.0)


@given(rate=RATES, exposure=st.floats(1e-6, 20.0), restart=st.floats(0.0, 5.0), operators=st.integers(1, 9))
def test_no_other_interval_is_better(rate: float, exposure: float, restart: float, operators: int) -> None:
    down: dict[str, Any] = {"restart_s": restart / rate, "operators": operators, "delay_s": 0.1 / rate}
    cost = exposure / rate
    best = float(optimal_interval(checkpoint_s=cost, failures_per_s=rate))
    others = np.array([0.5, 0.9, 0.99, 1.01, 1.1, 2.0]) * best
    others = others[others > cost]
    reached = utilization(best, checkpoint_s=cost, failures_per_s=rate, **down)
    assert best > cost
    assert (utilization(others, checkpoint_s=cost, failures_per_s=rate, **down) <= reached).all()
    closed = optimal_utilization(checkpoint_s=cost, failures_per_s=rate, **down)
    assert reached == pytest.approx(float(closed), rel=1e-9)


@given(rate=RATES, interval=st.floats(1e-6, 1e4))
def test_the_cost_of_an_optimum_is_the_inverse(rate: float, interval: float) -> None:
    cost = checkpoint_cost(optimal_interval_s=interval, failures_per_s=rate)
    assert optimal_interval(checkpoint_s=cost, failures_per_s=rate) == pytest.approx(interval, rel=1e-12)


def test_earlier_answers() -> None:
    cost, rate, restart = 5.0, 0.005, 10.0
    assert young_interval(checkpoint_s=cost, failures_per_s=rate) == pytest.approx(sqrt(2000))
    assert daly_interval(checkpoint_s=cost, failures_per_s=rate, restart_s=restart) == pytest.approx(sqrt(2100))
    assert zhuang_interval(checkpoint_s=cost, failures_per_s=rate, restart_s=restart) == pytest.approx(sqrt(2125))


@given(cost=COSTS)
def test_young_is_the_limit_of_rare_failures(cost: float) -> None:
    rate = 1e-12 / cost
    young = float(young_interval(checkpoint_s=cost, failures_per_s=rate))
    assert optimal_interval(checkpoint_s=cost, failures_per_s=rate) == pytest.approx(young, rel=1e-6)
