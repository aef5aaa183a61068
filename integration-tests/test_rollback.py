"""`cec rollback`: after it a query goes on as if the later batches had never been, whatever state it was in."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cec_it import crashes, feeds, local, results
from cec_it.crashes import KillPoint
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch
from cec_it.plans import PLANS
from cec_it.references import References
from spark_cec.cli.app import app
from testbed.spark_logs import committed_batch, newest

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STOPPED_AFTER, BACK_TO = 7, 4


def rollback(checkpoint: Path, to: int, *arguments: str) -> dict[str, Any]:
    """What the command says; it must be done."""
    result = CliRunner().invoke(app, ["rollback", str(checkpoint), "--to", str(to), "--yes", "--json", *arguments])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (committed_batch(checkpoint), newest(checkpoint / "offsets")) == (to, to)
    assert isinstance(told, dict)
    return told


def cec(command: str, checkpoint: Path) -> None:
    result = CliRunner().invoke(app, [command, str(checkpoint)])
    assert result.exit_code == 0, result.output


def rows_of(spark: SparkSession, job: Job, query: Query) -> Counter[str]:
    """What the `cec` sink has, or the newest call of each batch."""
    if query.sink == FOREACH:
        return results.union(results.last_recorded(job.out(query)))
    if query.sink == "json":
        return results.union(results.file_sink_batches(job.out(query)))
    return results.union({0: results.json_rows(spark.read.format("cec").load(str(job.checkpoint(query))))})


@pytest.mark.parametrize(
    ("plan", "sink", "own", "version_format"),
    [
        pytest.param("window-append", "cec", local.OPENINGS_ONLY, "1", id="deferred, cec"),
        pytest.param("window-append", "cec", {"mode": "eager"}, "2", id="eager, cec, with ids"),
        pytest.param("long-window-updates", FOREACH, local.OPENINGS_ONLY, "2", id="deferred, foreachBatch, with ids"),
        pytest.param("sessions", FOREACH, {**local.OPENINGS_ONLY, "stop.flush": "on"}, "1", id="sessions, flushed"),
        pytest.param("native-count-windows", "cec", local.OPENINGS_ONLY, "1", id="count windows"),
        pytest.param("join", FOREACH, {}, "1", id="a join"),
        pytest.param("join", "cec", {}, "2", id="a join, with ids"),
        pytest.param("rows", "cec", {}, "1", id="no state"),
        pytest.param("window-append", "json", local.OPENINGS_ONLY, "1", id="a sink that passes over what it has"),
    ],
)
def test_every_row_is_that_of_an_undisturbed_run(
    plan: str, sink: str, own: dict[str, str], version_format: str, spark: SparkSession, references: References,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Back once, and once more, further, after a stop in between."""
    query = Query(plan, feeds.RATE, sink)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint, conf = job.checkpoint(query), {FORMAT: version_format}
    local.run_to(local.session(spark, own, **conf), job, query, STOPPED_AFTER)
    for life, (to, until) in enumerate(((BACK_TO, BACK_TO + 1), (2, 5), (4, last_batch(job))), start=1):
        told = rollback(checkpoint, to)
        assert told["to_batch"] < told["from_batch"]
        cec("inspect", checkpoint)
        cec("verify", checkpoint)
        local.run_to(local.session(spark, own, **conf), replace(job, life=life), query, until)
    cec("verify", checkpoint)
    wanted = results.union(references.get(query, job))
    assert not results.difference(rows_of(spark, job, query), wanted)
    local.tasks_are_over(spark)


@pytest.mark.parametrize(
    ("phase", "eager", "master"),
    [
        ("planned", True, "local[2]"),
        ("appending", False, "local[2]"),
        ("committed", False, "local[2]"),
        pytest.param("committed", False, "local-cluster[2,1,1024]", marks=pytest.mark.long),
        pytest.param("appending", True, "local-cluster[2,1,1024]", marks=pytest.mark.long),
    ],
)
def test_after_a_kill_too(
    phase: str, eager: bool, master: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query("long-window-updates", feeds.RATE, FOREACH)
    conf = {CEC + "mode": "eager"} if eager else {CEC + "CI": "0ms", CEC + "U": "1000000"}
    conf |= {"spark.locality.wait": "60s", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS, master=master, conf=conf)
    told: list[dict[str, Any]] = []

    def go_back() -> None:
        told.append(rollback(job.checkpoint(query), BACK_TO))

    history = crashes.run_with_kills(job, [KillPoint(query, STOPPED_AFTER, phase)], before_last=go_back)
    assert history.lives[1].failed == {}, history
    assert (told[0]["replay"] is None) == eager
    replayed = [BACK_TO + 1 - told[0]["replay"]["first"]] if told[0]["replay"] else [0]
    assert history.replayed(query) == replayed and all(report["digest_ok"] for report in history.reports(query))
    assert results.last_recorded(job.out(query)) == references.get(query, job)


def test_of_files_those_noted_since_come_in_one_batch(
    spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query("window-append", feeds.FILES, "cec")
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    feeds.write_files(job.events, local.BATCHES, local.ROWS)
    checkpoint, own = job.checkpoint(query), local.session(spark, local.OPENINGS_ONLY)
    local.run_to(own, job, query, 5)
    noted = newest(checkpoint / "sources" / "0")
    assert rollback(checkpoint, 3)["gone_files"] == []
    streaming = local.start(own, job, query)
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()
    offset = json.loads((checkpoint / "offsets" / "4").read_text().splitlines()[2])
    assert offset["logOffset"] >= noted > 4, "batch 4 has none of the files that later batches had read"
    assert not results.difference(rows_of(spark, job, query), results.union(references.get(query, job)))


def test_a_stream_that_has_read_what_is_taken_back_is_told_and_another_one_goes_on(
    spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query("window-append", feeds.RATE, "cec")
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint, own = job.checkpoint(query), local.session(spark, local.OPENINGS_ONLY)
    got: dict[str, dict[int, list[str]]] = {"ahead": {}, "behind": {}, "anew": {}}

    def follow(name: str) -> None:
        """Reads all that is there, in a life of the stream `name`."""
        rows = own.readStream.format("cec").option("reader", name).option("maxBatchesPerTrigger", 1)
        writer = rows.load(str(checkpoint)).writeStream.option("checkpointLocation", str(tmp_path / name))
        keep = got[name]
        streaming = writer.foreachBatch(lambda frame, batch: keep.update({batch: results.json_rows(frame)})).start()
        try:
            streaming.processAllAvailable()
        finally:
            streaming.stop()

    local.run_to(own, job, query, 3)
    follow("behind")
    local.run_to(own, job, query, STOPPED_AFTER)
    follow("ahead")
    told = rollback(checkpoint, 4)
    assert told["readers"].keys() == {"ahead"}
    with pytest.raises(Exception, match=r"taken back all after batch 4, and writes it anew.*begin the reader anew"):
        follow("ahead")
    local.run_to(own, job, query, last_batch(job))
    with pytest.raises(Exception, match=r"has taken back all after batch 4"):
        follow("ahead")
    wanted = results.union(references.get(query, job))
    for name in ("behind", "anew"):
        follow(name)
        assert not results.difference(results.union(got[name]), wanted), name
    assert not results.difference(rows_of(spark, job, query), wanted)


def test_a_stream_that_was_taken_back_itself_has_no_ends_of_what_it_read_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Else the log would let go of output that a recovery of the stream asks for."""
    query = Query("rows", feeds.RATE, "cec")
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    channel, own, reader = job.checkpoint(query), local.session(spark, {"mode": "eager"}), tmp_path / "reader"
    local.run_to(own, job, query, last_batch(job))

    def follow(most: int) -> list[int]:
        """Reads all that is there; answers the ends of batches that the stream may run again."""
        rows = own.readStream.format("cec").option("reader", "board").option("maxBatchesPerTrigger", most)
        writer = rows.load(str(channel)).groupBy().count().writeStream.option("checkpointLocation", str(reader))
        streaming = writer.outputMode("update").foreachBatch(lambda frame, batch: None).start()
        try:
            streaming.processAllAvailable()
        finally:
            streaming.stop()
        found: list[int] = json.loads((channel / "cec/log/readers/board.json").read_text())["ends"]
        return found

    before = follow(most=1)
    assert len(before) > 3
    rollback(reader, 1)
    assert not {*follow(most=100)} & {*before[2:-1]}


@pytest.mark.parametrize("sink", ["cec", FOREACH])
def test_who_has_deleted_the_newest_two_batches_by_hand_is_told_what_does_the_rest(
    sink: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query("window-append", feeds.RATE, sink)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint, own = job.checkpoint(query), local.session(spark, local.OPENINGS_ONLY)
    local.run_to(own, job, query, STOPPED_AFTER)
    committed = committed_batch(checkpoint)
    for log in ("commits", "offsets"):
        for entry in (checkpoint / log).iterdir():
            number = entry.name.strip(".").removesuffix(".crc")
            if number.isdigit() and int(number) > committed - 2:
                entry.unlink()
    with pytest.raises(Exception, match=rf"run `cec rollback \S+ --to {committed - 2}`; or restore"):
        local.run_to(own, job, query, last_batch(job))
    rollback(checkpoint, committed - 2)
    local.run_to(own, replace(job, life=1), query, last_batch(job))
    assert not results.difference(rows_of(spark, job, query), results.union(references.get(query, job)))


def test_a_query_that_runs_is_not_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    assert PLANS[query.plan].mode == "complete"
    streaming = local.start(local.session(spark), job, query)
    try:
        local.wait_for(streaming, 3)
        for mode in ("--dry-run", "--yes"):
            result = CliRunner().invoke(app, ["rollback", str(job.checkpoint(query)), "--to", "2", mode])
            assert result.exit_code == 2 and "running" in result.stderr and "stop that run first" in result.stderr
        local.wait_for(streaming, 5)
    finally:
        streaming.stop()
