"""A flush is judged by the log: a JVM that the driver has forgotten is no success, and a later batch announces it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cec_it import local
from cec_it.tables import Rows, Table, run_totals
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.recovery.query_files import Flushed
from spark_cec.recovery.requests import ask_flush, flush_answer


def hosts(spark: SparkSession) -> Any:
    """The driver's list of the JVMs with stores, which is private: a map."""
    jvm: Any = spark.sparkContext._jvm  # type: ignore[union-attr]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    directory = jvm.java.lang.Class.forName("org.apache.spark.sql.cec.exchange.StoreLocations$", True, loader)
    found = private(directory, "MODULE$", None)
    known = private(directory, "current", found).get()._2()
    return private(known.getClass(), "hosts", known)


def private(kind: Any, name: str, of: Any) -> Any:
    for field in kind.getDeclaredFields():
        if field.getName() == name or field.getName().endswith(f"$${name}"):
            field.setAccessible(True)
            return field.get(of)
    raise AssertionError(f"{kind} has no {name}")


def flush(checkpoint: Path, request: str) -> Flushed:
    own = open_storage(str(checkpoint / "cec"))
    ask_flush(own, request)
    return local.eventually(lambda: flush_answer(own, request), "an answer to the request")


def test_a_flush_that_reached_nobody_is_none(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {**local.OPENINGS_ONLY, "effort": "0"})
    table, rows, checkpoint = Table(tmp_path / "events"), Rows(), tmp_path / "checkpoint"
    streaming = run_totals(own, table, f.col("amount"), checkpoint, rows)
    try:
        for seconds in range(3):
            table.add(*((key, 1, seconds) for key in range(8)))
            streaming.processAllAvailable()
        hosts(spark).clear()
        missed = flush(checkpoint, "one")
        assert missed.version == 3
        assert [line.split(" needs ")[-1] for line in missed.failed] == ["a replay from batch 1 on"] * 2, missed
        assert hosts(spark).isEmpty()
        for number in range(4, 60):
            # A batch has its host announced anew, at most once in ten seconds.
            table.add((1, 1, number))
            streaming.processAllAvailable()
            if not hosts(spark).isEmpty():
                break
            streaming.awaitTermination(1)
        assert flush(checkpoint, "two").failed == ()
    finally:
        streaming.stop()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_clean_stop_says_what_it_has_not_written(
    forgotten: bool, spark: SparkSession, spark_log: Path, tmp_path: Path
) -> None:
    own = local.session(spark, {**local.OPENINGS_ONLY, "effort": "0", "stop.flush": "on"})
    table, rows, checkpoint = Table(tmp_path / "events"), Rows(), tmp_path / "checkpoint"
    streaming = run_totals(own, table, f.col("amount"), checkpoint, rows)
    try:
        for seconds in range(3):
            table.add(*((key, 1, seconds) for key in range(8)))
            streaming.processAllAvailable()
        if forgotten:
            hosts(spark).clear()
        before = spark_log.stat().st_size
    finally:
        streaming.stop()
    with spark_log.open() as file:
        file.seek(before)
        told = file.read().count("not written at the end of the query, so the next start replays it")
    assert told == (2 if forgotten else 0)
