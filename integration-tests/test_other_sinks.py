"""Sinks that people use beside files: a table by `toTable`, and a database through `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local, results, sinks
from cec_it.crashes import KillPoint, run_with_kills
from cec_it.driver import CEC, Job, Query
from cec_it.references import References

Read = Callable[[SparkSession, Job, Query], DataFrame]


def table(spark: SparkSession, job: Job, query: Query) -> DataFrame:
    sinks.create_table(spark, job, query)
    return spark.table(sinks.OUTPUT)


def database(spark: SparkSession, job: Job, query: Query) -> DataFrame:
    url = sinks.jdbc_url(spark, job, query)
    return spark.read.option("driver", sinks.DERBY).jdbc(url, sinks.OUTPUT).drop("batch")


@pytest.mark.parametrize(("sink", "read"), [("table", table), pytest.param("jdbc", database, marks=pytest.mark.long)])
def test_a_killed_query_writes_each_row_once(
    sink: str, read: Read, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query("long-windows", feeds.RATE, sink)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS, conf={CEC + "CI": "0ms"})
    history = run_with_kills(job, [KillPoint(query, 5, "committed")], program="cec_it.sinks")
    assert not any(life.failed for life in history.lives), [life.failed for life in history.lives]
    assert history.replayed(query)[0] > 1, str(history)
    rows = results.json_rows(read(spark.newSession(), job, query))
    wanted = results.union(references.get(query, job))
    assert wanted and not results.difference(results.union({0: rows}), wanted), str(history)
