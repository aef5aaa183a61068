"""What the model says about one system: its best interval, and what the present one costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from spark_cec.tuning.inputs import Quantity
from spark_cec.tuning.model import utilization
from spark_cec.tuning.optimum import optimal_interval


@dataclass(frozen=True, slots=True)
class System:
    """The five numbers of the model: λ per second, c, R and δ in seconds, and n."""

    failures_per_s: float
    checkpoint_s: float
    restart_s: float = 0.0
    operators: int = 1
    delay_s: float = 0.0

    def utilization(self, interval_s: npt.ArrayLike) -> Quantity:
        """Utilization (10) of this system at the given intervals (seconds), a fraction."""
        return utilization(
            interval_s,
            checkpoint_s=self.checkpoint_s,
            failures_per_s=self.failures_per_s,
            restart_s=self.restart_s,
            operators=self.operators,
            delay_s=self.delay_s,
        )

    def optimal_interval(self) -> float:
        """T* in seconds."""
        return float(optimal_interval(checkpoint_s=self.checkpoint_s, failures_per_s=self.failures_per_s))


@dataclass(frozen=True, slots=True)
class Advice:
    """T* and U(T*) of a system; the same for the present interval where there is one, else None. Seconds, fractions."""

    system: System
    best_interval_s: float
    best_utilization: float
    present_interval_s: float | None
    present_utilization: float | None

    @property
    def lost(self) -> float | None:
        """Utilization that the present interval gives away against T*: a fraction of all time."""
        return None if self.present_utilization is None else self.best_utilization - self.present_utilization

    @property
    def checkpoint_share(self) -> float:
        """c/T*: the share of time for checkpoints, which is what CI/CP says."""
        return self.system.checkpoint_s / self.best_interval_s


def advise(system: System, present_interval_s: float | None = None) -> Advice:
    """The model's advice for `system`. Raises `ModelInputError` for a system or an interval that cannot be."""
    best = system.optimal_interval()
    present = None if present_interval_s is None else float(system.utilization(present_interval_s))
    return Advice(system, best, float(system.utilization(best)), present_interval_s, present)
