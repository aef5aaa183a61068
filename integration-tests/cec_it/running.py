"""A pipeline that runs in the tests' own session, and what it has written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from cec_it.local import tasks_are_over
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.storage import Storage
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import FlowStatus
from spark_cec.pipeline.supervise import Patience
from spark_cec.protocols.records import read_records


@contextmanager
def running(
    pipeline: Pipeline, spark: SparkSession, patience: Patience | None = None, only: list[str] | None = None
) -> Iterator[RunningPipeline]:
    """Runs it, and stops it at the end; then nothing writes into its logs."""
    run = start_pipeline(pipeline, spark, patience or Patience(wait_s=0.1), only)
    try:
        yield run
    finally:
        run.stop()
        tasks_are_over(spark)


def flow_of(run: RunningPipeline, name: str) -> FlowStatus:
    """What a flow does now."""
    return next(flow for flow in run.status().flows if flow.name == name)


def own(root: Path, flow: str) -> Storage:
    """What is Spark CEC's of a flow's checkpoint, where the pipeline's home is `root/home`."""
    return open_storage(f"{root}/home/flows/{flow}/cec")


def checkpoints(root: Path, flow: str, *inputs: str) -> int:
    """The number of the newest checkpoint that a protocol has taken of a flow."""
    return read_records(own(root, flow), flow, inputs).newest.checkpoint.number


def runs_with_stores(spark: SparkSession, root: Path, flow: str) -> set[int]:
    """The runs of a flow, by their generations, of which this session's JVM has stores."""
    jvm = spark._jvm
    assert jvm is not None
    host = jvm.org.apache.spark.util.Utils.classForName("org.apache.spark.sql.cec.exchange.LocalStores$", True, False)
    field = host.getDeclaredField("stores")
    field.setAccessible(True)
    stores = list(field.get(None).keySet().toArray())
    return {each.generation().get() for each in stores if each.checkpoint().endswith(f"{root}/home/flows/{flow}")}


def kill_agent(root: Path, flow: str) -> None:
    """The process that keeps the flow's log, and the others' of its session."""
    pid = int((root / "home/flows" / flow / "cec/lock").read_text().split()[0])
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)
