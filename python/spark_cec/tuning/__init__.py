"""How often to checkpoint: the utilization model, its optimum, and estimates from a query's own log."""

from __future__ import annotations

from spark_cec.tuning.advice import Advice, System, advise
from spark_cec.tuning.estimate import Commit, FailureRate, commit_figures, failure_rate
from spark_cec.tuning.inputs import ModelInputError
from spark_cec.tuning.model import (
    effective_period,
    mean_time_to_failure,
    utilization,
    utilization_dag_without_failure,
    utilization_with_failure,
    utilization_with_restart,
    utilization_without_failure,
)
from spark_cec.tuning.optimum import (
    checkpoint_cost,
    daly_interval,
    optimal_interval,
    optimal_utilization,
    young_interval,
    zhuang_interval,
)

__all__ = [
    "Advice",
    "Commit",
    "FailureRate",
    "ModelInputError",
    "System",
    "advise",
    "checkpoint_cost",
    "commit_figures",
    "daly_interval",
    "effective_period",
    "failure_rate",
    "mean_time_to_failure",
    "optimal_interval",
    "optimal_utilization",
    "utilization",
    "utilization_dag_without_failure",
    "utilization_with_failure",
    "utilization_with_restart",
    "utilization_without_failure",
    "young_interval",
    "zhuang_interval",
]
