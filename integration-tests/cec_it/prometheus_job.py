"""A query whose metrics are asked for by HTTP: while it runs, while a replay of it runs, and when it has ended.

Another query, whose name begins with that of the first one, runs until then. `python prometheus_job.py DIRECTORY`
prints one JSON object with the pages.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import spark_cec

CEC = "spark.sql.streaming.stateStore.cec."
BATCHES = 5


def main(root: Path) -> None:
    """Run, stop as a crash would, start again with a function that waits in the replay."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(root)
    pages = {}
    feed(root, BATCHES)
    query, late = start(spark, root, "clicks"), start(spark, root, "clicks_late")
    query.processAllAvailable()
    late.processAllAvailable()
    pages["running"] = page(spark)
    query.stop()
    pages["stopped"] = page(spark)
    query = start(spark, root, "clicks", waits=root / "gate")
    watch(root / "arrived", query)
    pages["replaying"] = page(spark)
    (root / "gate").touch()
    feed(root, 1)
    query.processAllAvailable()
    query.stop()
    late.stop()
    pages["ended"] = page(spark)
    spark.stop()
    print(json.dumps(pages))


def session(root: Path) -> SparkSession:
    """With a user interface on a free port, and a log that only openings go to."""
    builder = spark_cec.configure(SparkSession.builder.master("local[2]"))
    confs = {
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.metrics.namespace": "spark",
        "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
        f"{CEC}CI": "0ms",
        f"{CEC}stop.flush": "off",
        f"{CEC}index.path": str(root / "index"),
    }
    for key, value in confs.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def start(spark: SparkSession, root: Path, name: str, waits: Path | None = None) -> StreamingQuery:
    """Counts by key, a batch for each file."""
    rows = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1).json(str(root / "source"))
    keys = rows.select((f.col("value") % 7).alias("key"))
    if waits is not None:
        keys = keys.select(waiting(waits, root / "arrived")("key").alias("key"))
    counts = keys.groupBy("key").count()
    writer = counts.writeStream.outputMode("update").queryName(name).foreachBatch(nothing)
    place = str(root / f"check-{name}")
    return writer.option("checkpointLocation", place).trigger(processingTime="200 milliseconds").start()


def feed(root: Path, files: int) -> None:
    """More files, each of the same rows."""
    source = root / "source"
    source.mkdir(exist_ok=True)
    for _ in range(files):
        done = source / f".{len(list(source.iterdir()))}"
        done.write_text("".join(f'{{"value": {row}}}\n' for row in range(70)))
        done.rename(source / f"{done.name[1:]}.json")


def waiting(gate: Path, arrived: Path) -> object:
    """The same key, once the gate is there."""

    @f.udf("long")
    def same(key: int) -> int:
        import time

        arrived.touch()
        while not gate.exists():
            time.sleep(0.02)
        return key

    return same


def nothing(frame: DataFrame, batch: int) -> None:
    """A sink that looks at all rows."""
    frame.collect()


def watch(path: Path, query: StreamingQuery) -> None:
    """Waits until a file is there."""
    while not path.exists():
        assert not query.awaitTermination(0.05), query.exception()


def page(spark: SparkSession) -> str:
    """What Prometheus would read."""
    url = f"{spark.sparkContext.uiWebUrl}/metrics/prometheus"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
