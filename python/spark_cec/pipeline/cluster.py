"""What Spark tells of its executors, and of the time that the tasks of its streaming queries have taken."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.capacity import Seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYNAMIC_KEY = "spark.dynamicAllocation.enabled"
_LOAD = "org.apache.spark.sql.cec.pipeline.ClusterLoad"


class Cluster:
    """The cluster of one application, from when this is made."""

    def __init__(self, spark: SparkSession) -> None:
        # Spark then asks for executors by the tasks that wait, and a stopped flow has no tasks.
        self.is_elastic = str(spark.conf.get(DYNAMIC_KEY, "false")).lower() == "true"
        context = spark.sparkContext
        load: Any = context._jvm
        for name in _LOAD.split("."):
            load = getattr(load, name)
        self._load = load.attach(context._jsc.sc())  # last, because a failure behind it would leave a listener

    def look(self, flow_of: Mapping[str, str]) -> Seen:
        """How it is now. `flow_of`: the flow of each query's id."""
        told = json.loads(self._load.look())
        spent = told["task_ms"]
        task_s = {flow: spent[query] / 1000 for query, flow in flow_of.items() if query in spent}
        return Seen(time.monotonic(), told["executors"], task_s)

    def precede(self, flow: str, others: bool) -> None:
        """Whether the flow's tasks get the next core before those of flows that were not told so."""
        self._load.precede(flow, others)

    def detach(self) -> None:
        """Looks no more."""
        self._load.detach()
