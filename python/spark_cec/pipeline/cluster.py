"""Reads from Spark the executors of an application, and the task time of its streaming queries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.capacity import ClusterLook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYNAMIC_KEY = "spark.dynamicAllocation.enabled"
_LOAD = "org.apache.spark.sql.cec.pipeline.ClusterLoad"


class Cluster:
    """The cluster of one application; counts task time from the moment that this is made."""

    def __init__(self, spark: SparkSession) -> None:
        # Spark then asks for executors by the tasks that wait, and a stopped flow has no tasks.
        self.is_elastic = str(spark.conf.get(DYNAMIC_KEY, "false")).lower() == "true"
        context = spark.sparkContext
        load: Any = context._jvm
        for name in _LOAD.split("."):
            load = getattr(load, name)
        self._load = load.attach(context._jsc.sc())  # last, because a failure behind it would leave a listener

    def look(self, flow_of: Mapping[str, str]) -> ClusterLook:
        """Looks at the cluster now. `flow_of`: the flow of each query's id."""
        found = json.loads(self._load.look())
        spent = found["task_ms"]
        task_s = {flow: spent[query] / 1000 for query, flow in flow_of.items() if query in spent}
        return ClusterLook(time.monotonic(), found["executors"], task_s)

    def precede(self, flow: str, others: bool) -> None:
        """Sets whether tasks of this flow get the next core before tasks of other flows."""
        self._load.precede(flow, others)

    def detach(self) -> None:
        """Removes the listener from the application."""
        self._load.detach()
