"""Reads from Spark the executors of an application, and the task time of its streaming queries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.adapters.hadoop_settings import use_settings
from spark_cec.pipeline.capacity import ClusterLook
from spark_cec.pipeline.declare import FlowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYNAMIC_KEY = "spark.dynamicAllocation.enabled"
_LOAD = "org.apache.spark.sql.cec.pipeline.ClusterLoad"
_STORAGE = "org.apache.spark.sql.cec.agent.StorageSettings"


def use_storage_settings(spark: SparkSession) -> None:
    """Makes Spark's settings of object stores and HDFS those of this process, which opens the pipeline's home.

    Raises `FlowError` if the session lacks our jar.
    """
    found: Any = spark.sparkContext._jvm
    for name in _STORAGE.split("."):
        found = getattr(found, name)
    if type(found).__name__ == "JavaPackage":  # Py4J takes an unknown class for a package
        raise FlowError(
            "the Spark session lacks the jar of Spark CEC: make it with spark_cec.configure(builder), or give --jars"
        )
    use_settings(json.loads(found.json()))


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
