"""The `cec` sink of a query whose state another provider keeps: it restarts, and the commands look for no state."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from typer.testing import CliRunner

from cec_it import local
from spark_cec.cli.app import app
from spark_cec.settings import PROVIDER_KEY

STATE = "org.apache.spark.sql.execution.streaming.state."
OTHERS = [STATE + "RocksDBStateStoreProvider", STATE + "HDFSBackedStateStoreProvider"]


def run_to(spark: SparkSession, checkpoint: Path, batch: int) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 2).load()
    totals = rate.groupBy((f.col("value") % 5).alias("key")).agg(f.count("*").alias("n"))
    writer = totals.writeStream.format("cec").outputMode("update").option("checkpointLocation", str(checkpoint))
    streaming = writer.start()
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()


def rows_to(spark: SparkSession, checkpoint: Path, batch: int) -> list[Row]:
    rows = spark.read.format("cec").load(str(checkpoint)).where(f.col("n") <= 4 * (batch + 1))
    return sorted(rows.select("key", "n").collect())


@pytest.mark.parametrize("provider", OTHERS, ids=["rocksdb", "hdfs"])
def test_it_restarts_twice(provider: str, spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {}, **{PROVIDER_KEY: provider})
    undisturbed, restarted = tmp_path / "undisturbed", tmp_path / "restarted"
    run_to(own, undisturbed, 6)
    for batch in (2, 4, 6):
        run_to(own, restarted, batch)
    assert rows_to(own, restarted, 6) == rows_to(own, undisturbed, 6) != []
    for command in ("inspect", "verify", "repair"):
        said = CliRunner().invoke(app, [command, str(restarted)])
        assert said.exit_code == 0, said.output
