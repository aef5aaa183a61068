"""Two replicas read the same rows of Kafka, wherever the broker was when each of them began."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.local import eventually, tasks_are_over
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.supervise import Patience
from testbed.broker import Broker
from testbed.topics import Topics

BEGIN_S = 1_700_000_000
PARTITIONS = 3
Windows = Counter[tuple[int, int]]


class Table:
    """What the sink has written; a batch that comes again replaces the first one."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Row]] = {}

    def take(self, rows: DataFrame, batch: int) -> None:
        """For `foreachBatch`."""
        self._batches[batch] = rows.collect()

    def windows(self) -> Windows:
        """The rows, by the second after the begin at which a window ends."""
        rows = [row for each in self._batches.values() for row in each]
        return Counter((round(row.time.timestamp() + 1e-6) - BEGIN_S, row.n) for row in rows)


def per_window(root: Path, table: Table, address: str, topic: str) -> Pipeline:
    """A topic, read from its newest row on -> counts of windows of ten seconds."""
    made = Pipeline("shop", f"{root}/home")

    @made.flow(trigger={"processingTime": "500 milliseconds"})
    def rows(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        read = reader.option("subscribe", topic).option("startingOffsets", "latest").load()
        return read.select(f.timestamp_seconds(f.expr("CAST(CAST(value AS STRING) AS BIGINT)")).alias("time"))

    @made.flow(partitions=2, bucket="1s", watermarks={"rows": ("time", "1 second")})
    def totals(rows: DataFrame) -> DataFrame:
        counts = rows.groupBy(f.window("time", "10 seconds").alias("w")).agg(f.count("*").alias("n"))
        return counts.select(f.window_time("w").alias("time"), "n")

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def board(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(table.take)

    return made


def put(topics: Topics, topic: str, *seconds: int) -> None:
    """A row in each partition for each of these seconds after the begin."""
    rows = [(number, b"", str(BEGIN_S + second).encode()) for second in seconds for number in range(PARTITIONS)]
    topics.produce(topic, rows)


def has_begun(root: Path, replica: str) -> bool | None:
    """Whether a replica has run the first batch of its source flow."""
    return (root / f"home/replicas/{replica}/flows/rows/commits/0").exists() or None


def test_replicas_begin_where_the_first_one_did(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    table, runs = Table(), dict[str, RunningPipeline]()
    topics.create(topic, PARTITIONS)
    put(topics, topic, 1)  # before the newest row: it does not count
    with ExitStack() as stack:
        stack.callback(tasks_are_over, spark)

        def begin(name: str) -> None:
            made = per_window(tmp_path, table, broker.address, topic)
            runs[name] = start_pipeline(made, spark, Patience(wait_s=0.1), replica=name)
            stack.callback(runs[name].stop)

        def shows(*windows: tuple[int, int]) -> None:
            right: Windows = Counter(windows)
            eventually(lambda: table.windows() == right or None, lambda: f"{right}, not {table.windows()}")

        begin("a")
        eventually(lambda: has_begun(tmp_path, "a"), "replica a has begun")
        put(topics, topic, 2, 5, 12)
        shows((10, 6))
        put(topics, topic, 3)  # late in each replica
        begin("b")
        eventually(lambda: has_begun(tmp_path, "b"), "replica b has begun")
        put(topics, topic, 13, 25)
        shows((10, 6), (20, 6))
        runs["a"].stop()
        put(topics, topic, 14, 26, 38)  # one is late
        shows((10, 6), (20, 6), (30, 6))
        begin("a")
        put(topics, topic, 39, 50)
        shows((10, 6), (20, 6), (30, 6), (40, 6))
        runs["b"].stop()
        put(topics, topic, 51, 65)
        shows((10, 6), (20, 6), (30, 6), (40, 6), (60, 6))
    late = {
        name: sorted(row.time.timestamp() - BEGIN_S for row in late_rows(spark, tmp_path, name)) for name in runs
    }
    assert late["a"][:PARTITIONS] == late["b"][:PARTITIONS] == [3.0] * PARTITIONS


def late_rows(spark: SparkSession, root: Path, replica: str) -> list[Row]:
    """The rows that a replica has kept aside."""
    channel = f"{root}/home/replicas/{replica}/flows/rows"
    return spark.read.format("cec").option("view", "late").option("reader", "totals").load(channel).collect()
