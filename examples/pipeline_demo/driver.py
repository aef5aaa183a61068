"""The driver that is killed: runs the pipeline, and prints what it is doing as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time

from pyspark.sql import SparkSession

import spark_cec
from pipeline_demo.expected import expected, found
from pipeline_demo.purchases import declare
from purchases_demo.layout import Layout
from purchases_demo.reference import load_events

MASTER = "local-cluster[2,1,1024]"
"""Two executors of one core, as processes of their own."""

_LOOK_AGAIN_S = 0.5


def drive(layout: Layout) -> int:
    """Runs until all that was fed has come out, or a flow has failed for good."""
    # The agents of the executors are to find this package as this process does.
    paths = os.pathsep.join(path for path in sys.path if path)
    builder = (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.local.dir", str(layout.scratch))
        .config("spark.executorEnv.PYTHONPATH", paths)
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = spark_cec.configure(builder).getOrCreate()
    running = declare(layout.events, layout.root / "home", layout.root / "out").start(spark)
    while not running.is_over and not _is_done(layout):
        print(json.dumps(running.status().to_json()), flush=True)
        time.sleep(_LOOK_AGAIN_S)
    failed = running.stop().failed
    for flow in failed:
        print(f"flow {flow.name} has failed: {flow.error}", file=sys.stderr)
    spark.stop()
    return 1 if failed else 0


def _is_done(layout: Layout) -> bool:
    """Whether each sink has as many rows as it must have; which they are is looked at when all is over."""
    if not layout.fed.exists():
        return False
    wanted = expected(load_events(layout))
    return all(len(found(layout.root / "out", name)) >= len(rows) for name, rows in wanted.items())
