"""Input that a replay needs and Kafka does not have any more: never a wrong row, and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from cec_it import local
from cec_it.kafka_feed import Purchases, as_table
from cec_it.kafka_totals import Totals
from testbed.broker import Broker
from testbed.spark_logs import newest
from testbed.topics import Topics

LIMIT = {"maxOffsetsPerTrigger": "25"}
CRASHED_AT = 3
ROWS = 150
GONE = {0: 30, 1: 30}
"""More than batch 0 has read of each partition, and less than batches 0 to 3 have."""
ACCEPT = {**local.OPENINGS_ONLY, "onDivergence": "accept"}


@pytest.fixture(params=[("mean",), ("n", "mean")], ids="+".join)
def totals(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, topics: Topics
) -> Totals:
    """Crashed after batch 3, then records went that batches 1 and 2 had read."""
    topics.create(topic, 2)
    purchases = Purchases(seed=6, rows=ROWS)
    topics.produce(topic, purchases.step(2))
    sums = Totals(spark, broker.address, topic, tmp_path, columns=request.param)
    sums.run_to(CRASHED_AT, **LIMIT)
    # Batch 0 opened the keys' windows, which are in the log as it left them: the replay begins with batch 1.
    topics.delete_before(topic, GONE)
    return sums


def assert_nothing_new(totals: Totals, committed: int) -> None:
    assert max(totals.rows) == committed
    assert newest(totals.checkpoint / "commits") == committed


@pytest.mark.parametrize("loss", ["false", "true"])
def test_it_does_not_start_and_says_what_to_do(totals: Totals, loss: str) -> None:
    committed, needs = max(totals.rows), totals.needs()
    assert needs["since_batch"] == 1
    before = local.files_in(totals.checkpoint)
    with pytest.raises(AnalysisException) as refused:
        totals.start(failOnDataLoss=loss, **LIMIT)
    words = str(refused.value)
    assert f"input that the recovery of batch {committed} needs, from batch 1 on, is gone: " in words
    assert f"KafkaV2[Subscribe[{totals.topic}]]: {totals.topic}-0 begins at offset 30, and is needed from " in words
    for each in needs["sources"][0]["offsets"]:
        gone, all_of_it = GONE[each["partition"]] - each["from"], each["to"] - each["from"]
        where = f"{totals.topic}-{each['partition']} begins at offset 30, and is needed from {each['from']} on"
        assert f"{where}: {gone} of {all_of_it} offsets are gone" in words
    assert "onDivergence=accept" in words
    assert_nothing_new(totals, committed)
    assert local.files_in(totals.checkpoint) == before


def test_a_topic_that_was_made_again_is_known_by_its_rows(totals: Totals, topics: Topics) -> None:
    """Its offsets are all there: a start cannot see it."""
    committed = max(totals.rows)
    needed = totals.needs()["sources"][0]["offsets"]
    topics.delete(totals.topic)
    local.eventually(lambda: made_again(topics, totals.topic), "the topic, made again")
    topics.produce(totals.topic, Purchases(seed=8, rows=ROWS).step(2))
    with pytest.raises(StreamingQueryException) as failure:
        totals.run_out(**LIMIT)
    rows = sum(each["to"] - each["from"] for each in needed)
    source = (
        f"KafkaV2[Subscribe[{totals.topic}]], where {rows} rows are expected ({totals.topic}-0 {needed[0]['from']} to "
    )
    assert f"(batches 1 to {committed} read {source}" in str(failure.value)
    assert " rows in this replay)" in str(failure.value)
    assert_nothing_new(totals, committed)


def made_again(topics: Topics, topic: str) -> bool | None:
    """Kafka refuses a name for as long as it removes the old topic."""
    try:
        topics.create(topic, 2)
    except KafkaException:
        return None
    return True


def test_eager_mode_does_not_get_round_it(totals: Totals) -> None:
    committed = max(totals.rows)
    with pytest.raises(AnalysisException, match="onDivergence=accept"):
        totals.start({"mode": "eager"}, failOnDataLoss="false", **LIMIT)
    assert_nothing_new(totals, committed)


@pytest.mark.parametrize("loss", ["false", "true"])
def test_what_is_left_can_be_accepted(totals: Totals, topics: Topics, loss: str, spark_log: Path) -> None:
    committed, told = max(totals.rows), spark_log.stat().st_size
    streaming = totals.start(ACCEPT, failOnDataLoss=loss, **LIMIT)
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()
    assert max(totals.rows) > committed
    line = next(line for line in spark_log.read_text()[told:].splitlines() if "that is accepted" in line)
    assert "WARN" in line
    assert f"is gone: KafkaV2[Subscribe[{totals.topic}]]: {totals.topic}-0 begins at offset 30" in line
    report = local.reports(totals.checkpoint, 1)[-1]
    assert report["digest_ok"] is False
    # From here on all is as ever: what is committed now needs no acceptance.
    more = Purchases(seed=7, rows=50).step(2)
    topics.produce(totals.topic, more)
    totals.run_out(**LIMIT)
    if totals.columns[0] == "n":
        counted = sum(int(str(row[0])) for row in totals.found().values())
        assert len(as_table(topics.read(totals.topic))) <= counted < ROWS + len(more)
