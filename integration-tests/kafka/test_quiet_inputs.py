"""Inputs that have no more rows: the clock moves their watermarks (`sources.quiet`), and windows close."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import spark_cec
from cec_it import local
from testbed.broker import Broker
from testbed.topics import Topics

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

Key = tuple[str, int]
"""A topic, and the second in which its window begins."""


class Query:
    """Rows of two topics in windows of a second, by the time at which Kafka got them."""

    def __init__(self, spark: SparkSession, broker: Broker, names: tuple[str, str], checkpoint: Path) -> None:
        self.spark, self.broker, self.names, self.checkpoint = spark, broker, names, checkpoint
        self.batches: dict[int, dict[Key, int]] = {}
        self.conf: dict[str, str] = {}

    @property
    def closed(self) -> dict[Key, int]:
        """The rows of each window that was given out; it must come once."""
        found: dict[Key, int] = {}
        for rows in self.batches.values():
            assert not found.keys() & rows.keys(), "a window came twice"
            found |= rows
        return found

    def read(self, session: SparkSession, name: str, **options: str) -> DataFrame:
        reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker.address)
        reader = reader.option("subscribe", name).option("startingOffsets", "earliest").options(**options)
        return reader.load().select("topic", "timestamp").withWatermark("timestamp", "1 second")

    def keep(self, frame: DataFrame, batch: int) -> None:
        rows = {(row["topic"], int(row["begin"].timestamp())): row["rows"] for row in frame.collect()}
        assert self.batches.setdefault(batch, rows) == rows, f"batch {batch} came twice, with other rows"

    @contextmanager
    def running(self, quiet: str, **options: str) -> Iterator[StreamingQuery]:
        session = local.session(self.spark, {**local.OPENINGS_ONLY, "sources.quiet": quiet, **self.conf})
        both = self.read(session, self.names[0], **options).unionByName(self.read(session, self.names[1], **options))
        counts = both.groupBy("topic", f.window("timestamp", "1 second")).agg(f.count("*").alias("rows"))
        writer = counts.select("topic", f.col("window.start").alias("begin"), "rows").writeStream
        query = writer.foreachBatch(self.keep).option("checkpointLocation", str(self.checkpoint)).start()
        try:
            yield query
        finally:
            query.stop()

    def wait_for(self, wanted: Counter[Key], query: StreamingQuery) -> None:
        def look() -> bool | None:
            assert query.exception() is None, query.exception()
            return True if self.closed == dict(wanted) else None

        try:
            local.eventually(look, "every window")
        except AssertionError:
            assert self.closed == dict(wanted)
            raise

    def wait_for_steps(self, count: int, query: StreamingQuery) -> None:
        """Wait until the clock has moved the watermark of a query without new rows so many times."""
        seen: set[str] = set()

        def look() -> bool | None:
            assert query.exception() is None, query.exception()
            progress = query.lastProgress
            assert progress is not None
            seen.add(progress["eventTime"].get("watermark", ""))
            return True if len(seen) > count else None

        local.eventually(look, f"{count} steps of the watermark")


class Reader(Query):
    """The same of two channels: each is the output of a query without state, which reads one of the topics."""

    def channel(self, name: str) -> Path:
        return self.checkpoint.with_name(f"{self.checkpoint.name}-{name}")

    def write(self, session: SparkSession, name: str, **options: str) -> StreamingQuery:
        read = super().read(session, name, **options).where("topic IS NOT NULL")
        return read.writeStream.format("cec").option("checkpointLocation", str(self.channel(name))).start()

    def read(self, session: SparkSession, name: str, **options: str) -> DataFrame:
        reader = session.readStream.format("cec").options(waitForLog=True, newColumns=True, reader="counts")
        stream = reader.schema("topic STRING, timestamp TIMESTAMP").load(str(self.channel(name)))
        return stream.withWatermark("timestamp", "1 second")

    @contextmanager
    def running(self, quiet: str, **options: str) -> Iterator[StreamingQuery]:
        session = local.session(self.spark, {"sources.quiet": self.said_by_writers or quiet})
        writers = [self.write(session, name, **options) for name in self.names]
        try:
            with super().running(quiet) as query:
                yield query
        finally:
            for writer in writers:
                writer.stop()

    said_by_writers = ""
    """The writers' setting, if it is not the reader's."""


def wait_for_rows(count: int, query: StreamingQuery) -> None:
    """Wait until a query has read so many rows."""

    def look() -> bool | None:
        assert query.exception() is None, query.exception()
        return True if sum(progress["numInputRows"] for progress in query.recentProgress) >= count else None

    local.eventually(look, f"{count} rows were read")


def count_rows(broker: Broker, topics: Topics, names: tuple[str, ...]) -> Counter[Key]:
    """The rows of each window, by a reader that has nothing to do with Spark."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "count", "enable.auto.commit": False})
    counts: Counter[Key] = Counter()
    try:
        for name in names:
            for partition, (first, end) in topics.ends(name).items():
                consumer.assign([TopicPartition(name, partition, first)])
                for _ in range(end - first):
                    message = consumer.poll(30)
                    assert message is not None and message.error() is None
                    counts[name, message.timestamp()[1] // 1000] += 1
    finally:
        consumer.close()
    return counts


@pytest.fixture(params=[Query, Reader], ids=["topics", "channels"])
def query(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> Query:
    names = (f"{topic}-web", f"{topic}-app")
    for name in names:
        topics.create(name, 2, message_timestamp_type="LogAppendTime")
    made: Query = request.param(spark, broker, names, tmp_path / "query")
    return made


def feed(topics: Topics, name: str, rows: int) -> None:
    topics.produce(name, [(number % 2, b"", b"") for number in range(rows)])


def test_a_quiet_topic_holds_no_window_open_and_the_last_one_closes_too(
    query: Query, broker: Broker, topics: Topics
) -> None:
    """Over a restart that replays; one topic has rows at the begin alone."""
    web, app = query.names
    feed(topics, app, 3)
    for quiet in ("200ms", "1500ms"):  # batches are longer than one step, and shorter than the other
        with query.running(quiet) as running:
            for _ in range(3):
                feed(topics, web, 5)
                time.sleep(0.4)  # rows of several windows: their time is Kafka's
            query.wait_for(count_rows(broker, topics, query.names), running)
            query.wait_for_steps(3, running)


def test_without_it_a_quiet_topic_holds_all_windows_open(query: Query, broker: Broker, topics: Topics) -> None:
    web, app = query.names
    feed(topics, app, 1)
    with query.running("hold") as running:
        for _ in range(3):
            feed(topics, web, 5)
            running.processAllAvailable()
            time.sleep(1.1)  # the next rows are of another window
        running.processAllAvailable()
        assert not any(key[0] == web for key in query.closed)


def test_a_topic_with_rows_that_no_batch_has_read_is_not_quiet(query: Query, broker: Broker, topics: Topics) -> None:
    """A batch reads one row, and many wait: none may come late."""
    web, app = query.names
    for _ in range(3):
        feed(topics, web, 4)
        feed(topics, app, 4)
        time.sleep(1.1)
    with query.running("100ms", maxOffsetsPerTrigger="2") as running:
        query.wait_for(count_rows(broker, topics, query.names), running)
        late = [each["numRowsDroppedByWatermark"] for p in running.recentProgress for each in p["stateOperators"]]
        assert sum(late) == 0


@pytest.mark.parametrize("query", [Reader], indirect=True, ids=["channels"])
def test_a_channel_whose_writer_does_not_say_that_it_is_quiet_holds_all_windows_open(
    query: Reader, broker: Broker, topics: Topics
) -> None:
    web, app = query.names
    query.said_by_writers = "hold"
    feed(topics, app, 1)
    with query.running("200ms") as running:
        for _ in range(3):
            feed(topics, web, 5)
            time.sleep(1.1)  # the next rows are of another window
        wait_for_rows(16, running)
        running.processAllAvailable()
        assert not any(key[0] == web for key in query.closed)
    assert not any((query.channel(name) / "cec" / "log" / "boundary.json").exists() for name in query.names)


class Chain(Query):
    """Windows of a second, whose output a second query counts in windows of two seconds."""

    @contextmanager
    def running(self, quiet: str, **options: str) -> Iterator[StreamingQuery]:
        session = local.session(self.spark, {**local.OPENINGS_ONLY, "sources.quiet": quiet})
        both = self.read(session, self.names[0], **options).unionByName(self.read(session, self.names[1], **options))
        counts = both.groupBy("topic", f.window("timestamp", "1 second")).agg(f.count("*").alias("rows"))
        ends = counts.select("topic", f.col("window.end").alias("end"), "rows")
        writer = ends.writeStream.format("cec").option("checkpointLocation", str(self.checkpoint)).start()
        try:
            reader = session.readStream.format("cec").options(waitForLog=True, newColumns=True)
            read = reader.schema("topic STRING, end TIMESTAMP, rows BIGINT").load(str(self.checkpoint))
            groups = read.withWatermark("end", "1 second").groupBy("topic", f.window("end", "2 seconds"))
            sums = groups.agg(f.sum("rows").alias("rows")).select("topic", f.col("window.start").alias("begin"), "rows")
            begun = sums.writeStream.foreachBatch(self.keep).option("checkpointLocation", f"{self.checkpoint}-sums")
            query = begun.start()
            try:
                yield query
            finally:
                query.stop()
        finally:
            writer.stop()


@pytest.mark.parametrize("query", [Chain], indirect=True, ids=["windows"])
def test_windows_of_windows_close_without_more_rows(query: Chain, broker: Broker, topics: Topics) -> None:
    """Over a restart of both queries; a window's end is the second query's time, so its windows need no clock."""
    web, app = query.names
    feed(topics, app, 3)
    for _ in range(2):
        with query.running("200ms") as running:
            for _ in range(3):
                feed(topics, web, 5)
                time.sleep(0.7)  # rows of several windows: their time is Kafka's
            wanted: Counter[Key] = Counter()
            for (topic, second), rows in count_rows(broker, topics, query.names).items():
                wanted[topic, (second + 1) // 2 * 2] += rows
            query.wait_for(wanted, running)


@pytest.mark.parametrize("query", [Query], indirect=True, ids=["max"])
def test_if_the_highest_watermark_counts_a_quiet_topic_does_not_move_it_alone(
    query: Query, broker: Broker, topics: Topics
) -> None:
    web, _ = query.names
    for _ in range(3):
        feed(topics, web, 6)
        time.sleep(1.1)  # the next rows are of another window
    query.conf[POLICY] = "max"
    with query.running("100ms", maxOffsetsPerTrigger="2") as running:
        query.wait_for(count_rows(broker, topics, query.names), running)
        late = [each["numRowsDroppedByWatermark"] for p in running.recentProgress for each in p["stateOperators"]]
        assert sum(late) == 0


@pytest.mark.parametrize("query", [Query], indirect=True, ids=["held back"])
def test_rows_that_a_stateful_operator_holds_back_do_not_become_late(query: Query, topics: Topics) -> None:
    """The clock does not move a watermark above the operator, because older rows may wait below."""
    web, _ = query.names
    session = local.session(query.spark, {**local.OPENINGS_ONLY, "sources.quiet": "100ms"})
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", query.broker.address)
    rows = reader.option("subscribe", web).option("startingOffsets", "earliest").load().select("topic", "timestamp")
    first = f.min("timestamp").alias("first")
    pairs = spark_cec.count_window(rows, "topic", 2, [first], order_by="timestamp").withWatermark("first", "1 second")
    counts = pairs.groupBy("topic", f.window("first", "1 second")).agg(f.count("*").alias("rows"))
    writer = counts.select("topic", f.col("window.start").alias("begin"), "rows").writeStream.foreachBatch(query.keep)
    running = writer.option("checkpointLocation", str(query.checkpoint)).start()
    try:
        given = 0
        for rows_more, pause_s in ((2, 1.1), (1, 4.0), (1, 1.1), (2, 0.0)):
            feed(topics, web, rows_more)
            given += rows_more
            wait_for_rows(given, running)
            time.sleep(pause_s)  # the third row waits for the fourth
        local.eventually(lambda: True if sum(query.closed.values()) == 2 else None, "both pairs, by the third one")
        late = [each["numRowsDroppedByWatermark"] for p in running.recentProgress for each in p["stateOperators"]]
        assert sum(late) == 0 and running.exception() is None
    finally:
        running.stop()
