"""A topic that is about to lose what a recovery needs: the query writes what is dirty, and then needs nothing old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from cec_it import local
from cec_it.kafka_feed import Purchases, as_table
from cec_it.kafka_totals import Totals
from testbed.broker import Broker
from testbed.topics import Topics

LIMIT = {"maxOffsetsPerTrigger": "25"}
ROWS = 150
AGAIN = "This happens again and again: the source keeps too little for this query"


def offsets(needs: dict[str, Any], name: str) -> dict[int, int]:
    """`from` or `to`, by partition."""
    return {each["partition"]: each[name] for each in needs["sources"][0]["offsets"]}


def test_a_query_writes_what_is_dirty_before_its_input_goes(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path, spark_log: Path
) -> None:
    topics.create(topic, 2, retention_ms="86400000")
    purchases, read = Purchases(seed=6, rows=ROWS), list[pd.DataFrame]()
    totals = Totals(spark, broker.address, topic, tmp_path, conf=local.OPENINGS_ONLY)
    already = spark_log.stat().st_size

    def feed_and_delete() -> None:
        """Read on, then lose all but the last record that a recovery does not need."""
        topics.produce(topic, purchases.step(2))
        streaming.processAllAvailable()
        read.append(as_table(topics.read(topic)))
        needs = totals.needs()
        assert needs["batches"] > 2
        topics.delete_before(topic, {partition: first - 1 for partition, first in offsets(needs, "from").items()})
        flushed = local.eventually(lambda: now if not (now := totals.needs())["batches"] else None, "a flush")
        assert flushed["since_batch"] == needs["since_batch"] + needs["batches"]
        assert offsets(flushed, "from") == offsets(flushed, "to") == offsets(needs, "to")

    streaming = totals.start(**LIMIT)
    try:
        feed_and_delete()
        assert AGAIN not in spark_log.read_text()[already:]
        feed_and_delete()
        words = local.eventually(lambda: said if AGAIN in (said := spark_log.read_text()[already:]) else None, AGAIN)
    finally:
        streaming.stop()
    assert f"needs nothing older: KafkaV2[Subscribe[{topic}]]: {topic}-" in words
    assert "(retention.ms=86400000)" in words
    # A crash after all that was needed before is gone.
    topics.delete_before(topic, {partition: end for partition, (_, end) in topics.ends(topic).items()})
    topics.produce(topic, purchases.step(2))
    totals.run_out(**LIMIT)
    read.append(as_table(topics.read(topic)))
    assert totals.found() == totals.wanted(pd.concat(read).drop_duplicates(["partition", "offset"]))
