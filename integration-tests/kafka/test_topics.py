"""What the driver can learn about the topics that a query reads: their cleanup policy, and how far back they go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from cec_it.kafka_feed import Purchases, read_topic
from testbed.broker import Broker
from testbed.topics import Topics

NOBODY = "127.0.0.1:1"
IMPATIENT = {"kafka.default.api.timeout.ms": "1500", "kafka.request.timeout.ms": "1000"}


class Asked:
    """`KafkaTopics` of the shim, asked about streams."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._topics = jvm.org.apache.spark.sql.cec.recovery.KafkaTopics

    def relation(self, address: str, topic: str, **options: str) -> JavaObject:
        """The streaming relation in the analysed plan of a query that reads the topic."""
        frame: Any = read_topic(self._spark, address, topic, options)
        leaf: JavaObject = frame._jdf.queryExecution().analyzed().collectLeaves().head()
        return leaf

    def reason(self, relation: JavaObject) -> str | None:
        found = self._topics.cleanupReason(relation)
        return str(found.get()) if found.isDefined() else None

    def available(self, relation: JavaObject) -> Any:
        return json.loads(self._topics.of(relation).get().available().toString())


@pytest.fixture
def asked(spark: SparkSession) -> Asked:
    return Asked(spark)


def test_a_topic_that_retention_alone_cleans_gives_the_same_rows_again(
    asked: Asked, topics: Topics, topic: str, broker: Broker
) -> None:
    topics.create(topic, 1)
    assert asked.reason(asked.relation(broker.address, topic)) is None


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_does_not(asked: Asked, topics: Topics, topic: str, broker: Broker, policy: str) -> None:
    topics.create(topic, 1, cleanup_policy=policy)
    reason = asked.reason(asked.relation(broker.address, topic))
    assert reason is not None
    assert f"topic '{topic}' is compacted" in reason


def test_the_topics_of_a_pattern_and_of_an_assignment_are_asked_for(
    asked: Asked, topics: Topics, topic: str, broker: Broker, spark: SparkSession
) -> None:
    topics.create(f"{topic}-a", 1)
    topics.create(f"{topic}-b", 1, cleanup_policy="compact")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    pattern: Any = reader.option("subscribePattern", f"{topic}-.*").load()
    reason = asked.reason(pattern._jdf.queryExecution().analyzed())
    assert reason is not None
    assert f"{topic}-b" in reason
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    assigned: Any = reader.option("assign", json.dumps({f"{topic}-a": [0]})).load()
    assert asked.reason(assigned._jdf.queryExecution().analyzed()) is None


def test_who_may_not_ask_is_told_what_is_missing(asked: Asked, topics: Topics, topic: str, broker: Broker) -> None:
    topics.create(topic, 1)
    topics.allow_reading_only(topic)
    reason = asked.reason(asked.relation(broker.address, topic))
    assert reason is not None
    assert "DescribeConfigs" in reason
    assert "TopicAuthorizationException" in reason
    # What the source itself may ask is enough to know how far back the topic goes.
    assert asked.available(asked.relation(broker.address, topic)) == {
        topic: {"retention_ms": None, "partitions": {"0": [0, 0]}}
    }


def test_a_broker_that_does_not_answer_is_a_reason(asked: Asked, topic: str) -> None:
    reason = asked.reason(asked.relation(NOBODY, topic, **IMPATIENT))
    assert reason is not None
    assert "cannot be asked of Kafka (Timeout" in reason


def test_other_sources_have_no_topics(asked: Asked, spark: SparkSession) -> None:
    rate: Any = spark.readStream.format("rate").load()
    assert asked.reason(rate._jdf.queryExecution().analyzed()) is None


def test_how_far_back_a_topic_goes(asked: Asked, topics: Topics, topic: str, broker: Broker) -> None:
    topics.create(topic, 2, retention_ms="86400000")
    topics.produce(topic, Purchases(seed=1, rows=40).step(2))
    ends = topics.ends(topic)
    topics.delete_before(topic, {0: 5})
    assert asked.available(asked.relation(broker.address, topic)) == {
        topic: {"retention_ms": "86400000", "partitions": {"0": [5, ends[0][1]], "1": [0, ends[1][1]]}}
    }


def test_the_source_of_the_first_api_is_asked_too(
    asked: Asked, topics: Topics, topic: str, broker: Broker, spark: SparkSession
) -> None:
    topics.create(topic, 1, cleanup_policy="compact")
    old = spark.newSession()
    old.conf.set("spark.sql.streaming.disabledV2MicroBatchReaders", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
    first: Any = old.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    reason = asked.reason(first.option("subscribe", topic).load()._jdf.queryExecution().analyzed())
    assert reason is not None
    assert "is compacted" in reason
