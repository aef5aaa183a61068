"""The job: purchases from Kafka, averaged by item and minute, with Spark CEC keeping the state."""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from kafka_demo.layout import LINES, PARTITIONS, TOPIC, WATERMARK_DELAY_MS, WINDOW_MS, Layout
from kafka_demo.purchases import closing_records
from testbed.jars import CONNECTOR, jars
from testbed.topics import Topics

_SCHEMA = "item_id LONG, item_price LONG, item_time TIMESTAMP, seq LONG"


def open_session(layout: Layout) -> SparkSession:
    """A local session with Spark's Kafka connector and the CEC provider, which `configure` adds."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("purchases from Kafka")
        .config("spark.jars", ",".join(map(str, jars(CONNECTOR))))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        # So small a state is written whole at every batch, by default, and no crash would show a replay.
        .config("spark.sql.streaming.stateStore.cec.effort", "0")
        .config("spark.local.dir", str(layout.scratch))
        .config("spark.sql.warehouse.dir", str(layout.scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={layout.scratch}" -XX:TieredStopAtLevel=1')
    )
    spark: SparkSession = spark_cec.configure(builder).getOrCreate()
    return spark


def averages_by_minute(spark: SparkSession, address: str) -> DataFrame:
    """The query, which is what it would be without Spark CEC."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", LINES)
        .load()
    )
    purchases = records.select(f.from_json(f.col("value").cast("string"), _SCHEMA).alias("purchase"))
    return (
        purchases.select("purchase.*")
        .withWatermark("item_time", f"{WATERMARK_DELAY_MS} milliseconds")
        .groupBy(f.window("item_time", f"{WINDOW_MS} milliseconds"), "item_id")
        .agg(f.count("*").alias("purchases"), f.sum("item_price").alias("sum_cents"))
        .select(f.unix_millis("window.start").alias("window_start"), "item_id", "purchases", "sum_cents")
    )


def run(layout: Layout, address: str, to_its_end: bool) -> None:
    """Run the query until it is killed; or, at the end, until all is read and all windows are closed.

    The last run leaves what the sink holds in `layout.rows`.
    """
    spark = open_session(layout)
    averages = averages_by_minute(spark, address)
    query = averages.writeStream.format("cec").option("checkpointLocation", str(layout.checkpoint)).start()
    if not to_its_end:
        query.awaitTermination()
        return
    query.processAllAvailable()
    Topics(address).produce(TOPIC, closing_records(PARTITIONS))
    query.processAllAvailable()
    query.stop()
    written = spark.read.format("cec").load(str(layout.checkpoint)).toJSON().collect()
    layout.rows.write_text("".join(f"{row}\n" for row in written))
    spark.stop()
