"""A query that was killed while Spark wrote the plan of its first batch can be started again."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it import local

WRITE = "0.b1f126c6-d087-4358-be03-84370fd33b8f.tmp"
LEFT = (f"offsets/.{WRITE}", f"offsets/..{WRITE}.crc")


def stateful(rows: DataFrame) -> DataFrame:
    return rows.groupBy("value").count()


def stateless(rows: DataFrame) -> DataFrame:
    return rows.select("value")


@pytest.mark.parametrize(("query", "mode"), [(stateful, "update"), (stateless, "append")])
def test_what_a_killed_start_has_left_is_swept_away(
    query: object, mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    for name in LEFT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    writer = query(stream).writeStream.format("cec").outputMode(mode)  # type: ignore[operator]
    running = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        local.wait_for(running, 1)
    finally:
        running.stop()
    assert not [name for name in LEFT if (tmp_path / name).exists()]


def test_nothing_else_is_touched(spark: SparkSession, tmp_path: Path) -> None:
    """Another file there may be somebody's: Spark refuses to begin beside it, and says so."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "notes").write_text("mine")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    running = stream.writeStream.format("cec").option("checkpointLocation", str(tmp_path)).start()
    try:
        with pytest.raises(Exception, match="CHECKPOINT_LOCATION_NOT_EMPTY"):
            running.awaitTermination(60)
    finally:
        running.stop()
    assert (tmp_path / "offsets" / "notes").read_text() == "mine"
