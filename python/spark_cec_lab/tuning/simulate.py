"""A simulation of the process that the model describes, against which the model is checked.

It knows none of the model's formulas: it draws the moments of failure, and between two of them it counts the
checkpoints that become valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from spark_cec.tuning.inputs import FloatArray, interval, not_negative, positive, whole


@dataclass(frozen=True, slots=True)
class Simulation:
    """Utilization per run (fractions, shape: runs)."""

    utilization: FloatArray

    @property
    def mean(self) -> float:
        """Mean utilization over the runs."""
        return float(self.utilization.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of that mean."""
        return float(self.utilization.std(ddof=1) / sqrt(self.utilization.size))


def simulate(
    interval_s: float,
    *,
    checkpoint_s: float,
    failures_per_s: float,
    restart_s: float = 0.0,
    operators: int = 1,
    delay_s: float = 0.0,
    runs: int = 250,
    failures_per_run: int = 2000,
    seed: int,
) -> Simulation:
    """Simulate `runs` runs of `failures_per_run` / λ each; one operator is a single process, more are a DAG.

    Failures fall at random, also during a restart, which then begins again. After a restart intervals follow one
    another without a pause; the k-th checkpoint is valid when its token has left the last operator, k intervals and
    (operators - 1) delays after the restart. Work is interval minus checkpoint for every valid one.

    Arguments as in `model.utilization`, but single numbers. Raises `ModelInputError`.
    """
    rate = float(positive("failures_per_s", failures_per_s))
    cost = not_negative("checkpoint_s", checkpoint_s)
    period = float(interval("interval_s", interval_s, cost))
    restart = float(not_negative("restart_s", restart_s))
    flight = float((whole("operators", operators) - 1.0) * not_negative("delay_s", delay_s))
    count, failures = int(whole("runs", runs)), int(whole("failures_per_run", failures_per_run))
    begin, end = _stretches(np.random.default_rng(seed), count, failures, rate)
    # Every stretch but a run's first one begins with the restart that the failure before it made necessary.
    ready = begin + restart
    ready[:, 0] = 0.0
    valid = np.floor((end - ready - flight) / period).clip(min=0.0).sum(axis=1)
    return Simulation(valid * (period - float(cost)) * rate / failures)


def _stretches(rng: np.random.Generator, runs: int, failures: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Begin and end (shape: runs, stretches) of the time between two failures, cut off at the end of the run."""
    horizon = failures / rate
    # Ten standard deviations beyond the mean: the loop below is for the run that needs more all the same.
    columns = failures + ceil(10.0 * sqrt(failures)) + 1
    gaps = rng.exponential(1.0 / rate, (runs, columns))
    while gaps.sum(axis=1).min() < horizon:
        gaps = np.hstack([gaps, rng.exponential(1.0 / rate, (runs, columns))])
    end = np.minimum(np.cumsum(gaps, axis=1), horizon)
    begin = np.hstack([np.zeros((runs, 1)), end[:, :-1]])
    return begin, end
