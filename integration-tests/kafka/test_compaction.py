"""Topics whose offsets do not give the same rows again: eager, or refused where all must be deferred."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cec_it import local
from cec_it.kafka_feed import Purchases, as_table
from cec_it.kafka_totals import Totals
from testbed.broker import Broker
from testbed.topics import Topics

LIMIT = {"maxOffsetsPerTrigger": "25"}


def test_a_compacted_topic_is_eager_and_says_why(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, topics: Topics
) -> None:
    topics.create(topic, 1, cleanup_policy="compact")
    topics.produce(topic, Purchases(seed=8, rows=100).step(1))
    sums = Totals(spark, broker.address, topic, tmp_path)
    sums.run_to(1, **LIMIT)
    decided = local.query_json(sums.checkpoint)
    assert decided["mode"] == "eager"
    assert f"topic '{topic}' is compacted" in str(decided["reason"])
    sums.run_out(**LIMIT)
    assert local.reports(sums.checkpoint, 1)[0]["replayed_batches"] == 0
    assert sums.found() == sums.wanted(as_table(topics.read(topic)))


def test_a_compacted_topic_is_refused_where_all_must_be_deferred(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, topics: Topics
) -> None:
    topics.create(topic, 1, cleanup_policy="compact")
    with pytest.raises(AnalysisException, match="is compacted"):
        Totals(spark, broker.address, topic, tmp_path, conf={"mode": "deferred"}).start()


def test_who_vouches_for_kafka_is_believed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, topics: Topics
) -> None:
    topics.create(topic, 1, cleanup_policy="compact")
    topics.produce(topic, Purchases(seed=8, rows=50).step(1))
    vouched = {**local.OPENINGS_ONLY, "mode": "deferred", "sources.replayable": "kafka"}
    sums = Totals(spark, broker.address, topic, tmp_path, conf=vouched)
    sums.run_out(**LIMIT)
    assert local.query_json(sums.checkpoint)["mode"] == "deferred"
