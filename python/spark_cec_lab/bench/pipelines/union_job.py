"""Two flows into one: `python -m spark_cec_lab.bench.pipelines.union_job SPEC` reads them in one of three ways.

The flow counts the events of both by key, in windows of ten seconds. It reads them by buckets of a second, ready to
answer without an input that is away or not, or as they come. One JSON line for each of its batches.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from spark_cec_lab.bench.pipelines.driver import session_of
from spark_cec_lab.bench.pipelines.way_job import NewestQuery, WaySpec, look_at_flow, run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_cec.pipeline import Pipeline

_DELAY = "1 second"
_SPREAD_MS = 2_000


class Read(str, Enum):
    """How the flow reads the two others."""

    WITHIN = "within"
    BUCKETS = "buckets"
    PLAIN = "plain"


def start(spec: WaySpec) -> NewestQuery:
    """Starts the pipeline, and answers a look at the flow that reads both others."""
    return look_at_flow(_pipeline(spec).start(session_of(spec.spark_conf())), "counts")


def _events(spark: SparkSession, spec: WaySpec) -> DataFrame:
    """Events of up to two seconds before the time of their batch, so that a batch has rows of several buckets."""
    from pyspark.sql import functions as F  # noqa: N812

    if spec.rows_per_s is not None:
        stream = spark.readStream.format("rate").option("rowsPerSecond", str(spec.rows_per_s // 2))
        return stream.option("numPartitions", "1").load().selectExpr("value", "timestamp AS created", "timestamp AS t")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(spec.batch_rows))
    rows = stream.option("advanceMillisPerBatch", "1000").option("numPartitions", "1").load()
    back = F.expr(f"make_dt_interval(0, 0, 0, (value % {_SPREAD_MS}) / 1000)")
    return rows.select("value", F.col("timestamp").alias("created"), (F.col("timestamp") - back).alias("t"))


def _pipeline(spec: WaySpec) -> Pipeline:
    from pyspark.sql import functions as F  # noqa: N812

    from spark_cec.pipeline import Pipeline

    made = Pipeline("union", f"{spec.home}/pipeline")

    @made.flow
    def web(spark: SparkSession) -> DataFrame:
        return _events(spark, spec)

    @made.flow
    def app(spark: SparkSession) -> DataFrame:
        return _events(spark, spec)

    delay = _DELAY if spec.rows_per_s is None else "0 seconds"
    bucket = None if spec.way == Read.PLAIN.value else "1s"
    within = "30s" if spec.way == Read.WITHIN.value else None

    @made.flow(watermarks={"web": ("t", delay), "app": ("t", delay)}, bucket=bucket, within=within)
    def counts(web: DataFrame, app: DataFrame) -> DataFrame:
        created = F.avg(F.unix_millis("created")).alias("created")
        seen = web.unionByName(app).observe("latency", created, F.count("*").alias("rows"))
        keyed = seen.groupBy(F.window("t", "10 seconds"), F.col("value") % 1000)
        return keyed.count().select("window.start", "count")

    @made.sink(tentative=within is not None)
    def left(counts: DataFrame) -> DataStreamWriter:
        return counts.writeStream.format("noop")

    return made


if __name__ == "__main__":
    run_job(start)
