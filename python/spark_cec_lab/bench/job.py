"""The measured process: one Spark session, one query, one JSON line on standard output for each batch.

`python -m spark_cec_lab.bench.job SPEC`, with a `JobSpec` as JSON. It ends when the query has finished the last
batch, or at once when its standard input closes: then the process that started it is gone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.providers import Provider, conf_of
from spark_cec_lab.bench.workloads import Shape, Workload, output_mode, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run. `last_batch` is the id of the batch after which it ends; None: never by itself.

    `scratch` is a directory for all temporary files, `memory` the JVM's, such as 8g; `conf` overrides everything else.
    """

    provider: Provider
    workload: Workload
    checkpoint: str
    scratch: str
    jar: str
    memory: str
    java_options: str
    conf: tuple[tuple[str, str], ...]
    last_batch: int | None

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        workload = {**fields["workload"], "shape": Shape(fields["workload"]["shape"])}
        return cls(**{
            **fields,
            "provider": Provider(fields["provider"]),
            "workload": Workload(**workload),
            "conf": tuple((key, value) for key, value in fields["conf"]),
        })  # fmt: skip

    def spark_conf(self) -> dict[str, str]:
        """The whole Spark conf of the session."""
        return {
            "spark.master": "local[2]",
            "spark.driver.memory": self.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={self.scratch}" {self.java_options}'.strip(),
            "spark.local.dir": self.scratch,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(self.workload.partitions),
            **conf_of(self.provider, self.jar),
            **dict(self.conf),
        }


def run(spec: JobSpec) -> None:
    """Run the query to its last batch, saying how each batch went. Raises what ended the query, if anything did."""
    spark = _session(spec)
    rows = query(spark, spec.workload, stateless=spec.provider is Provider.STATELESS)
    writer = rows.writeStream.format("noop").outputMode(output_mode(spec.workload))
    url = spark.sparkContext.uiWebUrl
    begun = time.monotonic()
    running = writer.option("checkpointLocation", spec.checkpoint).start()
    last = -1
    while spec.last_batch is None or last < spec.last_batch:
        progress = _next_progress(running, last)
        last = int(progress["batchId"])
        _say({**facts_of(progress), "since_start_s": time.monotonic() - begun, "gc_ms": _gc_ms(spark), "ui": url})
    running.stop()
    spark.stop()


def facts_of(progress: dict[str, Any]) -> dict[str, Any]:
    """What the measurement needs of a query's progress, sums over its operators; times in ms."""
    states = progress["stateOperators"]
    names = {name for state in states for name in state.get("customMetrics", {}) if name.startswith("cec")}
    lifetime = progress.get("observedMetrics", {}).get("windows", {}).get("lifetime")
    return {
        "batch": int(progress["batchId"]),
        "batch_ms": int(progress["durationMs"]["triggerExecution"]),
        "input_rows": int(progress["numInputRows"]),
        "state_rows": sum(int(state["numRowsTotal"]) for state in states),
        "metrics": {
            "updateMs": sum(state["allUpdatesTimeMs"] for state in states),
            "removeMs": sum(state["allRemovalsTimeMs"] for state in states),
            "commitMs": sum(state["commitTimeMs"] for state in states),
            **{name: sum(state["customMetrics"].get(name, 0) for state in states) for name in sorted(names)},
        },
        **({"lifetime_batches": lifetime} if lifetime is not None else {}),
    }


def _session(spec: JobSpec) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    for key, value in spec.spark_conf().items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _next_progress(running: StreamingQuery, last: int) -> dict[str, Any]:
    """The progress of the first batch that ends after batch `last`, at most 20 ms after it has ended."""
    while True:
        # The id alone is cheap to ask for; the whole progress is JSON.
        known = running._jsq.lastProgress()
        if known is not None and known.batchId() != last:
            progress: dict[str, Any] = json.loads(known.json())
            if progress["durationMs"].get("addBatch") is not None:
                return progress
        if not running.isActive:
            raise running.exception() or RuntimeError("the query has ended by itself")
        time.sleep(_LOOK_AGAIN_S)


def _gc_ms(spark: SparkSession) -> int:
    """Time that the JVM has spent in garbage collections so far, in ms."""
    jvm: Any = spark.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    return sum(int(beans.get(i).getCollectionTime()) for i in range(beans.size()))


def _say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run(JobSpec.from_json(sys.argv[1]))
