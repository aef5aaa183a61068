"""The driver of a pipeline that is killed: runs one of `cec_it.pipelines` until its sink has all rows.

`python -m cec_it.pipeline_driver CASE ROOT MASTER [FILL [PROTOCOL RELEASE]]`. Prints its status as JSON lines, and
{"done": true} at the end. FILL is the share of the cores that flows may keep busy in a recovery.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import AnalysisException

from cec_it.driver import session_builder
from cec_it.local import eventually
from cec_it.pipelines import CASES
from spark_cec.pipeline import RecoveryPolicy
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.supervise import Patience

LOOK_AGAIN_S = 0.25
INTERVAL_S = 1.5
PATIENCE = Patience(most=5, window_s=600.0, wait_s=1.0)


def rows_in(spark: SparkSession, out: Path) -> int:
    """How many different rows the sink has, or, where it has a log, all of them; 0 before its first batch."""
    try:
        rows = spark.read.parquet(str(out))
        return rows.count() if (out / "_spark_metadata").exists() else rows.distinct().count()
    except AnalysisException:
        return 0


def _share(spark: SparkSession, flow: str) -> int | None:
    """The least share of a flow's pool: 1 when it is not behind."""
    pool: Any = spark.sparkContext._jsc.sc().getPoolForName(flow)  # type: ignore[union-attr]
    return int(pool.get().minShare()) if pool.isDefined() else None


def _tell(running: RunningPipeline, ended: threading.Event) -> None:
    """How it stands, also while a count of the rows waits for a core; once more at the end."""
    more = True
    while more:
        more = not ended.wait(LOOK_AGAIN_S)
        print(json.dumps(running.status().to_json()), flush=True)


def _recovers(running: RunningPipeline) -> bool:
    """Whether flows may wait for executors: all rows may be there before these are."""
    capacity = running.status().capacity
    return capacity is not None and capacity.recovering_s is not None


def main(name: str, root: Path, master: str, fill: float, protocol: str = "cec", release: str = "checkpoint") -> int:
    """Entry point."""
    case = CASES[name]
    expected = case.expected(root / "in").total()
    builder = session_builder(root / "scratch", master).config("spark.scheduler.mode", "FAIR")
    conf = json.loads(os.environ.get("CEC_CONF", "{}"))
    place = {"home": conf.pop("cec.test.home")} if "cec.test.home" in conf else {}
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).getOrCreate()
    pipeline = case.declare(str(root), **place, protocol=protocol, release=release, checkpoint_interval=INTERVAL_S)
    running = start_pipeline(pipeline, spark, PATIENCE, recovery=RecoveryPolicy(fill=fill))
    ended = threading.Event()
    telling = threading.Thread(target=_tell, args=(running, ended), daemon=True)
    telling.start()
    while not running.is_over and (rows_in(spark, root / "out") < expected or _recovers(running)):
        time.sleep(LOOK_AGAIN_S)
    ended.set()
    telling.join()
    eventually(
        lambda: True if running.is_over or all(_share(spark, name) == 1 for name in pipeline.flows) else None,
        "no flow is behind",
    )
    status = running.stop()
    print(json.dumps({"done": not status.failed, "flows": status.to_json()["flows"]}), flush=True)
    return 1 if status.failed else 0


if __name__ == "__main__":
    code = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float((sys.argv[4:] or ["0.9"])[0]), *sys.argv[5:])
    sys.stdout.flush()
    os._exit(code)
