"""The driver of the experiment's pipeline: `python -m spark_cec_lab.bench.pipelines.driver SPEC`.

One JSON line for each batch of a sink, with the latency of its rows, and one for each look at the capacity.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline import RecoveryMode, RecoveryPolicy
from spark_cec.settings import PREFIX
from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.pipelines.topology import WORK, WORK_CLASS, Load, topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOKS_EVERY_S = 0.5
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""So that JVMs of which there are many start quickly."""


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """Where the cluster is, and what runs there how. `jars` are ours and the one with `Work`."""

    master: str
    home: str
    scratch: str
    jars: tuple[str, ...]
    load: Load
    mode: RecoveryMode

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DriverSpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        fields["jars"] = tuple(fields["jars"])
        return cls(**{**fields, "load": Load(**fields["load"]), "mode": RecoveryMode(fields["mode"])})

    def spark_conf(self) -> dict[str, str]:
        """The whole Spark conf of the session."""
        return {
            "spark.master": self.master,
            "spark.jars": ",".join(self.jars),
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={self.scratch}"',
            "spark.local.dir": self.scratch,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.scheduler.mode": "FAIR",
            "spark.sql.session.timeZone": "UTC",
            # Executors are lost many at a time, and each loss may fail a task.
            "spark.task.maxFailures": "20",
            "spark.shuffle.io.retryWait": "1s",
            "spark.deploy.maxExecutorRetries": "-1",
            # What comes of a window comes at once: batches without data would only bring its end.
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            PREFIX + "mode": "eager",
        }


def run(spec: DriverSpec) -> None:
    """Runs the pipeline until the process ends."""
    from spark_cec.pipeline.start import start_pipeline

    spark = session_of(spec.spark_conf())
    spark._jsparkSession.udf().registerJava(WORK, WORK_CLASS, None)
    running = start_pipeline(topology(spec.home, spec.load), spark, recovery=RecoveryPolicy(spec.mode))
    told: dict[str, tuple[str, int]] = {}  # run and batch of each sink's newest line
    while not running.is_over:
        for name, query in running.queries().items():
            progress = query._jsq.lastProgress()
            if not name.startswith("q") or progress is None:
                continue
            now = str(progress.runId()), int(progress.batchId())
            if told.get(name) != now:
                told[name] = now
                found = observed_latency(json.loads(progress.json()))
                if found:
                    print(json.dumps({"sink": name, **found}), flush=True)
        status = running.status()
        states = {flow.name: flow.state.value for flow in status.flows}
        capacity = None if status.capacity is None else asdict(status.capacity)
        print(json.dumps({"at": time.time(), "states": states, "capacity": capacity}), flush=True)
        time.sleep(LOOKS_EVERY_S)
    failed = [f"{flow.name}: {flow.error}" for flow in running.status().failed]
    raise SystemExit(f"the pipeline has ended: {failed[:1]}")


def observed_latency(progress: dict[str, Any]) -> dict[str, Any] | None:
    """When a batch ended, seconds since the epoch, how many rows it had, and the mean time from when they came into
    being to its end; None without rows. The query observes `latency`: the mean `created` in ms, and `rows`.
    """
    observed = progress.get("observedMetrics", {}).get("latency")
    if not observed or not observed.get("rows"):
        return None
    begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
    end = begun + progress["durationMs"]["triggerExecution"] / 1000
    return {"at": end, "latency_s": end - float(observed["created"]) / 1000, "rows": int(observed["rows"])}


def settle(delay_s: Callable[[], float], for_s: float, pause: Callable[[], None]) -> None:
    """Returns once the delay has had no new least for so many seconds: what waited for the queries' start is read."""
    least, since = math.inf, time.monotonic()
    while time.monotonic() - since < for_s:
        pause()
        now = delay_s()
        if now < least:
            least, since = now, time.monotonic()


def session_of(conf: Mapping[str, str]) -> SparkSession:
    """A session with this conf."""
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run(DriverSpec.from_json(sys.argv[1]))
