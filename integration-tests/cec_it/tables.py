"""A directory of events that grows file by file, and queries on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import local

EVENTS = "key LONG, amount LONG, seq LONG, ts TIMESTAMP"
Rows = dict[int, list[tuple[object, ...]]]


class Table:
    """A directory of events that grows file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._number = itertools.count()
        self._seq = itertools.count()
        root.mkdir(parents=True)

    def add(self, *events: tuple[int, int, int]) -> None:
        """Append a file of events, each with key, amount, and second of its time."""
        lines = [
            {
                "key": key,
                "amount": amount,
                "seq": next(self._seq),
                "ts": f"2024-01-01T00:{second // 60:02d}:{second % 60:02d}Z",
            }
            for key, amount, second in events
        ]
        hidden = self.root / ".next"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
        hidden.rename(self.root / f"{next(self._number):05d}.json")

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(EVENTS).json(str(self.root))


def run_totals(spark: SparkSession, table: Table, amount: Column, checkpoint: Path, into: Rows) -> StreamingQuery:
    """Sums by key, in update mode."""
    return run(table.read(spark).groupBy("key").agg(f.sum(amount).alias("total")), "update", checkpoint, into)


def run(frame: DataFrame, mode: str, checkpoint: Path, into: Rows) -> StreamingQuery:
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    return writer.foreachBatch(local.in_memory(into)).start()


def step_by_step(table: Table, streaming: StreamingQuery, files: Iterable[Iterable[tuple[int, int, int]]]) -> None:
    """Give the query one file after the other, each when all before is done, then stop it."""
    try:
        for events in files:
            table.add(*events)
            streaming.processAllAvailable()
    finally:
        streaming.stop()
