"""Utilization: the share of elapsed time that a stream processor spends on work that counts.

Source, and the formula numbers below: Jayasekara, Harwood, Karunasekera, "A Utilization Model for Optimization of
Checkpoint Intervals in Distributed Stream Processing Systems" (2019). Failures are a Poisson process that goes on
during restarts. All times are in seconds and rates per second; since the formulas are homogeneous any other unit of
time serves as well, as long as it is the same one everywhere. Every argument is a number or an array; arrays are
broadcast. Wrong arguments raise `ModelInputError`, which names the argument.

The DAG formulas rest on this reading: an operator starts its checkpoint when the token reaches it, `delay_s` after
the operator before it, so that a global checkpoint counts `(operators - 1) * delay_s` after its first operator
finished. With overlap the next interval runs meanwhile. A failure-free stretch of length x after a restart then
completes floor((x - (operators - 1) delay) / interval) checkpoints, and (10) is the renewal-reward quotient of that.
"""

from __future__ import annotations

from math import pi

import numpy as np
import numpy.typing as npt
from scipy.special import zeta

from spark_cec.tuning.inputs import FloatArray, Quantity, collapse, interval, not_negative, positive, whole


def utilization_without_failure(interval_s: npt.ArrayLike, *, checkpoint_s: npt.ArrayLike) -> Quantity:
    """(1): (T - c) / T, a fraction."""
    cost = not_negative("checkpoint_s", checkpoint_s)
    period = interval("interval_s", interval_s, cost)
    return collapse(np.asarray((period - cost) / period))


def mean_time_to_failure(interval_s: npt.ArrayLike, *, failures_per_s: npt.ArrayLike) -> Quantity:
    """(2): seconds from the start of an interval to the failure, given that it fails: 1/λ - T/(e^(λT) - 1).

    Sound for any λT: below 1 a series is used, where the two terms would cancel.
    """
    rate = positive("failures_per_s", failures_per_s)
    period = positive("interval_s", interval_s)
    return collapse(np.asarray(period * _mean_failed_share(rate * period)))


def utilization_with_failure(
    interval_s: npt.ArrayLike, *, checkpoint_s: npt.ArrayLike, failures_per_s: npt.ArrayLike
) -> Quantity:
    """(3): λ(T - c) / (e^(λT) - 1), a fraction: failures cost the work since the last checkpoint, restarts are free."""
    return utilization(interval_s, checkpoint_s=checkpoint_s, failures_per_s=failures_per_s)


def utilization_with_restart(
    interval_s: npt.ArrayLike,
    *,
    checkpoint_s: npt.ArrayLike,
    failures_per_s: npt.ArrayLike,
    restart_s: npt.ArrayLike,
) -> Quantity:
    """(4): λ(T - c) / (e^(λR) (e^(λT) - 1)), a fraction: a restart takes R and may itself fail."""
    return utilization(interval_s, checkpoint_s=checkpoint_s, failures_per_s=failures_per_s, restart_s=restart_s)


def utilization_dag_without_failure(
    interval_s: npt.ArrayLike,
    *,
    checkpoint_s: npt.ArrayLike,
    operators: npt.ArrayLike,
    delay_s: npt.ArrayLike,
    overlap: bool = True,
) -> Quantity:
    """(5): a DAG that never fails, a fraction.

    With overlap (T - c) / T, whatever the depth: (10) for λ towards 0. Without it the next interval waits for the
    token to reach the last operator: (T - c) / (T + (n - 1)δ).
    """
    cost = not_negative("checkpoint_s", checkpoint_s)
    period = interval("interval_s", interval_s, cost)
    flight = token_flight(operators, delay_s)
    return collapse(np.asarray((period - cost) / (period + (0.0 * flight if overlap else flight))))


def effective_period(
    interval_s: npt.ArrayLike,
    *,
    failures_per_s: npt.ArrayLike,
    restart_s: npt.ArrayLike = 0.0,
    operators: npt.ArrayLike = 1,
    delay_s: npt.ArrayLike = 0.0,
    overlap: bool = True,
) -> Quantity:
    """(6)-(9): mean seconds that one interval takes until its checkpoint counts, failures and restarts included.

    (e^(λT) - 1)/λ with failures only; times e^(λR) with restarts; in a DAG with overlap times e^(λ(n-1)δ) too,
    without overlap T + (n - 1)δ stands for T. Infinite where it exceeds the range of a double.
    """
    rate = positive("failures_per_s", failures_per_s)
    period = positive("interval_s", interval_s)
    restart = not_negative("restart_s", restart_s)
    flight = token_flight(operators, delay_s)
    exposed, held = (period, flight) if overlap else (period + flight, 0.0 * flight)
    with np.errstate(over="ignore"):
        return collapse(np.asarray(np.exp(rate * (restart + held)) * np.expm1(rate * exposed) / rate))


def utilization(
    interval_s: npt.ArrayLike,
    *,
    checkpoint_s: npt.ArrayLike,
    failures_per_s: npt.ArrayLike,
    restart_s: npt.ArrayLike = 0.0,
    operators: npt.ArrayLike = 1,
    delay_s: npt.ArrayLike = 0.0,
) -> Quantity:
    """(10), and (3) and (4) as its special cases: λ(T - c) / (e^(λ(R + (n-1)δ)) (e^(λT) - 1)), a fraction.

    `interval_s` T from one checkpoint to the next, `checkpoint_s` c of which the checkpoint takes, `failures_per_s`
    λ, `restart_s` R for detection and restart, `operators` n on the critical path, `delay_s` δ of the token between
    two of them. Written so that nothing overflows: 0 where the quotient is too small for a double.
    """
    rate = positive("failures_per_s", failures_per_s)
    cost = not_negative("checkpoint_s", checkpoint_s)
    period = interval("interval_s", interval_s, cost)
    restart = not_negative("restart_s", restart_s)
    down = rate * (restart + token_flight(operators, delay_s))
    survived = np.exp(-rate * period - down)
    return collapse(np.asarray(rate * (period - cost) * survived / -np.expm1(-rate * period)))


def token_flight(operators: npt.ArrayLike, delay_s: npt.ArrayLike) -> FloatArray:
    """(n - 1)δ: seconds that the checkpoint token needs from the first operator to the last."""
    depth = whole("operators", operators)
    return np.asarray((depth - 1.0) * not_negative("delay_s", delay_s))


# B_2k / (2k)! = -(-1)^k 2 ζ(2k) / (2π)^2k: scipy's zeta has all digits, its Bernoulli numbers have not.
_SERIES = tuple((-1.0) ** k * 2.0 * float(zeta(2 * k)) / (2.0 * pi) ** (2 * k) for k in range(1, 13))


def _mean_failed_share(exposure: FloatArray) -> FloatArray:
    """1/x - 1/(e^x - 1) for x > 0; below 1 by its series 1/2 - Σ B_2k x^(2k-1) / (2k)!."""
    small, large = np.minimum(exposure, 1.0), np.maximum(exposure, 1.0)
    # e^-x / (1 - e^-x) is 1 / (e^x - 1) without the overflow.
    closed = 1.0 / large + np.exp(-large) / np.expm1(-large)
    series = 0.5 + small * np.polynomial.polynomial.polyval(small * small, _SERIES)
    return np.where(exposure < 1.0, series, closed)
