"""The driver of one replica, which is killed: two sources with late rows -> windows by page -> a file for each batch.

`python -m cec_it.replica_driver REPLICA ROOT MASTER PRICE`. PRICE is the type of the summed column. It prints the
status as lines of JSON, and runs until it is killed, or until its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.replica_process import exit_with, run_replica
from spark_cec.pipeline import Pipeline

SOURCES = ("app", "web")
BEGIN_MS = 1_700_000_000_000
STEP_MS = 20
DELAY_MS = 1_000
WINDOW_MS = 5_000
BUCKET_MS = 500
ROWS = 400
PAGES = 5


def rows_of_source(spark: SparkSession, source: str, price: str) -> DataFrame:
    """Rows that are alike in each replica. A tenth is late by up to eight seconds."""
    shift = SOURCES.index(source)
    made = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    behind = f.expr(f"pmod(xxhash64(value, {shift}), IF(pmod(value, 10) = 3, 8000, 800))")
    time = f.timestamp_millis(f.col("value") * STEP_MS + BEGIN_MS - behind)
    columns = [time.alias("time"), f.expr(f"pmod(value, {PAGES})").alias("page"), f.col("value").alias("n")]
    return made.select(*columns, f.expr(f"CAST(pmod(value, 97) / 10 AS {price})").alias("price"))


def declare(root: Path, price: str) -> Pipeline:
    """The pipeline."""
    made = Pipeline("pages", f"{root}/home")

    def add_source(name: str) -> None:
        @made.flow(name=name, kept=True, trigger={"processingTime": "1 second"})
        def rows(spark: SparkSession) -> DataFrame:
            return rows_of_source(spark, name, price)

    for name in SOURCES:
        add_source(name)

    @made.flow(partitions=2, kept=True, bucket=f"{BUCKET_MS}ms",
               watermarks=dict.fromkeys(SOURCES, ("time", f"{DELAY_MS} milliseconds")))  # fmt: skip
    def totals(app: DataFrame, web: DataFrame) -> DataFrame:
        grouped = app.unionByName(web).groupBy(f.window("time", f"{WINDOW_MS} milliseconds").alias("w"), "page")
        found = grouped.agg(f.count("*").alias("rows"), f.sum("n").alias("n"), f.sum("price").alias("price"))
        return found.select(f.window_time("w").alias("time"), "page", "rows", "n", "price")

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def files(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(lambda rows, batch: write_batch(root / "out", rows, batch))

    return made


def write_batch(out: Path, rows: DataFrame, batch: int) -> None:
    """Writes the rows of a batch into a file, which a repeat replaces. A repeat with other rows is noted."""
    made = sorted([row.time.timestamp(), row.page, row.rows, row.n, float(row.price)] for row in rows.collect())
    path, text = out / f"{batch:06d}.json", json.dumps(made)
    if path.exists() and [each[:4] for each in json.loads(path.read_text())] != [each[:4] for each in made]:
        (out / f"differs-{batch}").write_text(text)
    hidden = out / f".{batch}-{os.getpid()}"
    hidden.write_text(text)
    hidden.rename(path)


if __name__ == "__main__":
    replica, place, master, price = sys.argv[1:]
    exit_with(run_replica(declare(Path(place), price), replica, Path(place), master))
