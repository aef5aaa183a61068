"""The `cec` sink of a query whose state another provider keeps: it restarts, and the commands look for no state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from typer.testing import CliRunner

from cec_it import local
from spark_cec.cli.app import app
from spark_cec.settings import PROVIDER_KEY

STATE = "org.apache.spark.sql.execution.streaming.state."
_STORES = "spark.sql.streaming.stateStore."
OTHERS = [STATE + "RocksDBStateStoreProvider", STATE + "HDFSBackedStateStoreProvider"]


@pytest.fixture
def maintenance(spark: SparkSession) -> Iterator[None]:
    """Spark's maintenance of stores begins anew, with the interval of the next query's session, and forgets stores."""
    yield
    forget_stores(spark)


def forget_stores(spark: SparkSession) -> None:
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def write_files(folder: Path, batches: range, factor: int) -> None:
    """A file for each batch, with a row of one key: the changes of a few batches are not the whole state.

    Spark reads the files by their times.
    """
    folder.mkdir(exist_ok=True)
    for batch in batches:
        file, at = folder / f"{factor}-{batch:02d}.json", 1_700_000_000 + 100 * factor + batch
        made = folder / f".{file.name}"
        made.write_text(json.dumps({"key": batch % 5, "n": factor * 10 * batch}))
        os.utime(made, (at, at))
        made.rename(file)


def sum_files(
    spark: SparkSession, checkpoint: Path, folder: Path, batch: int, snapshot_from: int | None = None
) -> None:
    """Runs until that batch, and, if asked, until Spark has a snapshot of that version or a later one."""
    read = spark.readStream.schema("key INT, n BIGINT").option("maxFilesPerTrigger", 1).json(str(folder))
    sums = read.groupBy("key").agg(f.sum("n").alias("n"))
    writer = sums.writeStream.format("cec").outputMode("update").option("checkpointLocation", str(checkpoint))
    streaming = writer.start()

    def has_snapshot() -> bool | None:
        names = (each.name for each in (checkpoint / "state/0/0").iterdir() if each.suffix in (".snapshot", ".zip"))
        return any(int(name.split(".")[0]) >= (snapshot_from or 0) for name in names) or None

    try:
        local.wait_for(streaming, batch)
        if snapshot_from is not None:
            local.eventually(has_snapshot, f"a snapshot from version {snapshot_from} on")
    finally:
        streaming.stop()


@pytest.mark.parametrize("provider", OTHERS, ids=["rocksdb", "hdfs"])
def test_no_snapshot_of_the_history_that_was_left_comes_back(
    provider: str, spark: SparkSession, maintenance: None, tmp_path: Path
) -> None:
    """Spark writes the changes of a version anew, but not the snapshots of its maintenance."""
    often = {
        PROVIDER_KEY: provider, "spark.sql.shuffle.partitions": "1", f"{_STORES}minDeltasForSnapshot": "2",
        f"{_STORES}maintenanceInterval": "200ms", f"{_STORES}rocksdb.changelogCheckpointing.enabled": "true",
    }  # fmt: skip
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "files"
    write_files(folder, range(10), factor=1)
    forget_stores(spark)
    sum_files(local.session(spark, {}, **often), checkpoint, folder, 9, snapshot_from=7)
    said = CliRunner().invoke(app, ["rollback", str(checkpoint), "--to", "4", "--yes"])
    assert said.exit_code == 0, said.output
    for batch in range(5, 10):
        (folder / f"1-{batch:02d}.json").unlink()
    write_files(folder, range(5, 10), factor=100)
    seldom = {**often, f"{_STORES}maintenanceInterval": "1h"}
    for last in (9, 10, 11):
        forget_stores(spark)
        write_files(folder, range(5, last + 1), factor=100)
        sum_files(local.session(spark, {}, **seldom), checkpoint, folder, last)
    found = spark.read.format("cec").load(str(checkpoint)).groupBy("key").agg(f.max("n").alias("n")).collect()
    sums = {key: sum((100 if batch > 4 else 1) * 10 * batch for batch in range(key, 12, 5)) for key in range(5)}
    assert {row["key"]: row["n"] for row in found} == sums


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
