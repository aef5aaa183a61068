"""The pipeline: purchases by minute, those sums by five minutes, and the expensive ones."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from purchases_demo.layout import WATERMARK_DELAY_MS, WINDOW_MS
from spark_cec.pipeline import Pipeline

LONG_MS = 5 * WINDOW_MS
EXPENSIVE = 40_000
"""In cents."""

COLUMNS = {
    "by_minute": ("window_start", "item_id", "purchases", "sum_cents"),
    "by_five_minutes": ("window_start", "item_id", "purchases", "sum_cents"),
    "expensive": ("seq", "item_id", "item_price"),
}
"""What each sink writes; times are in ms since 1970."""


def declare(events: Path, home: Path, out: Path) -> Pipeline:
    """Reads the files in `events`, one to a batch, and writes Parquet files, a directory below `out` for each sink."""
    made = Pipeline("purchases", str(home))

    @made.flow
    def purchases(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.schema("item_id INT, item_price INT, item_time TIMESTAMP, seq BIGINT")
        return stream.option("maxFilesPerTrigger", "1").json(str(events))

    @made.flow(partitions=2)
    def minutes(purchases: DataFrame) -> DataFrame:
        return _sums(purchases, "item_time", WATERMARK_DELAY_MS, WINDOW_MS, F.count("*"), F.sum("item_price"))

    @made.flow(partitions=2)
    def five_minutes(minutes: DataFrame) -> DataFrame:
        return _sums(minutes, "begins", WINDOW_MS, LONG_MS, F.sum("purchases"), F.sum("sum_cents"))

    @made.flow
    def dear(purchases: DataFrame) -> DataFrame:
        return purchases.where(F.col("item_price") >= EXPENSIVE)

    @made.sink
    def by_minute(minutes: DataFrame) -> DataStreamWriter:
        return _files(_in_ms(minutes), "by_minute", out)

    @made.sink(priority=5)
    def by_five_minutes(five_minutes: DataFrame) -> DataStreamWriter:
        return _files(_in_ms(five_minutes), "by_five_minutes", out)

    @made.sink
    def expensive(dear: DataFrame) -> DataStreamWriter:
        return _files(dear, "expensive", out)

    return made


def _sums(rows: DataFrame, time: str, late_ms: int, window_ms: int, count: Column, cents: Column) -> DataFrame:
    """By item and window, once the window is closed."""
    in_time = rows.withWatermark(time, f"{late_ms} milliseconds")
    window = F.window(time, f"{window_ms} milliseconds").alias("w")
    sums = in_time.groupBy(window, "item_id").agg(count.alias("purchases"), cents.alias("sum_cents"))
    return sums.select(F.col("w.start").alias("begins"), "item_id", "purchases", "sum_cents")


def _in_ms(sums: DataFrame) -> DataFrame:
    return sums.withColumn("window_start", F.unix_millis("begins"))


def _files(rows: DataFrame, name: str, out: Path) -> DataStreamWriter:
    return rows.select(*COLUMNS[name]).writeStream.format("parquet").option("path", str(out / name))
