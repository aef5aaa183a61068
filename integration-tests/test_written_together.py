"""Stores of an executor that write a batch together: what ends between the last task and the write loses nothing."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from cec_it import feeds, local
from cec_it.killed_jobs import (
    BATCHES,
    TWO_EXECUTORS,
    finish,
    make_jobs,
    rows_of,
    run_with_dying_executors,
    stderr_of,
)

TOGETHER = {"writeAt": "batch"}
Rows = dict[int, list[tuple[object, ...]]]
AMOUNTS = {"integers": f.col, "doubles": lambda name: f.col(name).cast("double") / 3}


def run(
    spark: SparkSession,
    checkpoint: Path,
    amounts: str,
    upto: int,
    conf: Mapping[str, str],
    after: Callable[[int], None] = lambda _: None,
) -> Rows:
    """A run of the query; its rows by batch. `after` is called when all tasks of a batch have ended."""
    seen: Rows = {}

    def keep(frame: DataFrame, batch: int) -> None:
        seen[batch] = sorted(tuple(row) for row in frame.collect())
        after(batch)

    own = local.session(spark, {**local.OPENINGS_ONLY, **conf})
    read = feeds.read_rate(own, "left", local.BATCHES, local.ROWS)
    totals = read.groupBy("key").agg(f.sum(AMOUNTS[amounts]("amount")).alias("total"))
    writer = totals.writeStream.foreachBatch(keep).outputMode("update")
    streaming = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        local.wait_for(streaming, upto)
    finally:
        streaming.stop()
    return {batch: rows for batch, rows in seen.items() if batch <= upto}


@pytest.mark.parametrize("write_at", ["batch", "async"])
@pytest.mark.parametrize("amounts", AMOUNTS)
def test_restarts_and_deaths_of_the_agent_change_no_row(
    amounts: str, write_at: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The agent dies when all tasks have ended, and no store has written: the executor has the commits still."""
    whole = run(spark, tmp_path / "whole", amounts, 7, {})
    killed: list[int] = []

    def kill_agent(batch: int) -> None:
        if batch in (1, 4, 6):
            killed.append(batch)
            os.kill(local.agent_pid(spark), signal.SIGKILL)

    found: Rows = {}
    for upto in (2, 5, 7):
        found |= run(spark, tmp_path / "killed", amounts, upto, {"writeAt": write_at}, kill_agent)
    assert found == whole
    assert killed == [1, 4, 6]


@pytest.mark.parametrize("amounts", AMOUNTS)
def test_output_in_the_log_is_written_with_the_commits(amounts: str, spark: SparkSession, tmp_path: Path) -> None:
    """The rows of the `cec` sink, over two restarts that lose what the log lacks."""

    def read(name: str, upto: int, conf: Mapping[str, str]) -> list[tuple[object, ...]]:
        own = local.session(spark, {**local.OPENINGS_ONLY, **conf})
        source = feeds.read_rate(own, "left", local.BATCHES, local.ROWS)
        totals = source.groupBy("key").agg(f.sum(AMOUNTS[amounts]("amount")).alias("total"))
        writer = totals.writeStream.format("cec").outputMode("update")
        streaming = writer.option("checkpointLocation", str(tmp_path / name)).start()
        try:
            local.wait_for(streaming, upto)
        finally:
            streaming.stop()
        rows = spark.read.format("cec").load(str(tmp_path / name))
        return sorted(tuple(row) for row in rows.select("key", "total").collect())

    whole = read("whole", local.BATCHES - 1, {})
    found = [read("together", upto, TOGETHER) for upto in (2, 5, local.BATCHES - 1)]
    assert found[-1] == whole and len(whole) > len(found[0]) > 0


@pytest.mark.parametrize("doubles", [False, True], ids=["integers", "doubles"])
def test_an_executor_that_ends_in_good_order_costs_nothing(doubles: bool, tmp_path: Path) -> None:
    """It writes what it holds as it ends, and the driver finds that in the log."""
    whole, ended = make_jobs(tmp_path, None, {}, doubles=doubles, both=TWO_EXECUTORS)
    assert finish(whole) == 0, stderr_of(whole)[-3000:]
    assert finish(replace(ended, kill_at=3, softly=True)) == 0, stderr_of(ended)[-3000:]
    assert rows_of(ended) == rows_of(whole) and len(rows_of(whole)) == BATCHES
    assert len(Path(ended.root, "rows", "3").read_text().splitlines()) == 1, "the batch counts"


def test_a_batch_that_spark_names_by_its_first_commit_keeps_that_commit(spark: SparkSession, tmp_path: Path) -> None:
    """With checkpoint ids Spark records the first commit's id, also if the batch is read again with another result."""
    reads: dict[int, list[list[tuple[object, ...]]]] = {}

    def grow(key: tuple[int], _: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before = state.get[0] if state.exists else 0.0
        after = before + random.random() + 0.001  # in the stage of the state, which each read runs
        state.update((after,))
        yield pd.DataFrame({"key": [key[0]], "x": [after]})

    def read_twice(frame: DataFrame, batch: int) -> None:
        reads[batch] = [sorted(tuple(row) for row in frame.collect()) for _ in range(2)]

    def go_on(upto: int) -> None:
        conf = {**TOGETHER, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
        own = local.session(spark, conf)
        source = feeds.read_rate(own, "left", local.BATCHES, local.ROWS)
        groups = source.groupBy("key")
        grown = groups.applyInPandasWithState(grow, "key long, x double", "x double", "update", "NoTimeout")
        writer = grown.writeStream.foreachBatch(read_twice).outputMode("update")
        streaming = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            local.wait_for(streaming, upto)
        finally:
            streaming.stop()

    for upto in (2, 5, 7):
        go_on(upto)
    assert any(first != second for first, second in reads.values()), "the two reads differ"
    known: dict[object, float] = {}
    for batch in range(8):
        first, second = reads[batch]
        for key, x in [*first, *second]:
            assert 0 < float(str(x)) - known.get(key, 0.0) < 1.002, f"batch {batch} builds on the first read before it"
        known |= {key: float(str(x)) for key, x in first}


@pytest.mark.parametrize("doubles", [False, True], ids=["integers", "doubles"])
def test_a_batch_whose_executor_dies_before_it_writes_does_not_count(doubles: bool, tmp_path: Path) -> None:
    """On the first restart, and on the second."""
    whole, killed = make_jobs(tmp_path, None, {}, doubles=doubles, both=TWO_EXECUTORS)
    assert finish(whole) == 0, stderr_of(whole)[-3000:]
    run_with_dying_executors(killed)
    assert rows_of(killed) == rows_of(whole) and len(rows_of(whole)) == BATCHES
