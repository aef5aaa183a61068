"""Batches and tasks that run twice in one JVM, and queries that stop and start again in one session."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, local, results
from cec_it.crashes import Life, driver, follow
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch
from cec_it.plans import PLANS
from cec_it.references import References

LONG = ("window-append", "count-windows", "chain")


@pytest.mark.parametrize("plan", ["sessions", "join", *(pytest.param(plan, marks=pytest.mark.long) for plan in LONG)])
def test_a_batch_that_is_evaluated_twice_is_the_same_twice(
    plan: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    seen: dict[int, list[list[str]]] = {}

    def twice(frame: DataFrame, batch: int) -> None:
        seen[batch] = [results.json_rows(frame), results.json_rows(frame)]

    own = local.session(spark, local.OPENINGS_ONLY)
    frame = PLANS[plan].build(lambda side: feeds.read_rate(own, side, job.batches, job.rows))
    writer = frame.writeStream.outputMode(PLANS[plan].mode).option("checkpointLocation", str(job.checkpoint(query)))
    for stop_after in (3, last_batch(job)):
        streaming = writer.foreachBatch(twice).start()
        try:
            local.wait_for(streaming, stop_after)
        finally:
            streaming.stop()
    assert all(first == second for first, second in seen.values())
    wanted = references.get(query, job)
    assert {batch: rows[0] for batch, rows in sorted(seen.items()) if rows[0] and batch <= max(wanted)} == wanted
    assert local.reports(job.checkpoint(query), 1)[0]["digest_ok"] is True


def test_tasks_that_fail_once_leave_no_trace(references: References, tmp_path: Path) -> None:
    query = Query("stumbling", feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS, master="local[2,3]", conf={CEC + "CI": "0ms"})
    life = Life({query.name: -1})
    with driver(job) as child:
        follow(child, life, None, "tasks that fail once")
    assert not life.failed, life.failed
    stumbled = list((job.out(query).parents[1] / "scratch").glob("stumbled-*"))
    assert len(stumbled) >= 4, "no task has failed: this test proves nothing"
    assert results.last_recorded(job.out(query)) == references.get(replace(query, plan="window-update"), job)


def test_a_query_starts_again_in_the_same_session(spark: SparkSession, references: References, tmp_path: Path) -> None:
    query = Query("long-window-updates", feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY)
    for life, batch in enumerate((2, 4, 6, last_batch(job))):
        local.run_to(own, replace(job, life=life), query, batch)
    reports = local.reports(job.checkpoint(query), 3)
    assert max(int(str(report["replayed_batches"])) for report in reports) > 1
    assert {report["digest_ok"] for report in reports} == {True}
    called = [batch for life in range(4) for batch in results.calls_of(job.out(query), life)]
    assert sorted(set(called)) == list(range(called[-1] + 1))
    assert results.last_recorded(job.out(query)) == references.get(query, job)


def test_a_query_without_state_misses_its_log(spark: SparkSession, tmp_path: Path) -> None:
    """What it had written is gone: another log in its place would hide that from its readers."""
    own, root = local.session(spark, {}), tmp_path / "checkpoint"
    rate = own.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    writer = rate.writeStream.format("cec").option("checkpointLocation", str(root))
    for _ in range(2):
        streaming = writer.start()
        local.wait_for(streaming, 0)
        streaming.stop()
    local.tasks_are_over(spark)
    shutil.rmtree(root / "cec" / "log")
    with pytest.raises(Exception, match=r"has committed batches but no Spark CEC log at .*: its log is gone"):
        writer.start().processAllAvailable()


def test_a_plan_that_was_lost_behind_its_output(spark: SparkSession, tmp_path: Path) -> None:
    """A power loss may take what Spark wrote and nobody synced, and leave what the log has: no row goes with it."""
    feed, root = tmp_path / "feed", tmp_path / "checkpoint"
    feed.mkdir()
    own = local.session(spark, local.OPENINGS_ONLY)
    frame = own.readStream.schema("k string, n bigint").json(str(feed)).groupBy("k").sum("n")
    writer = frame.writeStream.format("cec").outputMode("update").option("checkpointLocation", str(root))

    def feed_file(number: int) -> None:
        (feed / f"{number}.json").write_text(json.dumps({"k": "a", "n": 10**number}))

    def run() -> StreamingQuery:
        streaming = writer.trigger(availableNow=True).start()
        streaming.awaitTermination(60)
        return streaming

    for number in range(3):
        feed_file(number)
        assert run().exception() is None
    lost = root / "offsets" / "2"
    plan = lost.read_text()
    for file in (lost, root / "offsets" / ".2.crc", root / "commits" / "2", root / "commits" / ".2.crc"):
        file.unlink(missing_ok=True)
    feed_file(3)
    said = r"batch 2 of the output was made of input up to .*logOffset.*:2.*, and is planned up to .*:3.* now"
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=said):
            run()
    lines = lost.read_text().splitlines()
    assert lines[2:] != plan.splitlines()[2:]
    lost.write_text("\n".join([*lines[:2], *plan.splitlines()[2:]]))  # the mend, as the message has it
    (root / "offsets" / ".2.crc").unlink()
    assert run().exception() is None
    rows = own.read.format("cec").load(str(root)).collect()
    assert sorted(row[1] for row in rows) == [1, 11, 111, 1111]
