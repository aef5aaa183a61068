"""The interval at which utilization is highest, and three earlier answers to compare it with.

With x = λT the derivative of (10) vanishes where x - 1 + e^(-x) = λc. Solved for x that is the paper's
T* = (λc + W(-e^(-λc-1)) + 1) / λ on the principal branch of Lambert's W. Neither R nor n nor δ appears in it.
Seconds and rates per second throughout; arrays are broadcast; wrong arguments raise `ModelInputError`.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import numpy.typing as npt
from scipy.special import lambertw

from spark_cec.tuning.inputs import FloatArray, Quantity, collapse, not_negative, positive
from spark_cec.tuning.model import token_flight

_SMALL_COST = 0.5
_TAYLOR_TERMS = tuple((-1.0) ** k / factorial(k) for k in range(2, 20))
_NEWTON_STEPS = 4


def optimal_interval(*, checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike) -> Quantity:
    """T*, in seconds.

    Good to a few units in the last place for any λc > 0. The closed form alone is not: W's argument goes to its
    branch point -1/e as λc goes to 0, and at λc = 1e-12 no digit of T* would be left.
    """
    rate = positive("failures_per_s", failures_per_s)
    cost = rate * positive("checkpoint_s", checkpoint_s)
    return collapse(np.asarray(_solve(cost) / rate))


def optimal_utilization(
    *,
    checkpoint_s: npt.ArrayLike,
    failures_per_s: npt.ArrayLike,
    restart_s: npt.ArrayLike = 0.0,
    operators: npt.ArrayLike = 1,
    delay_s: npt.ArrayLike = 0.0,
) -> Quantity:
    """Utilization (10) at T*, a fraction. There it is simply e^(-λ(T* + R + (n - 1)δ))."""
    rate = positive("failures_per_s", failures_per_s)
    best = optimal_interval(checkpoint_s=checkpoint_s, failures_per_s=failures_per_s)
    down = not_negative("restart_s", restart_s) + token_flight(operators, delay_s)
    return collapse(np.asarray(np.exp(-rate * (best + down))))


def checkpoint_cost(*, optimal_interval_s: npt.ArrayLike, failures_per_s: npt.ArrayLike) -> Quantity:
    """The checkpoint cost c, in seconds, for which the given interval is the best one: the inverse of T*."""
    rate = positive("failures_per_s", failures_per_s)
    exposure = rate * positive("optimal_interval_s", optimal_interval_s)
    return collapse(np.asarray(_cost_at(exposure) / rate))


def young_interval(*, checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike) -> Quantity:
    """Young (1974): √(2c/λ), in seconds."""
    return daly_interval(checkpoint_s=checkpoint_s, failures_per_s=failures_per_s, restart_s=0.0)


def daly_interval(*, checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike, restart_s: npt.ArrayLike) -> Quantity:
    """Daly (2006), first order: √(2c(1/λ + R)), in seconds."""
    cost, between = _cost_and_spacing(checkpoint_s, failures_per_s, restart_s)
    return collapse(np.asarray(np.sqrt(2.0 * cost * between)))


def zhuang_interval(
    *, checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike, restart_s: npt.ArrayLike
) -> Quantity:
    """Zhuang et al. (2018): √(2c(1/λ + R) + c²), in seconds."""
    cost, between = _cost_and_spacing(checkpoint_s, failures_per_s, restart_s)
    return collapse(np.asarray(np.sqrt(2.0 * cost * between + cost * cost)))


def _cost_and_spacing(
    checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike, restart_s: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """c, and the mean time from one restart's start to the next's: 1/λ + R."""
    rate = positive("failures_per_s", failures_per_s)
    restart = not_negative("restart_s", restart_s)
    return positive("checkpoint_s", checkpoint_s), np.asarray(1.0 / rate + restart)


def _solve(cost: FloatArray) -> FloatArray:
    """x > 0 with x - 1 + e^(-x) = cost, cost = λc > 0."""
    exposure = np.where(cost < _SMALL_COST, _near_branch_point(cost), _by_lambert_w(cost))
    for _ in range(_NEWTON_STEPS):
        exposure = exposure - (_cost_at(exposure) - cost) / -np.expm1(-exposure)
    return exposure


def _near_branch_point(cost: FloatArray) -> FloatArray:
    """The first terms of W's expansion at its branch point, in p = √(2λc)."""
    p = np.sqrt(2.0 * cost)
    return np.asarray(p * (1.0 + p / 6.0 + p * p / 36.0))


def _by_lambert_w(cost: FloatArray) -> FloatArray:
    principal: FloatArray = np.real(lambertw(-np.exp(-np.maximum(cost, _SMALL_COST) - 1.0)))
    return np.asarray(cost + 1.0 + principal)


def _cost_at(exposure: FloatArray) -> FloatArray:
    """x - 1 + e^(-x), by its Taylor series below 1, where the terms would cancel."""
    small = np.minimum(exposure, 1.0)
    series = small * small * np.polynomial.polynomial.polyval(small, _TAYLOR_TERMS)
    return np.where(exposure < 1.0, series, exposure + np.expm1(-exposure))
