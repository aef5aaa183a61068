"""An average of integers stays dirty while it is exact in any order of its rows, and is written when it may not be."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cec_it import local

FEW, MANY = 1_000, 2_200_000
"""Rows of a batch: two batches of the latter are more than 2^22."""


@pytest.mark.parametrize(("rows", "dirty"), [(FEW, 1), (MANY, 0)])
def test_a_window_with_many_rows_is_clean(rows: int, dirty: int, spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {**local.OPENINGS_ONLY, "effort": "0"})
    source = own.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    values = source.load().select(f.expr("CAST(value % 1000 AS INT)").alias("n"))
    writer = values.agg(f.avg("n")).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        local.wait_for(query, 2)
        (operator,) = next(p for p in query.recentProgress if p["batchId"] == 2)["stateOperators"]
    finally:
        query.stop()
    assert local.query_json(tmp_path / "checkpoint")["mode"] == "deferred"
    assert operator["customMetrics"]["cecDirty"] == dirty
