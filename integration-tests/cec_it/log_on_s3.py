"""A query whose log is on S3, in a driver of its own: `python -m cec_it.log_on_s3 ROOT LOG ENDPOINT BATCHES`.

The keys are where Spark keeps them, and nowhere else. Each batch's rows go to a file.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import feeds

CEC = "spark.sql.streaming.stateStore.cec."


def main(root: str, log: str, endpoint: str, batches: int) -> None:
    """Runs the query up to the batch before `batches`."""
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.access.key": "the-key",
        "spark.hadoop.fs.s3a.secret.key": "the-secret", "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        CEC + "log.path": log, CEC + "CI": "0ms", CEC + "effort": "0", CEC + "index.path": f"{root}/index",
    }  # fmt: skip
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = spark_cec.configure(builder).getOrCreate()
    rows = Path(root, "rows")
    rows.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch: int) -> None:
        found = sorted((row["key"], row["total"], row["mean"]) for row in frame.collect())
        part = rows / f".{batch}"
        part.write_text(json.dumps(found))
        part.replace(rows / str(batch))

    read = feeds.read_rate(spark, "left", batches, 120)
    totals = read.groupBy("key").agg(f.sum("amount").alias("total"), f.avg(f.col("amount").cast("int")).alias("mean"))
    writer = totals.writeStream.foreachBatch(keep).outputMode("update")
    query = writer.option("checkpointLocation", f"{root}/checkpoint").start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1 and not query.awaitTermination(0.1):
            pass
    finally:
        sys.stdout.flush()
        os._exit(0)  # as a crash does, which flushes nothing


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
