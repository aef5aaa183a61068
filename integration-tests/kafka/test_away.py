"""Kafka does not answer: a flow answers without it, tentatively. Nobody waits for a topic that has no more rows."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.board import Board, Rows
from cec_it.local import eventually
from cec_it.running import flow_of, running
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.settings import PREFIX
from testbed.broker import Broker
from testbed.topics import Topics

X = "4s"
DOWN_S = 900.0
KEPT = 4_096
"""The stored bytes that may wait: some batches."""

QUIET = {PREFIX + "sources.quiet": "500ms"}


def per_second(
    root: Path, board: Board, addresses: dict[str, str], topic: str, seconds: int = 1, **how: Any
) -> Pipeline:
    """Two topics, each of its own broker -> rows by topic and window, by the time at which Kafka got them."""
    options: dict[str, Any] = {"within": X, "alpha": 0.5, **how}
    made = Pipeline("shop", f"{root}/home")

    def declare(name: str) -> None:
        @made.flow(name=name, conf=QUIET)
        def rows(spark: SparkSession) -> DataFrame:
            reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", addresses[name])
            read = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
            return read.select(f.lit(name).alias("topic"), "timestamp")

    for name in addresses:
        declare(name)

    watermarks = dict.fromkeys(addresses, ("timestamp", "1 second"))

    @made.flow(kept=True, partitions=2, conf=QUIET, watermarks=watermarks, **options)
    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        grouped = web.unionByName(app).groupBy("topic", f.window("timestamp", f"{seconds} seconds").alias("w"))
        return grouped.agg(f.count("*").alias("n")).select("topic", f.col("w.start").alias("begin"), "n")

    @made.sink(tentative=True)
    def shown(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(board.take)

    return made


def windows_of(topics: dict[str, Topics], topic: str) -> Rows:
    """What must come, by readers that have nothing to do with Spark."""
    counts: Counter[tuple[str, int]] = Counter()
    for name, each in topics.items():
        for record in each.read(topic):
            counts[name, record.came_ms // 1000] += 1
    return Counter((name, second, n) for (name, second), n in counts.items())


def feed(topics: Topics, topic: str) -> None:
    topics.produce(topic, [(0, b"", b"") for _ in range(3)])


def become_stable(board: Board, topics: dict[str, Topics], topic: str, why: str, within_s: float = 60) -> None:
    """Waits until all windows are stable."""

    def difference() -> str:
        wanted = windows_of(topics, topic)
        return f"{why}: {wanted - board.stable} are missing, {board.stable - wanted} are wrong"

    eventually(lambda: board.stable == windows_of(topics, topic) or None, difference, within_s)


@contextmanager
def killed(broker: Broker) -> Iterator[None]:
    """The broker is gone meanwhile."""
    broker.kill()
    yield
    broker.start()


@contextmanager
def two_brokers(broker: Broker, topics: Topics, topic: str, root: Path) -> Iterator[tuple[Broker, dict[str, Topics]]]:
    """Another broker, and the topics of both, with rows in each."""
    with Broker(root / "other") as other:
        both = {"web": topics, "app": Topics(other.address)}
        for each in both.values():
            # A producer gives its rows a time, then looks for the broker: after a start for longer than the delay.
            each.create(topic, 1, message_timestamp_type="LogAppendTime")
            feed(each, topic)
        yield other, both


def answers_without_app(run: RunningPipeline, board: Board, topics: Topics, topic: str) -> None:
    """Waits until all rows of the other topic are shown, and checks that none of the new ones is stable."""
    found = eventually(lambda: flow if (flow := flow_of(run, "totals")).epoch else None, "an epoch")
    assert found.absent == ("app",)
    new = windows_of({"web": topics}, topic) - board.stable
    eventually(lambda: board.shown() + board.stable >= new or None, f"{new} tentatively")
    assert not board.stable & new


@pytest.mark.parametrize("how", ["is killed", "hangs"])
def test_a_broker_that_does_not_answer(
    how: str, spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    board = Board(lambda row: (row.topic, int(row.begin.timestamp()), row.n))
    with two_brokers(broker, topics, topic, tmp_path) as (other, both):
        addresses = {"web": broker.address, "app": other.address}
        with running(per_second(tmp_path, board, addresses, topic), spark) as run:
            become_stable(board, both, topic, "the last ones, too")
            for _ in range(6):  # longer than X
                feed(topics, topic)
                time.sleep(1)  # the next rows are of another window
                assert flow_of(run, "totals").epoch is None, "a topic without rows is not away"
            become_stable(board, both, topic, "app holds nobody back")
            assert not board.tentative and not board.undone
            with other.paused() if how == "hangs" else killed(other):
                feed(topics, topic)
                time.sleep(1.1)
                feed(topics, topic)
                answers_without_app(run, board, topics, topic)
            feed(both["app"], topic)
            become_stable(board, both, topic, "app is back", within_s=180)
            eventually(lambda: not board.tentative or None, "no tentative row is left")
            assert flow_of(run, "totals").restarts == 0


def test_rows_that_were_read_are_answered_though_no_more_come(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """They are in a window that is open when the other topic's broker goes away. Nothing waits in a channel."""
    seconds, board = 30, Board(lambda row: (row.topic, int(row.begin.timestamp()), row.n))
    with two_brokers(broker, topics, topic, tmp_path) as (other, _):
        addresses = {"web": broker.address, "app": other.address}
        with running(per_second(tmp_path, board, addresses, topic, seconds, within="12s"), spark) as run:
            eventually(lambda: board.stable or None, "the first window")
            time.sleep(seconds - time.time() % seconds)  # a window begins
            feed(topics, topic)
            fed_ms = int(time.time() * 1000)
            eventually(lambda: (flow_of(run, "totals").complete_to_ms or 0) > fed_ms or None, "the rows were read")
            before = Counter(board.stable)
            assert flow_of(run, "totals").epoch is None and not board.tentative
            with killed(other):
                new = Counter({("web", fed_ms // 1000 // seconds * seconds, 3): 1})
                eventually(lambda: board.shown() == new or None, lambda: f"{new} tentatively, not {board.shown()}")
                assert board.stable == before and flow_of(run, "totals").absent == ("app",)
            eventually(lambda: board.stable == before + new or None, "the window is stable", 180)
            eventually(lambda: not board.tentative or None, "no tentative row is left")


def test_a_broker_whose_name_has_no_address_any_more_is_tried_until_it_is_back(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """As in containers that stop: the client gives another error than for a broker that does not answer."""
    board = Board(lambda row: (row.topic, int(row.begin.timestamp()), row.n))
    with two_brokers(broker, topics, topic, tmp_path) as (other, both):
        addresses = {"web": broker.address, "app": other.address}
        with running(per_second(tmp_path, board, addresses, topic), spark):
            become_stable(board, both, topic, "all are there")
        gone = {**addresses, "app": "gone.invalid:9092"}
        with running(per_second(tmp_path, board, gone, topic), spark) as run:
            feed(topics, topic)
            app = eventually(lambda: flow if (flow := flow_of(run, "app")).restarts > 7 else None, "8 restarts", 180)
            assert app.state is State.RESTARTING and app.away_since_ms is not None, app
            assert app.servers == ("gone.invalid:9092",)
            answers_without_app(run, board, topics, topic)
        with running(per_second(tmp_path, board, addresses, topic), spark):
            feed(both["app"], topic)
            become_stable(board, both, topic, "app is back")


@pytest.mark.long
def test_kafka_is_down_for_fifteen_minutes(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Answers go on all the time, and the flow that reads it is tried until it is back."""
    board = Board(lambda row: (row.topic, int(row.begin.timestamp()), row.n))
    with two_brokers(broker, topics, topic, tmp_path) as (other, both):
        addresses = {"web": broker.address, "app": other.address}
        with running(per_second(tmp_path, board, addresses, topic), spark) as run:
            become_stable(board, both, topic, "all are there")
            with killed(other):
                end = time.monotonic() + DOWN_S
                while time.monotonic() < end:
                    for _ in range(30):
                        feed(topics, topic)
                        time.sleep(1)  # the next rows are of another window
                    answers_without_app(run, board, topics, topic)
            feed(both["app"], topic)
            become_stable(board, both, topic, "app is back", within_s=300)
            eventually(lambda: not board.tentative or None, "no tentative row is left")
            assert flow_of(run, "totals").restarts == 0


def test_kafka_deletes_what_a_held_flow_has_not_read(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Its retention passes meanwhile. The flow fails by name then, and all stable rows are right."""
    board = Board(lambda row: (row.topic, int(row.begin.timestamp()), row.n))
    with two_brokers(broker, topics, topic, tmp_path) as (other, both):
        addresses = {"web": broker.address, "app": other.address}
        with running(per_second(tmp_path, board, addresses, topic, keep=KEPT), spark) as run:
            become_stable(board, both, topic, "all are there")
            with killed(other):

                def is_held() -> bool | None:
                    feed(topics, topic)
                    time.sleep(0.3)
                    return flow_of(run, "web").state is State.WAITING or None

                eventually(is_held, "more waits than keep", 120)
                feed(topics, topic)
                right = windows_of({"web": topics}, topic)
                topics.delete_before(topic, {0: topics.ends(topic)[0][1]})
            feed(both["app"], topic)

            def find_failed() -> FlowStatus | None:
                flow = flow_of(run, "web")
                return flow if flow.state is State.FAILED else None

            web = eventually(find_failed, "the flow fails", 180)
            assert web.error is not None and topic in web.error, web
            assert board.stable <= right + windows_of({"app": both["app"]}, topic)


def test_the_sample_of_the_docs_runs(spark: SparkSession, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """With shorter windows."""
    page = (Path(__file__).resolve().parents[2] / "docs/availability.md").read_text()
    sample = page.split("```python\n")[1].split("```")[0]
    places = {"kafka:9092": broker.address, "/data/": f"{tmp_path}/"}
    for said, here in {**places, '"10 seconds"': '"1 second"', '"1 minute"': '"2 seconds"'}.items():
        assert said in sample
        sample = sample.replace(said, here)
    for name in ("web", "app"):
        topics.create(name, 1, message_timestamp_type="LogAppendTime")
    declared: dict[str, Any] = {}
    exec(sample, declared)
    with running(declared["shop"], spark):

        def is_shown() -> bool | None:
            for name in ("web", "app"):
                topics.produce(name, [(0, b"", b"home")])
            if not (tmp_path / "board.db").exists():
                return None
            with closing(sqlite3.connect(tmp_path / "board.db")) as board:
                found = board.execute("SELECT page, count FROM board WHERE NOT tentative").fetchall()
            assert all(page == "home" and count > 0 for page, count in found)
            return bool(found) or None

        eventually(is_shown, "stable rows in the table of the sample", 90)
