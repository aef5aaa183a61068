"""The replay as a run of its own: what it leaves alone, what ends it, and what its end leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, local, log, results
from cec_it.driver import FOREACH, Job, Query, last_batch, start
from cec_it.references import PROVIDER_KEY, SPARKS_OWN, References
from cec_it.sparklogs import contents, cut
from cec_it.tables import Rows, Table, run, run_totals, step_by_step
from testbed.spark_logs import newest

QUERY = Query("long-window-updates", feeds.RATE, FOREACH)
STOPPED_AFTER = 6


@dataclass(frozen=True, slots=True)
class Crashed:
    """A job whose query ended with batches to replay; `committed` is V."""

    job: Job
    committed: int

    @property
    def checkpoint(self) -> Path:
        return self.job.checkpoint(QUERY)

    def copy(self, root: Path) -> Job:
        """A copy of the job, for its next life."""
        job = replace(self.job, root=str(root), life=1)
        shutil.copytree(self.job.out(QUERY), job.out(QUERY))
        shutil.copytree(self.checkpoint, job.checkpoint(QUERY))
        return job


@pytest.fixture(scope="module")
def crashed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    root = tmp_path_factory.mktemp("crashed")
    job = Job(str(root / "job"), (QUERY,), local.BATCHES, local.ROWS)
    local.run_to(session(spark, root), job, QUERY, STOPPED_AFTER)
    return Crashed(job, newest(job.checkpoint(QUERY) / "commits"))


def session(spark: SparkSession, root: Path, **conf: str) -> SparkSession:
    return local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(root / "index")}, **conf)


def test_spark_sees_nothing_of_a_replay(
    crashed: Crashed, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    job = crashed.copy(tmp_path / "job")
    before = contents(job.checkpoint(QUERY))
    streaming = start(session(spark, tmp_path), job, QUERY)
    try:
        local.wait_for(streaming, last_batch(job))
        first = streaming.recentProgress[0]
    finally:
        streaming.stop()
    assert first["batchId"] > crashed.committed, "a replayed batch is in the query's progress"
    report = local.reports(job.checkpoint(QUERY), 1)[0]
    assert (report["committed_batch"], report["digest_ok"]) == (crashed.committed, True)
    assert int(str(report["replayed_batches"])) > 2, "this test proves nothing"
    after = contents(job.checkpoint(QUERY))
    assert {path: after[path] for path in before} == before, "what Spark has written is changed"
    assert results.calls_of(job.out(QUERY), 1)[0] == crashed.committed + 1
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)


def test_a_replay_does_without_a_note_of_how_far_it_is(
    crashed: Crashed, spark: SparkSession, references: References, spark_log: Path, tmp_path: Path
) -> None:
    """A directory is in its way; a disk that is full would be, too."""
    job = crashed.copy(tmp_path / "job")
    (job.checkpoint(QUERY) / "cec" / "replaying.json").mkdir()
    told = spark_log.stat().st_size
    local.run_to(session(spark, tmp_path), job, QUERY, last_batch(job))
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)
    with spark_log.open() as lines:
        lines.seek(told)
        assert sum("is cannot be noted in the checkpoint" in line for line in lines) == 1, "once is enough"


def test_a_replay_ends_by_writing_what_is_dirty(crashed: Crashed, spark: SparkSession, tmp_path: Path) -> None:
    job = crashed.copy(tmp_path / "job")
    local.run_to(session(spark, tmp_path), job, QUERY, crashed.committed + 1)
    flushes = [entry.meta for entry in log.frames(job.checkpoint(QUERY)) if entry.meta.is_flush]
    assert [meta.version for meta in flushes] == [crashed.committed + 1] * 2, "one of each store"
    assert all(meta.dirty_windows == 0 and meta.dirty_from == meta.version for meta in flushes)
    assert sum(meta.checked for meta in flushes) > 0


@pytest.mark.parametrize("how", ["stop", "availableNow"])
def test_a_clean_end_leaves_nothing_to_replay(
    how: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    job = Job(str(tmp_path / "job"), (QUERY,), local.BATCHES, local.ROWS)
    own = session(spark, tmp_path, **{"stop.flush": "on"})
    for life, batch in enumerate((3, 5)):
        local.run_to(own, replace(job, life=life), QUERY, batch)
    if how == "availableNow":
        streaming = start(own, replace(job, life=2), QUERY, availableNow=True)
        assert streaming.awaitTermination(60)
    local.run_to(own, replace(job, life=3), QUERY, last_batch(job))
    reports = local.reports(job.checkpoint(QUERY), 2)
    assert [report["replayed_batches"] for report in reports] == [0] * len(reports)
    # A run that ends by itself may end with a batch without rows: the batches after it have other numbers then.
    found = list(results.last_recorded(job.out(QUERY)).values())
    assert found == list(references.get(QUERY, job).values())


def test_a_clean_stop_in_the_middle_of_a_batch_is_one_too(spark: SparkSession, tmp_path: Path) -> None:
    """Stores that have committed the batch take it back in memory, and write what was dirty before it."""
    table, rows, checkpoint = Table(tmp_path / "events"), Rows(), tmp_path / "checkpoint"
    own = local.session(spark, local.OPENINGS_ONLY, **{"stop.flush": "on"})
    step_by_step(table, run_totals(own, table, f.col("amount"), checkpoint, rows), [[(1, 1, 0)], [(1, 2, 0)]])

    def fail(frame: DataFrame, batch: int) -> None:
        frame.collect()
        raise RuntimeError(f"the sink fails in batch {batch}")

    totals = table.read(own).groupBy("key").agg(f.sum("amount").alias("total"))
    writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    table.add((1, 4, 0), (2, 1, 0))
    with pytest.raises(StreamingQueryException, match="the sink fails in batch 2"):
        writer.foreachBatch(fail).start().processAllAvailable()
    step_by_step(table, run_totals(own, table, f.col("amount"), checkpoint, rows), [[(1, 8, 0)]])
    assert [report["replayed_batches"] for report in local.reports(checkpoint, 2)] == [0, 0]
    assert rows[max(rows)] == [(1, 15)]


def test_a_replay_that_loses_its_stores_begins_again(
    crashed: Crashed, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    """As with an executor that is killed, or a task that Spark places elsewhere: what is half replayed is gone."""
    job = crashed.copy(tmp_path / "job")
    checkpoint = job.checkpoint(QUERY)
    streaming = start(session(spark, tmp_path), job, QUERY)
    try:
        local.eventually(lambda: progress if (progress := replayed(checkpoint)) else None, "a replayed batch")
        states = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.state  # type: ignore[union-attr]
        # Not `stop`: where a task asks for a store meanwhile, Spark makes new threads for maintenance there, and waits
        # five minutes for their end, which nobody has asked them for.
        getattr(getattr(states, "StateStore$"), "MODULE$").unloadAll()
        assert 0 < replayed(checkpoint) < crashed.committed, "the replay was over before its stores were taken away"
        local.wait_for(streaming, last_batch(job))
    finally:
        streaming.stop()
    report = local.reports(checkpoint, 1)[0]
    assert (report["committed_batch"], report["digest_ok"]) == (crashed.committed, True)
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)


def replayed(checkpoint: Path) -> int:
    """The batch that a replay has come to; 0 if there is none."""
    try:
        progress = json.loads((checkpoint / "cec" / "replaying.json").read_text())
    except FileNotFoundError:
        return 0
    return int(progress["done"]) if progress["done"] >= progress["first"] else 0


def test_batches_that_spark_forgot_are_named(crashed: Crashed, spark: SparkSession, tmp_path: Path) -> None:
    """As when `minBatchesToRetain` was too low once."""
    job = crashed.copy(tmp_path / "job")
    cut(job.checkpoint(QUERY) / "offsets", range(crashed.committed - 1))
    before = contents(job.checkpoint(QUERY))
    with pytest.raises(AnalysisException, match=r"no longer has batch \d+, but the recovery .*restore the checkpoint"):
        local.run_to(session(spark, tmp_path), job, QUERY, last_batch(job))
    assert contents(job.checkpoint(QUERY)) == before


def test_a_replay_needs_no_more_retention_than_spark(
    crashed: Crashed, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    """It writes no batches, so that Spark forgets none of those that are still to be replayed."""
    job = crashed.copy(tmp_path / "job")
    own = session(spark, tmp_path, **{"spark.sql.streaming.minBatchesToRetain": "2"})
    local.run_to(own, job, QUERY, last_batch(job))
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)


# Two watermarks: after a restart Spark's tracker has one for the whole query.


def two_streams(first: Table, second: Table, spark: SparkSession, total: str) -> DataFrame:
    """Windows over the union of two streams, each with a watermark of its own."""
    each = [
        table.read(spark).withWatermark("ts", delay).select("key", "ts", "amount")
        for table, delay in ((first, "0 seconds"), (second, "30 seconds"))
    ]
    return each[0].union(each[1]).groupBy(f.window("ts", "10 seconds"), "key").agg(f.expr(total).alias("total"))


@pytest.mark.parametrize("total", ["sum(amount)", "sum(double(amount))"])
def test_a_replay_computes_nothing_above_the_state(total: str, spark: SparkSession, tmp_path: Path) -> None:
    """It keeps a window out of sight that was closed later. Without its first rows the result would divide by zero."""
    steps: list[list[tuple[int, int, int]]] = [
        [(1, 0, 5), (2, 0, 6), (9, 0, 605)],  # a row without an amount is a view, and each window begins with one
        [(1, 3, 6), (2, 4, 7), (9, 5, 606)],
        [(9, 0, 650)],
        [(8, 0, 655)],
        [(8, 6, 656), (9, 7, 607)],
    ]
    found: dict[str, Rows] = {"cec": {}, "undisturbed": {}}
    for name in found:
        own = local.session(spark, local.OPENINGS_ONLY, **{"stop.flush": "off"})
        if name == "undisturbed":
            own.conf.set(PROVIDER_KEY, SPARKS_OWN)
        own.conf.set("spark.sql.ansi.enabled", "true")
        table = Table(tmp_path / name / "table")
        events = table.read(own).withWatermark("ts", "600 seconds").groupBy(f.window("ts", "10 seconds"), "key")
        views = "sum(if(amount = 0, 1, 0))"
        share = f.expr(f"{total} div {views}" if total in DEFERRED else f"{total} / {views}")
        for first, last in ((0, 4), (4, len(steps))):
            streaming = run(events.agg(share.alias("total")), "update", tmp_path / name / "checkpoint", found[name])
            step_by_step(table, streaming, steps[first:last])
    assert found["cec"] == found["undisturbed"]
    replayed = [int(str(each["replayed_batches"])) for each in local.reports(tmp_path / "cec" / "checkpoint", 1)]
    assert (max(replayed) > 2) == (total in DEFERRED), replayed


DEFERRED = ["sum(amount)", "avg(int(amount))"]
EAGER = ["sum(double(amount))"]
"""It rounds, so each batch writes its changes, and nothing is replayed."""


@pytest.mark.parametrize("stop", ["crash", "clean"])
@pytest.mark.parametrize("total", [*DEFERRED, *EAGER])
def test_two_watermarks(stop: str, total: str, spark: SparkSession, tmp_path: Path) -> None:
    steps: list[tuple[int, Iterable[tuple[int, int, int]]]] = [
        (0, [(1, 1, 5), (2, 1, 7)]),
        (1, [(1, 2, 3)]),
        (0, [(1, 4, 25), (2, 2, 31)]),
        (1, [(1, 8, 45), (3, 1, 41)]),
        (0, [(1, 16, 62)]),
        (1, [(1, 32, 20), (2, 64, 58)]),
        (0, [(2, 128, 81)]),
        (1, [(1, 256, 100)]),
    ]
    found: dict[str, Rows] = {"cec": {}, "undisturbed": {}}
    for name in found:
        own = local.session(spark, local.OPENINGS_ONLY, **{"stop.flush": "on" if stop == "clean" else "off"})
        if name == "undisturbed":
            own.conf.set(PROVIDER_KEY, SPARKS_OWN)
        tables = [Table(tmp_path / name / str(side)) for side in (0, 1)]

        def begin(own: SparkSession = own, tables: list[Table] = tables, name: str = name) -> StreamingQuery:
            frame = two_streams(tables[0], tables[1], own, total)
            return run(frame, "update", tmp_path / name / "checkpoint", found[name])

        for first, last in ((0, 4), (4, 6), (6, len(steps))):
            streaming = begin()
            try:
                for side, events in steps[first:last]:
                    tables[side].add(*events)
                    streaming.processAllAvailable()
            finally:
                streaming.stop()
    assert found["cec"] == found["undisturbed"]
    replayed = [int(str(each["replayed_batches"])) for each in local.reports(tmp_path / "cec" / "checkpoint", 2)]
    assert (max(replayed) > 1) == (stop == "crash" and total in DEFERRED), replayed
