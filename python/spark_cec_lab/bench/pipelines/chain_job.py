"""The same work three times: `python -m spark_cec_lab.bench.pipelines.chain_job SPEC` runs it one of three ways.

Events are parsed, repeated ones are dropped, which takes state, and what is left is filtered: as a pipeline of three
flows, as one query, or as three queries joined by Parquet files. One JSON line for each batch that leaves it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec.settings import PROVIDER, PROVIDER_KEY
from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.pipelines.driver import observed_latency, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK_AGAIN_S = 0.02
_PARSED = "id BIGINT, created TIMESTAMP"


class Joined(str, Enum):
    """How the three steps are joined."""

    PIPELINE = "pipeline"
    ONE_QUERY = "one-query"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """What to run below `home`. `rows_per_s`: of a source that follows the clock; None: all that can be had, in batches
    of `batch_rows`.
    """

    joined: Joined
    home: str
    jar: str
    memory: str
    rows_per_s: int | None
    batch_rows: int

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChainSpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "joined": Joined(fields["joined"])})

    def spark_conf(self) -> dict[str, str]:
        """The whole Spark conf of the session."""
        return {
            "spark.master": "local[2]",
            "spark.jars": self.jar,
            "spark.driver.memory": self.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={self.home}"',
            "spark.local.dir": self.home,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.scheduler.mode": "FAIR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.pollingDelay": "100ms",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            PROVIDER_KEY: PROVIDER,
        }


def run(spec: ChainSpec) -> None:
    """Runs until the process ends, saying of each batch of the last step when it ended and what it had."""
    spark = session_of(spec.spark_conf())
    last_query = {Joined.PIPELINE: _pipeline, Joined.ONE_QUERY: _one_query, Joined.PARQUET: _by_parquet}[spec.joined]
    newest = last_query(spark, spec)
    told = -1
    while True:
        query = newest()
        progress = None if query is None else query._jsq.lastProgress()
        if progress is not None and progress.batchId() != told:
            told = progress.batchId()
            found = observed_latency(json.loads(progress.json()))
            if found:
                print(json.dumps(found), flush=True)
        time.sleep(_LOOK_AGAIN_S)


def _parsed(spark: SparkSession, spec: ChainSpec) -> DataFrame:
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


def _pipeline(spark: SparkSession, spec: ChainSpec) -> Any:
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

    running = made.start(spark)

    def newest() -> StreamingQuery | None:
        for flow in running.status().failed:
            raise SystemExit(f"flow {flow.name}: {flow.error}")
        return running.queries().get("left")

    return newest


def _one_query(spark: SparkSession, spec: ChainSpec) -> Any:
    query = _left(_unique(_parsed(spark, spec))).option("checkpointLocation", f"{spec.home}/one").start()
    return lambda: _alive([query])


def _by_parquet(spark: SparkSession, spec: ChainSpec) -> Any:
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
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run(ChainSpec.from_json(sys.argv[1]))
