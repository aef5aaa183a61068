"""A pipeline from a topic to a topic, under a protocol that takes back what has left already."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.local import eventually
from cec_it.running import checkpoints, kill_agent, running
from spark_cec.pipeline import Pipeline
from testbed.broker import Broker
from testbed.topics import Topics

KEYS = 7
STEP = 300


def counts(root: Path, address: str, source: str, target: str, interval_s: float = 0.4) -> Pipeline:
    """numbers of a topic -> counts, which has state -> a topic."""
    how = {"protocol": "uncoordinated", "release": "at-once"}
    made = Pipeline("counts", f"{root}/home", checkpoint_interval=interval_s, **how)

    @made.flow
    def numbers(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
        return stream.option("maxOffsetsPerTrigger", "20").load().selectExpr("CAST(value AS STRING)::BIGINT AS value")

    @made.flow(output_mode="update", partitions=2)
    def counted(numbers: DataFrame) -> DataFrame:
        keyed = numbers.groupBy((f.col("value") % KEYS).alias("k"))
        return keyed.agg(f.count("*").alias("n"), f.max("value").alias("most"))

    @made.sink
    def out(counted: DataFrame) -> DataStreamWriter:
        rows = counted.select(f.to_json(f.struct("k", "n", "most")).alias("value"))
        stream = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", address)
        return stream.option("topic", target)

    return made


def test_a_pipeline_between_topics_goes_back(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Its agent dies while records come; each row that leaves is right, and the last one of each key has all."""
    target = f"{topic}-out"
    topics.create(topic, 1)
    topics.create(target, 1)

    def give(step: int) -> None:
        topics.produce(topic, [(0, b"", str(n).encode()) for n in range(step * STEP, (step + 1) * STEP)])

    def rows() -> list[dict[str, int]]:
        return [json.loads(each.value or b"") for each in topics.read(target)]

    def newest() -> dict[int, int]:
        return {row["k"]: row["n"] for row in rows()}  # one partition: the last of a key is its newest

    def wanted(steps: int) -> dict[int, int]:
        return {k: len(range(k, steps * STEP, KEYS)) for k in range(KEYS)}

    give(0)
    with running(counts(tmp_path, broker.address, topic, target), spark) as run:
        eventually(lambda: True if checkpoints(tmp_path, "counted", "numbers") >= 2 else None, "some checkpoints")
        before = run.status().rollbacks
        kill_agent(tmp_path, "counted")
        give(1)
        eventually(lambda: True if run.status().rollbacks > before else None, "they go back")
        give(2)
        eventually(lambda: True if newest() == wanted(3) else None, "all has come out")
    give(3)
    with running(counts(tmp_path, broker.address, topic, target), spark):
        eventually(lambda: True if newest() == wanted(4) else None, "all has come out of the next run")
    assert all(row["n"] == len(range(row["k"], row["most"] + 1, KEYS)) for row in rows())


def test_a_line_whose_input_goes_is_told_of(
    spark: SparkSession, broker: Broker, topics: Topics, topic: str, tmp_path: Path, spark_log: Path
) -> None:
    """What a flow alone would write does not help: its line is not its own."""
    topics.create(topic, 1)
    topics.create(f"{topic}-out", 1)
    topics.produce(topic, [(0, b"", str(n).encode()) for n in range(STEP)])
    already = spark_log.stat().st_size
    said = f"needs what its source is about to lose: KafkaV2[Subscribe[{topic}]]: {topic}-0"
    with running(counts(tmp_path, broker.address, topic, f"{topic}-out", 3600.0), spark) as run:
        eventually(lambda: flow if (flow := run.status().flows[0]).batch == STEP // 20 - 1 else None, "all is read")
        topics.delete_before(topic, {0: STEP - 5})
        eventually(lambda: True if said in spark_log.read_text()[already:] else None, said)
        assert "needs nothing older" not in spark_log.read_text()[already:]
