"""A frame of the log is lost: `cec repair` says what that costs, the next start pays it, and every row is exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from cec_it import feeds, local, log, results
from cec_it.driver import FOREACH, Job, Query, last_batch
from cec_it.references import References
from cec_it.tables import Table, step_by_step
from spark_cec.cli.app import app
from spark_cec.log.index import CommitEntry

STOPPED_AFTER = 5
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
HEADER, RECORDS = 40, -6
"""Where a bit is flipped: in the header, so that nothing is known of the frame, or in its records."""


def session(spark: SparkSession, root: Path, name: str, **conf: str) -> SparkSession:
    return local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(root / name)}, **conf)


def repair(checkpoint: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["repair", str(checkpoint), *arguments])
    return result.exit_code, result.stdout


def frames_of(checkpoint: Path, version: int, where: int) -> Sequence[CommitEntry]:
    return [e for e in log.frames(checkpoint) if e.meta.version == version and (e.meta.records or where == HEADER)]


@pytest.mark.parametrize(
    ("plan", "where", "back", "version_format"),
    [
        pytest.param("long-window-updates", RECORDS, 3, "1", id="records"),
        pytest.param("long-window-updates", HEADER, 0, "1", id="the newest commit, header and all"),
        pytest.param("long-window-updates", HEADER, 2, "2", id="a link of the chain, with checkpoint ids"),
        pytest.param("join", RECORDS, 1, "2", id="of a join, with checkpoint ids"),
        pytest.param("join", HEADER, 0, "2", id="of a join, the newest, whose ids Spark has"),
        pytest.param("totals", RECORDS, -1, "1", id="the first: from the beginning"),
        pytest.param("totals", RECORDS, -1, "2", id="the first, with checkpoint ids"),
    ],
)
def test_a_lost_frame_costs_a_longer_replay(
    plan: str, where: int, back: int, version_format: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint = job.checkpoint(query)
    conf = {FORMAT: version_format}
    local.run_to(session(spark, tmp_path, "first", **conf), job, query, STOPPED_AFTER)
    committed = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    lost = committed + 1 - back if back >= 0 else 1
    log.flip(checkpoint, frames_of(checkpoint, lost, where)[0], where)

    with pytest.raises(Exception, match=r"damaged log: .*run `cec verify`"):
        local.run_to(session(spark, tmp_path, "second", **conf), replace(job, life=1), query, last_batch(job))
    code, announced = repair(checkpoint, "--dry-run", "--json")
    fallback = json.loads(announced)["fallback"]
    assert (code, fallback["version"] < lost, fallback["committed_batch"]) == (1, True, committed)
    code, said = repair(checkpoint)
    assert code == 0, said
    assert (
        f"the next start of the query begins from there, and a replay of batches {fallback['replay_from']} to" in said
    )

    again = session(spark, tmp_path, "third", **conf)
    local.run_to(again, replace(job, life=2), query, committed + 1)
    report = local.reports(checkpoint, 1)[-1]
    assert report["fell_back_to_version"] == fallback["version"]
    assert report["rewound_to"] == fallback["replay_from"] - 1
    assert report["digest_ok"] in ((None,) if back == 0 and where == HEADER else (True,))
    anew = [e.meta for e in log.commits(checkpoint) if e.meta.generation > 1 and e.meta.version == committed + 1]
    assert anew, "the commit is not written anew"
    assert {meta.oldest_footprint for meta in anew} == {committed + 1}, "it rests on older frames"

    local.run_to(session(spark, tmp_path, "fourth", **conf), replace(job, life=3), query, last_batch(job))
    assert results.last_recorded(job.out(query)) == references.get(query, job)
    assert not (checkpoint / "cec" / "fallback.json").exists()
    assert CliRunner().invoke(app, ["inspect", str(checkpoint)]).exit_code == 0


def drain(streaming: StreamingQuery) -> None:
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()


@pytest.mark.parametrize(
    ("mode", "version_format", "repaired"),
    [
        pytest.param("eager", "1", True, id="eager"),
        pytest.param("eager", "2", True, id="eager, with checkpoint ids"),
        pytest.param("auto", "2", True, id="deferred, with checkpoint ids"),
        pytest.param("auto", "1", False, id="deferred, without a repair"),
    ],
)
def test_an_attempt_of_an_earlier_run_does_not_stand_in_for_a_lost_commit(
    mode: str, version_format: str, repaired: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Batch 4 is run by a query whose sink fails, then by one that was changed meanwhile, as is allowed."""
    table, checkpoint, rows = Table(tmp_path / "events"), tmp_path / "checkpoint", dict[int, list[str]]()

    def begin(name: str, factor: int, fails_at: int | None = None) -> StreamingQuery:
        own = session(spark, tmp_path, name, **{FORMAT: version_format, "mode": mode, "stop.flush": "on"})
        totals = table.read(own).groupBy("key").agg(f.sum(f.col("amount") * factor).alias("total"))

        def write(frame: DataFrame, batch: int) -> None:
            found = results.json_rows(frame)
            if batch == fails_at:
                raise RuntimeError("the sink fails")
            rows[batch] = found

        writer = totals.writeStream.outputMode("complete").option("checkpointLocation", str(checkpoint))
        return writer.foreachBatch(write).start()

    def batch(number: int) -> list[tuple[int, int, int]]:
        return [(key, 10 + number, 0) for key in range(8)]

    with pytest.raises(Exception, match="the sink fails"):
        step_by_step(table, begin("first", 1, fails_at=4), map(batch, range(5)))
    drain(begin("second", 100))
    attempts = [e for e in frames_of(checkpoint, 5, HEADER) if not e.meta.is_flush and e.meta.store.partition == 0]
    assert [entry.meta.generation for entry in attempts] == [1, 2]
    for entry in frames_of(checkpoint, 5, HEADER):
        if entry.meta.generation == 2 and entry.meta.store.partition == 0:
            log.flip(checkpoint, entry, HEADER)

    table.add(*batch(5))
    with pytest.raises(Exception, match=r"damaged log: (?s:.*)run `cec verify`"):
        drain(begin("third", 100))
    for command in ("verify", "inspect"):
        assert CliRunner().invoke(app, [command, str(checkpoint)]).exit_code == 1
    with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
        spark.read.format("statestore").load(str(checkpoint)).collect()
    with pytest.raises(Exception, match=r"damaged log: (store 0/0/default|\S+\.cec at byte \d+)"):
        spark.read.format("cec").option("view", "windows").load(str(checkpoint)).collect()
    if not repaired:
        return
    code, said = repair(checkpoint)
    assert (code, "brings back what is lost" in said) == (0, True), said
    drain(begin("fourth", 100))
    before = sum(10 + number for number in range(4))
    assert rows[5] == sorted(f'{{"key":{key},"total":{before + 100 * (14 + 15)}}}' for key in range(8))


def test_a_log_of_which_nothing_is_left(spark: SparkSession, references: References, tmp_path: Path) -> None:
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint = job.checkpoint(query)
    local.run_to(session(spark, tmp_path, "first"), job, query, STOPPED_AFTER)
    for segment in (checkpoint / "cec" / "log" / "segments").iterdir():
        segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises(Exception, match=r"damaged log: store 0/0/default: no commit frame of version"):
        local.run_to(session(spark, tmp_path, "second"), replace(job, life=1), query, last_batch(job))
    code, said = repair(checkpoint)
    assert (code, "the log still has all stores at version 0" in said) == (0, True), said
    local.run_to(session(spark, tmp_path, "third"), replace(job, life=2), query, last_batch(job))
    assert results.last_recorded(job.out(query)) == references.get(query, job)


def test_a_lost_frame_and_lost_input(spark: SparkSession, references: References, tmp_path: Path) -> None:
    """Nothing in the log tells of the newest batch, and Spark's file source passes over files that are gone."""
    query = Query("totals", feeds.FILES, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint = job.checkpoint(query)
    feeds.write_files(job.events, local.BATCHES, local.ROWS)
    local.run_to(session(spark, tmp_path, "first"), job, query, STOPPED_AFTER)
    committed = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for entry in frames_of(checkpoint, committed + 1, HEADER):
        log.flip(checkpoint, entry, HEADER)
    code, said = repair(checkpoint)
    assert code == 0, said
    files = (json.loads(line) for line in (checkpoint / "sources" / "0" / str(committed)).read_text().splitlines()[1:])
    file = Path(str(next(files)["path"]).removeprefix("file://"))
    file.rename(tmp_path / file.name)
    words = f"{file.name}, which batch {committed} has read, is gone"
    with pytest.raises(Exception, match=words):
        local.run_to(session(spark, tmp_path, "second"), replace(job, life=1), query, local.BATCHES - 1)
    (tmp_path / file.name).rename(file)
    local.run_to(session(spark, tmp_path, "third"), replace(job, life=2), query, local.BATCHES - 1)
    assert results.last_recorded(job.out(query)) == references.get(query, job)


@pytest.mark.parametrize("where", [HEADER, RECORDS])
def test_a_lost_flush_is_missed(where: int, spark: SparkSession, references: References, tmp_path: Path) -> None:
    """Older records of the same windows are still there: without the flush they would be taken for the newest."""
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint = job.checkpoint(query)
    local.run_to(session(spark, tmp_path, "first", **{"stop.flush": "on"}), job, query, 2)
    local.run_to(session(spark, tmp_path, "second"), replace(job, life=1), query, STOPPED_AFTER)
    flush = next(entry for entry in log.frames(checkpoint) if entry.meta.is_flush and entry.meta.records)
    log.flip(checkpoint, flush, where)
    with pytest.raises(Exception, match=r"damaged log: .*(the flush of version \d+, which|at byte)"):
        local.run_to(session(spark, tmp_path, "third"), replace(job, life=2), query, last_batch(job))
    code, said = repair(checkpoint)
    assert (code, "brings back what is lost" in said) == (0, True), said
    local.run_to(session(spark, tmp_path, "fourth"), replace(job, life=3), query, last_batch(job))
    assert local.reports(checkpoint, 1)[-1]["digest_ok"] is True
    assert results.last_recorded(job.out(query)) == references.get(query, job)
