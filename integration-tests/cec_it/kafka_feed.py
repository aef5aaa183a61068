"""A Kafka topic of seeded purchases, and how a query reads it.

A key lives in one partition for ever, so the order of its rows is that of their offsets, and the rows of one step all
lie within `STEP_S` seconds of event time: a query that is at most `MOST_AHEAD` steps behind the topic sees no row late.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from testbed.topics import Record

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
STEP_S = 10
MOST_AHEAD = 2
DELAY = f"{(MOST_AHEAD + 2) * STEP_S} seconds"
"""The watermark's delay: longer than the event time of all that can lie between two partitions of a batch."""
KEYS_PER_PARTITION = 7
SCHEMA = "id LONG, key LONG, amount LONG, weight DOUBLE, ts TIMESTAMP"

Message = tuple[int, bytes, bytes]


class Purchases:
    """The records of a topic, step by step; the seed fixes them, but for how many steps and partitions there are."""

    def __init__(self, seed: int, rows: int) -> None:
        self.rows = rows
        self.steps = 0
        self._dice = random.Random(f"purchases of {seed}")
        self._id = 0

    def step(self, partitions: int) -> list[Message]:
        """The next step: `rows` records over all partitions; a tenth of them are there twice."""
        begins = START + timedelta(seconds=self.steps * STEP_S)
        self.steps += 1
        messages: list[Message] = []
        while len(messages) < self.rows:
            message = self._purchase(self._dice.randrange(partitions), begins)
            messages += [message] * (2 if self._dice.random() < 0.1 else 1)
        return messages[: self.rows]

    def _purchase(self, partition: int, begins: datetime) -> Message:
        key = partition * KEYS_PER_PARTITION + self._dice.randrange(KEYS_PER_PARTITION)
        at = begins + timedelta(milliseconds=self._dice.randrange(STEP_S * 1000))
        self._id += 1
        return _message(partition, self._id, key, self._dice.randrange(1000), self._dice.random(), at)


def closing(partitions: int) -> list[Message]:
    """A record for each partition, so late that all windows before it close. What comes before must have been read."""
    at = START + timedelta(days=1)
    return [_message(partition, -1 - partition, -1 - partition, 0, 0.0, at) for partition in range(partitions)]


def _message(partition: int, number: int, key: int, amount: int, weight: float, at: datetime) -> Message:
    event = {"id": number, "key": key, "amount": amount, "weight": weight, "ts": at.isoformat()}
    return partition, str(key).encode(), json.dumps(event).encode()


def read_topic(spark: SparkSession, address: str, topic: str, options: Mapping[str, str]) -> DataFrame:
    """The topic as a stream of purchases, each with the partition and the offset of its record."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    records = reader.options(**{"startingOffsets": "earliest", **options}).load()
    event = f.from_json(f.col("value").cast("string"), SCHEMA).alias("event")
    return records.select(event, "partition", "offset").select("event.*", "partition", "offset")


def as_table(records: list[Record]) -> pd.DataFrame:
    """The whole topic as a table, in the order of partitions and offsets."""
    return pd.DataFrame(_rows(records))


def _rows(records: list[Record]) -> Iterator[dict[str, object]]:
    for record in records:
        event = json.loads(record.value or b"{}")
        yield {
            **event,
            "ts": datetime.fromisoformat(event["ts"]),
            "partition": record.partition,
            "offset": record.offset,
        }
