"""Queries on Kafka that crash and start again, each time into something that has changed; exact against pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cec_it import local
from cec_it.kafka_feed import Purchases, as_table
from cec_it.kafka_kills import IMPATIENT
from cec_it.kafka_totals import Totals
from testbed.broker import Broker
from testbed.topics import Topics

LIMIT = {"maxOffsetsPerTrigger": "25"}
ROWS = 50


@pytest.fixture
def purchases() -> Purchases:
    return Purchases(seed=5, rows=ROWS)


@pytest.fixture
def totals(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Totals:
    return Totals(spark, broker.address, topic, tmp_path)


def fill(topics: Topics, topic: str, purchases: Purchases, steps: int, partitions: int) -> None:
    for _ in range(steps):
        topics.produce(topic, purchases.step(partitions))


def assert_exact(totals: Totals, topics: Topics) -> None:
    wanted = totals.wanted(as_table(topics.read(totals.topic)))
    assert len(wanted) > 5, "a topic with few keys proves little"
    assert totals.found() == wanted


def replayed(totals: Totals, recoveries: int) -> list[int]:
    found = local.reports(totals.checkpoint, recoveries)
    assert {report["digest_ok"] for report in found} == {True}
    return [int(str(report["replayed_batches"])) for report in found]


@pytest.fixture
def told(spark: SparkSession, spark_log: Path) -> Iterator[Callable[[], str]]:
    """What our part of the JVM has logged in this test, at INFO too."""
    jvm: Any = spark._jvm
    levels, configurator = jvm.org.apache.logging.log4j.Level, jvm.org.apache.logging.log4j.core.config.Configurator
    already = spark_log.stat().st_size
    configurator.setLevel("org.apache.spark.sql.cec", levels.INFO)
    yield lambda: spark_log.read_text()[already:]
    configurator.setLevel("org.apache.spark.sql.cec", levels.WARN)


def test_a_restart_replays_several_batches(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases, told: Callable[[], str]
) -> None:
    topics.create(topic, 2)
    fill(topics, topic, purchases, 4, 2)
    totals.run_to(3, **LIMIT)
    needed = totals.needs()["sources"][0]["offsets"]
    totals.run_out(**LIMIT)
    (line,) = [line for line in told().splitlines() if "a recovery now would" in line]
    assert "INFO" in line
    assert "need input since batch 1 (" in line
    for each in needed:
        assert f"{topic}-{each['partition']} from offset {each['from']}" in line
    assert replayed(totals, 1)[0] >= 2
    assert_exact(totals, topics)


@pytest.mark.long
def test_partitions_are_added_and_the_limit_changes_between_lives(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases
) -> None:
    topics.create(topic, 2)
    fill(topics, topic, purchases, 3, 2)
    totals.run_to(2, **LIMIT)
    topics.grow(topic, 4)
    fill(topics, topic, purchases, 2, 4)
    totals.run_to(4, maxOffsetsPerTrigger="17", minPartitions="5")
    topics.grow(topic, 5)
    fill(topics, topic, purchases, 1, 5)
    totals.run_out(maxOffsetsPerTrigger="60")
    assert min(replayed(totals, 2)) >= 2
    assert_exact(totals, topics)


def test_available_now_with_a_limit_and_without_one(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases
) -> None:
    topics.create(topic, 2)
    fill(topics, topic, purchases, 2, 2)
    totals.run_now(**LIMIT)
    fill(topics, topic, purchases, 1, 2)
    totals.run_now()
    fill(topics, topic, purchases, 1, 2)
    totals.run_out()
    assert replayed(totals, 2)[0] >= 2
    assert_exact(totals, topics)


@pytest.mark.long
def test_transactions_leave_gaps_between_offsets(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases
) -> None:
    topics.create(topic, 2)
    committed = {"kafka.isolation.level": "read_committed", **LIMIT}
    for step in range(4):
        topics.produce_transaction(topic, "writer", purchases.step(2), commit=step != 1)
    totals.run_to(4, **committed)
    topics.produce_transaction(topic, "writer", purchases.step(2))
    totals.run_out(**committed)
    assert replayed(totals, 1)[0] >= 2
    records = topics.read(topic)
    assert len(records) == 4 * ROWS < sum(end - first for first, end in topics.ends(topic).values())
    assert_exact(totals, topics)


@pytest.mark.long
def test_a_broker_that_is_away_at_the_restart(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases, broker: Broker, told: Callable[[], str]
) -> None:
    topics.create(topic, 2)
    fill(topics, topic, purchases, 3, 2)
    totals.run_to(3, **LIMIT)
    broker.stop()
    try:
        with pytest.raises(Exception, match=r"(?i)timeout|timed out|TimeoutException") as failure:
            totals.run_out(**LIMIT, **IMPATIENT)
    finally:
        broker.start()
    assert "UnsuitableCheckpoint" not in str(failure.value)
    (line,) = [line for line in told().splitlines() if "a recovery now would" in line]
    assert "WARN" in line
    assert f"KafkaV2[Subscribe[{topic}]] cannot be asked what it still has (TimeoutException" in line
    assert "the replay will tell" in line
    totals.run_out(**LIMIT)
    assert_exact(totals, topics)


def test_a_topic_that_is_gone_is_named(totals: Totals, topics: Topics, topic: str, purchases: Purchases) -> None:
    topics.create(topic, 1)
    fill(topics, topic, purchases, 2, 1)
    totals.run_to(2, **LIMIT)
    topics.delete(topic)
    with pytest.raises(StreamingQueryException) as failure:
        totals.run_out(**LIMIT, **IMPATIENT)
    words = str(failure.value)
    assert "the replay of batch 1, which the recovery of batch 2 needs, failed" in words
    assert f"batch 1 reads KafkaV2[Subscribe[{topic}]], where 25 rows are expected ({topic}-0 25 to 49)" in words


def test_records_that_went_after_they_could_be_needed_do_no_harm(
    totals: Totals, topics: Topics, topic: str, purchases: Purchases
) -> None:
    topics.create(topic, 2)
    fill(topics, topic, purchases, 3, 2)
    table = as_table(topics.read(topic))
    totals.conf = {"mode": "eager"}
    totals.run_to(3, **LIMIT)
    topics.delete_before(topic, {0: 30, 1: 30})
    totals.run_out(**LIMIT)
    assert totals.found() == totals.wanted(table)
