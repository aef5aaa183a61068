"""The same work three times: `python -m spark_cec_lab.bench.pipelines.chain_job SPEC` runs it one of three ways.

Events are parsed, repeated ones are dropped, which takes state, and what is left is filtered: as a pipeline of three
flows, as one query, or as three queries joined by Parquet files. One JSON line for each batch that leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cec_lab.bench.pipelines.driver import session_of
from spark_cec_lab.bench.pipelines.way_job import NewestQuery, WaySpec, look_at_flow, run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PARSED = "id BIGINT, created TIMESTAMP"


class Joined(str, Enum):
    """How the three steps are joined."""

    PIPELINE = "pipeline"
    ONE_QUERY = "one-query"
    PARQUET = "parquet"


def start(spec: WaySpec) -> NewestQuery:
    """Starts the way's queries, and answers a look at the last step's."""
    # What comes of a window comes at once: batches without data would only bring its end.
    spark = session_of({**spec.spark_conf(), "spark.sql.streaming.noDataMicroBatches.enabled": "false"})
    ways: dict[Joined, Callable[[SparkSession, WaySpec], NewestQuery]] = {
        Joined.PIPELINE: _pipeline, Joined.ONE_QUERY: _one_query, Joined.PARQUET: _by_parquet,
    }  # fmt: skip
    return ways[Joined(spec.way)](spark, spec)


def _parsed(spark: SparkSession, spec: WaySpec) -> DataFrame:
    """Each event twice in a hundred."""
    from pyspark.sql import functions as F  # noqa: N812

    if spec.rows_per_s is not None:
        stream = spark.readStream.format("rate").option("rowsPerSecond", str(spec.rows_per_s))
    else:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(spec.batch_rows))
    events = stream.option("numPartitions", "2").load().withColumnRenamed("timestamp", "created")
    repeated = F.when(F.col("value") % 50 == 1, F.col("value") - 1).otherwise(F.col("value"))
    return events.select(repeated.alias("id"), "created")


def _unique(parsed: DataFrame) -> DataFrame:
    return parsed.withWatermark("created", "5 seconds").dropDuplicatesWithinWatermark(["id"])


def _left(unique: DataFrame) -> DataStreamWriter:
    from pyspark.sql import functions as F  # noqa: N812

    left = unique.where("id % 10 != 3")
    created = F.avg(F.unix_millis("created")).alias("created")
    return left.observe("latency", created, F.count("*").alias("rows")).writeStream.format("noop")


def _pipeline(spark: SparkSession, spec: WaySpec) -> NewestQuery:
    from spark_cec.pipeline import Pipeline

    made = Pipeline("chain", f"{spec.home}/pipeline")

    @made.flow
    def parsed(spark: SparkSession) -> DataFrame:
        return _parsed(spark, spec)

    @made.flow
    def unique(parsed: DataFrame) -> DataFrame:
        return _unique(parsed)

    @made.sink
    def left(unique: DataFrame) -> DataStreamWriter:
        return _left(unique)

    return look_at_flow(made.start(spark), "left")


def _one_query(spark: SparkSession, spec: WaySpec) -> NewestQuery:
    query = _left(_unique(_parsed(spark, spec))).option("checkpointLocation", f"{spec.home}/one").start()
    return lambda: _alive([query])


def _by_parquet(spark: SparkSession, spec: WaySpec) -> NewestQuery:
    def stored(frame: DataFrame, name: str) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{spec.home}/{name}-checkpoint")
        return writer.start(f"{spec.home}/{name}")

    def read(name: str) -> DataFrame:
        place = Path(spec.home, name)
        place.mkdir(exist_ok=True)
        return spark.readStream.schema(_PARSED).parquet(str(place))

    queries = [stored(_parsed(spark, spec), "parsed"), stored(_unique(read("parsed")), "unique")]
    queries.append(_left(read("unique")).option("checkpointLocation", f"{spec.home}/left-checkpoint").start())
    return lambda: _alive(queries)


def _alive(queries: list[StreamingQuery]) -> StreamingQuery:
    for query in queries:
        if not query.isActive:
            raise query.exception() or RuntimeError("a query has ended by itself")
    return queries[-1]


if __name__ == "__main__":
    run_job(start)
