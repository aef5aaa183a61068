"""Two replicas read the same rows of Kafka, wherever the broker was when each of them began."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.board import Table
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


def windows_of(table: Table) -> Windows:
    """The rows, by the second after the begin at which a window ends."""
    return Counter((round(row.time.timestamp() + 1e-6) - BEGIN_S, row.n) for row in table.rows())


def per_window(root: Path, table: Table, address: str, topic: str) -> Pipeline:
    """A topic, read from its newest row on -> counts of windows of ten seconds."""
    made = Pipeline("shop", f"{root}/home")

    @made.flow(kept=True, trigger={"processingTime": "200 milliseconds"})
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


def put_rows(topics: Topics, topic: str, second: int) -> None:
    """A row in each partition, of so many seconds after the begin."""
    topics.produce(topic, [(number, b"", str(BEGIN_S + second).encode()) for number in range(PARTITIONS)])


def has_rows_of(spark: SparkSession, root: Path, replica: str, second: int) -> bool | None:
    """Whether the channel of a source flow has all rows of a second."""
    rows = spark.read.format("cec").load(f"{root}/home/replicas/{replica}/flows/rows").collect()
    return sum(row.time.timestamp() == BEGIN_S + second for row in rows) == PARTITIONS or None


def has_begun(root: Path, replica: str) -> bool | None:
    """Whether a replica has run the first batch of its source flow."""
    return (root / f"home/replicas/{replica}/flows/rows/commits/0").exists() or None


def test_replicas_begin_where_the_first_one_did(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    table, runs = Table(), dict[str, RunningPipeline]()
    topics.create(topic, PARTITIONS)
    put_rows(topics, topic, 1)  # before the newest row: it does not count
    with ExitStack() as stack:
        stack.callback(tasks_are_over, spark)

        def begin(name: str) -> None:
            made = per_window(tmp_path, table, broker.address, topic)
            runs[name] = start_pipeline(made, spark, Patience(wait_s=0.1), replica=name)
            stack.callback(runs[name].stop)

        def shows(*windows: tuple[int, int]) -> None:
            right: Windows = Counter(windows)
            eventually(lambda: windows_of(table) == right or None, lambda: f"{right}, not {windows_of(table)}")

        def put(*seconds: int) -> None:
            """Rows of these seconds, each in a later batch than the one before. So earlier rows may make it late."""
            living = next(name for name, run in runs.items() if not run.is_over)
            for second in seconds:
                put_rows(topics, topic, second)
                look = partial(has_rows_of, spark, tmp_path, living, second)
                eventually(look, f"{second} s in replica {living}")

        begin("a")
        eventually(lambda: has_begun(tmp_path, "a"), "replica a has begun")
        put(2, 5, 12)
        shows((10, 6))
        put(3)  # late in each replica
        begin("b")
        eventually(lambda: has_begun(tmp_path, "b"), "replica b has begun")
        put(13, 25)
        shows((10, 6), (20, 6))
        runs["a"].stop()
        put(14, 26, 38)  # the first one is late
        shows((10, 6), (20, 6), (30, 6))
        begin("a")
        put(39, 50)
        shows((10, 6), (20, 6), (30, 6), (40, 6))
        runs["b"].stop()
        put(51, 65)
        shows((10, 6), (20, 6), (30, 6), (40, 6), (60, 6))
    late = [sorted(row.time.timestamp() - BEGIN_S for row in late_rows(spark, tmp_path, name)) for name in "ab"]
    assert late[0] == [3.0] * PARTITIONS + [14.0] * PARTITIONS
    assert late[1] == late[0]


def late_rows(spark: SparkSession, root: Path, replica: str) -> list[Row]:
    """The rows that a replica has kept aside."""
    channel = f"{root}/home/replicas/{replica}/flows/rows"
    return spark.read.format("cec").option("view", "late").option("reader", "totals").load(channel).collect()
