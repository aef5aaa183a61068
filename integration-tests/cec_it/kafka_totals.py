"""A query in the tests' own session that sums up a topic by key, run life by life."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from cec_it import local
from cec_it.kafka_feed import read_topic
from spark_cec.cli.app import app

CRASHING = {"stop.flush": "off"}
"""With this `stop()` forgets what the log misses, as a crash does."""
OPENINGS_ONLY = {**local.OPENINGS_ONLY, "sources.margin": "0"}
"""And nothing is written later: a query that reads a topic from its first record has a margin of 0 at first."""

Rows = dict[int, list[tuple[object, ...]]]


@dataclass(slots=True)
class Totals:
    """Count, sum, and the mean, whose state has a double, by key, in update mode into memory."""

    spark: SparkSession
    address: str
    topic: str
    root: Path
    conf: Mapping[str, str] = field(default_factory=lambda: OPENINGS_ONLY)
    columns: tuple[str, ...] = ("n", "total")
    rows: Rows = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def start(self, conf: Mapping[str, str] | None = None, now: bool = False, **options: str) -> StreamingQuery:
        """Start it with source options, and settings in place of its own; `now`: with `Trigger.AvailableNow`."""
        session = local.session(self.spark, {**CRASHING, **(self.conf if conf is None else conf)})
        sums = {"n": f.count("*"), "total": f.sum("amount"), "mean": f.avg(f.col("amount").cast("int"))}
        frame = read_topic(session, self.address, self.topic, options).groupBy("key")
        totals = frame.agg(*(sums[name].alias(name) for name in self.columns))
        writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        writer = writer.foreachBatch(local.in_memory(self.rows))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run_to(self, batch: int, **options: str) -> None:
        """Run until a batch is committed, then crash."""
        streaming = self.start(**options)
        try:
            local.wait_for(streaming, batch)
        finally:
            streaming.stop()

    def run_out(self, **options: str) -> None:
        """Run until there is no more input."""
        streaming = self.start(**options)
        try:
            streaming.processAllAvailable()
        finally:
            streaming.stop()

    def run_now(self, **options: str) -> None:
        """Run with `Trigger.AvailableNow` to its end."""
        streaming = self.start(now=True, **options)
        try:
            assert streaming.awaitTermination(local.DEADLINE_S), "it has not ended"
        finally:
            streaming.stop()

    def needs(self) -> dict[str, Any]:
        """What a recovery would need of the topic, by `cec inspect`."""
        result = CliRunner().invoke(app, ["inspect", str(self.checkpoint), "--json"])
        assert result.exit_code == 0, result.output
        needed = json.loads(result.stdout)["needs_input"]
        assert isinstance(needed, dict)
        return needed

    def found(self) -> dict[int, tuple[object, ...]]:
        """The last row of each key."""
        return {int(str(row[0])): row[1:] for _, rows in sorted(self.rows.items()) for row in rows}

    def wanted(self, table: pd.DataFrame) -> dict[int, tuple[object, ...]]:
        """The same from the whole topic."""
        sums = {"n": ("id", "count"), "total": ("amount", "sum"), "mean": ("amount", "mean")}
        by_key = table.groupby("key").agg(**{name: sums[name] for name in self.columns}).reset_index()
        rows = zip(*(by_key[name].tolist() for name in ("key", *self.columns)), strict=True)
        return {int(key): tuple(values) for key, *values in rows}
