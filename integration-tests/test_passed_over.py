"""A crash between a sink's own commit of a batch and Spark's: the sink has the batch and passes it over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local, log, results
from cec_it.driver import Job, Query, last_batch
from cec_it.plans import PLANS
from cec_it.references import References
from cec_it.sparklogs import cut
from testbed.spark_logs import newest

STOPPED_AFTER = 5
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def run_until_none_is_under_way(run: Callable[[int], None], checkpoint: Path) -> None:
    """Runs to a batch and a few further, until a stop finds no batch under way that stores have committed.

    A crash cannot leave such a batch, and the one before it without Spark's commit.
    """
    for batch in range(STOPPED_AFTER, STOPPED_AFTER + 20):
        run(batch)
        if max(entry.meta.version for entry in log.commits(checkpoint)) == newest(checkpoint / "commits") + 1:
            return
    raise AssertionError("each stop was in the middle of a batch")


def take_back_last_commit(checkpoint: Path, out: Path | None = None) -> int:
    """Leave what a crash just before Spark's commit of the newest batch leaves; answers that batch."""
    last = newest(checkpoint / "commits")
    cut(checkpoint / "commits", [last])
    cut(checkpoint / "offsets", [batch for batch in [last + 1] if (checkpoint / "offsets" / str(batch)).exists()])
    if out is not None:
        for later in out.glob(f"_spark_metadata/{last + 1}"):
            later.unlink()
        assert (out / "_spark_metadata" / str(last)).exists(), "the sink must have the batch, or this proves nothing"
    return last


@pytest.mark.parametrize(
    ("plan", "before", "after", "version_format"),
    [
        ("long-windows", "auto", "auto", "1"),
        ("chain", "auto", "auto", "1"),
        ("long-windows", "auto", "eager", "1"),
        ("window-append", "eager", "eager", "2"),
    ],
)
def test_the_file_sink(
    plan: str, before: str, after: str, version_format: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query(plan, feeds.RATE, "json")
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)

    def own(mode: str) -> SparkSession:
        conf = {"index.path": str(tmp_path / "index"), "mode": mode, FORMAT: version_format}
        return local.session(spark, local.OPENINGS_ONLY, **conf)

    run_until_none_is_under_way(lambda batch: local.run_to(own(before), job, query, batch), job.checkpoint(query))
    take_back_last_commit(job.checkpoint(query), job.out(query))
    local.run_to(own(after), job, query, last_batch(job))
    references.prepare(job)
    wanted = references.get(query, job)
    found = {batch: rows for batch, rows in results.file_sink_batches(job.out(query)).items() if batch <= max(wanted)}
    assert sorted(found) == sorted(wanted)
    for batch, rows in wanted.items():
        assert found[batch] == rows, f"batch {batch}"


def test_a_function_that_skips_what_it_has(spark: SparkSession, tmp_path: Path) -> None:
    """`foreachBatch` as many write it: a batch that was written already is not looked at."""

    def run(checkpoint: Path, crash: bool) -> dict[int, list[tuple[object, ...]]]:
        written: dict[int, list[tuple[object, ...]]] = {}
        skipped: list[int] = []

        def write(frame: DataFrame, batch: int) -> None:
            if batch in written:
                skipped.append(batch)
            else:
                written[batch] = sorted(tuple(row) for row in frame.collect())

        run_until_none_is_under_way(lambda batch: _run_to(spark, checkpoint, write, batch), checkpoint)
        if crash:
            last = take_back_last_commit(checkpoint)
            for later in [batch for batch in written if batch > last]:
                del written[later]
            skipped.clear()
            _run_to(spark, checkpoint, write, last + 4)
            assert skipped == [last]
        else:
            _run_to(spark, checkpoint, write, STOPPED_AFTER + 8)
        return written

    crashed, undisturbed = run(tmp_path / "crashed", True), run(tmp_path / "undisturbed", False)
    common = crashed.keys() & undisturbed.keys()
    assert len(common) > STOPPED_AFTER + 3
    assert {batch: crashed[batch] for batch in common} == {batch: undisturbed[batch] for batch in common}


def test_a_function_that_looks_at_some_rows_only(spark: SparkSession, tmp_path: Path) -> None:
    seen: dict[int, dict[object, object]] = {}

    def peek(frame: DataFrame, batch: int) -> None:
        if batch % 2:
            frame.take(1)
        else:
            seen[batch] = {row[0]: tuple(row) for row in frame.collect()}

    _run_to(spark, tmp_path / "peeking", peek, STOPPED_AFTER)
    _run_to(spark, tmp_path / "peeking", peek, STOPPED_AFTER + 3)
    whole: dict[int, list[tuple[object, ...]]] = {}
    _run_to(spark, tmp_path / "whole", local.in_memory(whole), STOPPED_AFTER + 3)
    common = seen.keys() & whole.keys()
    assert max(common) > STOPPED_AFTER
    for batch in common:
        assert seen[batch] == {row[0]: row for row in whole[batch]}, f"batch {batch}"


@pytest.mark.parametrize("plan", ["totals", "grand-total", "distinct", "distinct-within", "sessions", "count-windows"])
def test_a_batch_is_not_run_twice_without_need(plan: str, spark: SparkSession, tmp_path: Path) -> None:
    """Every store commits a version once; an aggregation without keys has one store, however many partitions."""
    runs: dict[int, list[tuple[object, ...]]] = {}
    _run_to(spark, tmp_path, local.in_memory(runs), 3, plan)
    commits = [(each.meta.store, each.meta.version) for each in log.commits(tmp_path)]
    assert len({store for store, _ in commits}) == (1 if plan == "grand-total" else 2)
    assert len(commits) > 3
    assert len(commits) == len(set(commits)), commits


def _run_to(
    spark: SparkSession, checkpoint: Path, write: Callable[[DataFrame, int], None], batch: int, plan: str = "totals"
) -> None:
    own = local.session(spark, local.OPENINGS_ONLY)
    frame = PLANS[plan].build(lambda side: feeds.read_rate(own, side, local.BATCHES, local.ROWS))
    streaming = (
        frame.writeStream.outputMode("update" if plan == "totals" else PLANS[plan].mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(write)
        .start()
    )
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()
