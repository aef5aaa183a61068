"""Pipelines: streaming queries joined by logs. Each query fails and recovers alone."""
from __future__ import annotations

from spark_cec.pipeline.capacity import RecoveryMode, RecoveryPolicy
from spark_cec.pipeline.changes import apply_changes
from spark_cec.pipeline.changes_table import ChangesError
from spark_cec.pipeline.outside import read_replicas
from spark_cec.pipeline.runnable import Pipeline

__all__ = ["ChangesError", "Pipeline", "RecoveryMode", "RecoveryPolicy", "apply_changes", "read_replicas"]
