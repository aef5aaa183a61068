"""A pipeline: `cec pipeline graph examples/shop.py`, then `cec pipeline run examples/shop.py`.

Bids come from Spark's rate source here, so that it runs anywhere; in a shop they would come from Kafka. Rows go to
Parquet files below the home, which is ./shop unless SHOP_HOME says otherwise.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_cec.pipeline import Pipeline

HOME = os.environ.get("SHOP_HOME", os.path.abspath("shop"))  # noqa: PTH100
shop = Pipeline("shop", home=HOME)


@shop.flow
def bids(spark: SparkSession) -> DataFrame:
    """Where rows come in: any streaming source that can be read again."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "500")
    counted = stream.option("startTimestamp", "1700000000000").option("advanceMillisPerBatch", "20000").load()
    return counted.select(
        F.timestamp_millis(F.unix_millis("timestamp") + F.pmod("value", F.lit(20_000))).alias("at"),
        F.pmod(F.hash("value"), F.lit(5)).alias("item"),
        F.pmod(F.hash("value", F.lit("price")), F.lit(1000)).alias("price"),
    )


@shop.flow(partitions=2)
def per_minute(bids: DataFrame) -> DataFrame:
    """A parameter names the flow that is read. This one has a state, which a crash does not lose."""
    minute = F.window("at", "1 minute").alias("minute")
    late = bids.withWatermark("at", "30 seconds")
    sums = late.groupBy(minute, "item").agg(F.count("*").alias("bids"), F.max("price").alias("highest"))
    return sums.select(F.col("minute.start").alias("minute"), "item", "bids", "highest")


@shop.flow(partitions=2)
def busiest(per_minute: DataFrame) -> DataFrame:
    """A second state behind the first, with windows that are a multiple of the others'."""
    hour = F.window("minute", "10 minutes").alias("w")
    late = per_minute.withWatermark("minute", "1 minute")
    sums = late.groupBy(hour, "item").agg(F.sum("bids").alias("bids"), F.max("highest").alias("highest"))
    return sums.select(F.col("w.start").alias("since"), "item", "bids", "highest")


@shop.sink
def minutes(per_minute: DataFrame) -> DataStreamWriter:
    """Where rows leave the pipeline: any sink."""
    return per_minute.writeStream.format("parquet").option("path", f"{HOME}/minutes")


@shop.sink(priority=5)
def report(busiest: DataFrame) -> DataStreamWriter:
    """When executors are short after a failure, what matters more comes back first."""
    return busiest.writeStream.format("parquet").option("path", f"{HOME}/report")
