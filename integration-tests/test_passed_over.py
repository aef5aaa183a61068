"""A crash between a sink's own commit of a batch and Spark's: the sink has the batch and passes it over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local, results
from cec_it.crashes import newest
from cec_it.driver import Job, Query, last_batch
from cec_it.plans import PLANS
from cec_it.references import References
from test_rewind import cut

STOPPED_AFTER = 5
QUERIES = [Query(plan, feeds.RATE, "json") for plan in ("long-windows", "chain")]


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


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.plan)
def test_the_file_sink(query: Query, spark: SparkSession, references: References, tmp_path: Path) -> None:
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(tmp_path / "index")})
    local.run_to(own, job, query, STOPPED_AFTER)
    take_back_last_commit(job.checkpoint(query), job.out(query))
    local.run_to(own, job, query, last_batch(job))
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

        _run_to(spark, checkpoint, write, STOPPED_AFTER)
        if crash:
            last = take_back_last_commit(checkpoint)
            for later in [batch for batch in written if batch > last]:
                del written[later]
            _run_to(spark, checkpoint, write, last + 4)
            assert skipped == [last]
        else:
            _run_to(spark, checkpoint, write, STOPPED_AFTER + 8)
        return written

    crashed, undisturbed = run(tmp_path / "crashed", True), run(tmp_path / "undisturbed", False)
    common = crashed.keys() & undisturbed.keys()
    assert len(common) > STOPPED_AFTER + 3
    assert {batch: crashed[batch] for batch in common} == {batch: undisturbed[batch] for batch in common}


def _run_to(spark: SparkSession, checkpoint: Path, write: Callable[[DataFrame, int], None], batch: int) -> None:
    own = local.session(spark, local.OPENINGS_ONLY)
    frame = PLANS["totals"].build(lambda side: feeds.read_rate(own, side, local.BATCHES, local.ROWS))
    streaming = (
        frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).foreachBatch(write).start()
    )
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()
