"""A pipeline that may run in replicas: two inputs that a test feeds -> counts and sums by page and window -> a sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.feed import NOON, Feed
from cec_it.local import tasks_are_over
from spark_cec.pipeline import Pipeline
from spark_cec.settings import PROVIDER, PROVIDER_KEY

INPUTS = ("web", "app")
COLUMNS = "time TIMESTAMP, page STRING, price DOUBLE"
Shown = Counter[tuple[int, str, int, float]]

BOUND = {"within": "6s", "alpha": 0.8}
"""Longer than the flows take with little input on a busy machine."""


@contextmanager
def feeding(spark: SparkSession, root: Path) -> Iterator[Feed]:
    """Rows of files as the output of two queries, which both replicas read."""
    feed, session = Feed(root), spark.newSession()
    session.conf.set(PROVIDER_KEY, PROVIDER)
    queries = []
    for name in INPUTS:
        files = session.readStream.schema(COLUMNS).json(f"{root}/{name}")
        queries.append(files.writeStream.format("cec").option("checkpointLocation", f"{root}/fed/{name}").start())
    try:
        yield feed
    finally:
        for query in queries:
            query.stop()
        tasks_are_over(spark)


def shown(row: Row) -> tuple[int, str, int, float]:
    """A row by the second after noon at which its window ends."""
    end = row.time + timedelta(microseconds=1)
    return int(end.timestamp()) - int(NOON.timestamp()), row.page, row.n, row.price


def per_page(
    root: Path, take: Callable[[DataFrame, int], None], *, tentative: bool = False, home: str | None = None, **how: Any
) -> Pipeline:  # fmt: skip
    """Windows of 10 seconds. `take`: for the `foreachBatch` of the sink. `how`: options of the flow `totals`."""
    made = Pipeline("shop", home or f"{root}/home")

    def declare(name: str) -> None:
        @made.flow(name=name)
        def rows(spark: SparkSession) -> DataFrame:
            read = spark.readStream.format("cec").option("waitForLog", "true").schema(COLUMNS)
            return read.load(f"{root}/fed/{name}")

    for name in INPUTS:
        declare(name)

    @made.flow(**{"partitions": 2, "bucket": "1s", "watermarks": dict.fromkeys(INPUTS, ("time", "2 seconds")), **how})
    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        grouped = web.unionByName(app).groupBy(f.window("time", "10 seconds").alias("w"), "page")
        found = grouped.agg(f.count("*").alias("n"), f.sum("price").alias("price"))
        return found.select(f.window_time("w").alias("time"), "page", "n", "price")

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")}, tentative=tentative)
    def board(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(take)

    return made
