"""`cec import`, `rescale` and `export`: a query changes its store in the middle of its life, and no row differs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from typer.testing import CliRunner

from cec_it import feeds, local, log, results
from cec_it.driver import CEC_SINK, FOREACH, Job, Query, last_batch, start
from cec_it.references import PROVIDER_KEY, References
from cec_it.sparklogs import cut
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import home_of
from spark_cec.cli.app import app
from spark_cec.cli.failures import explain_errors
from spark_cec.cli.migrate import PROVIDERS
from spark_cec.errors import CecError
from spark_cec.migration.checkpoint import PARTITIONS_KEY
from spark_cec.migration.migrate import Migrated, Request, migrate_state
from spark_cec.recovery.query_files import LEFT, read_carried
from spark_cec.recovery.unfinished_copy import UNFINISHED
from spark_cec.settings import Settings
from testbed.spark_logs import newest

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"


TOTALS = Query("totals", feeds.RATE, FOREACH)


def moved(spark: SparkSession, checkpoint: Path, provider: str, partitions: int | None = None) -> Migrated:
    """Carries a checkpoint, and puts the new one where the old one was."""
    beside = checkpoint.with_name("beside")
    carried = migrate_state(
        spark, Request(str(checkpoint), str(beside), PROVIDERS[provider], partitions, 0.0), lambda _: None
    )
    local.tasks_are_over(spark)
    shutil.rmtree(checkpoint)
    beside.rename(checkpoint)
    return carried


@pytest.mark.parametrize(
    ("plan", "first", "last", "version_format"),
    [
        ("window-append", "rocksdb", "hdfs", "1"),
        pytest.param("window-append", "rocksdb", "rocksdb", "2", marks=pytest.mark.long),
        pytest.param("totals", "hdfs", "rocksdb", "1", marks=pytest.mark.long),
        ("grand-total", "rocksdb", "rocksdb", "1"),
        pytest.param("grand-total", "rocksdb", "rocksdb", "2", marks=pytest.mark.long),
        pytest.param("distinct", "hdfs", "hdfs", "1", marks=pytest.mark.long),
        pytest.param("distinct-within", "rocksdb", "rocksdb", "1", marks=pytest.mark.long),
        pytest.param("sessions", "rocksdb", "hdfs", "1", marks=pytest.mark.long),
        pytest.param("count-windows", "hdfs", "rocksdb", "1", marks=pytest.mark.long),
        pytest.param("join", "rocksdb", "hdfs", "1", marks=pytest.mark.long),
        ("join", "rocksdb", "rocksdb", "2"),
        pytest.param("chain", "hdfs", "rocksdb", "1", marks=pytest.mark.long),
    ],
)
def test_a_query_changes_its_store_again_and_again(
    plan: str, first: str, last: str, version_format: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    checkpoint = job.checkpoint(query)

    def run(provider: str, life: int, batch: int) -> SparkSession:
        conf = {PROVIDER_KEY: PROVIDERS[provider], FORMAT: version_format, "stop.flush": "on"}
        own = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(tmp_path / "index")}, **conf)
        local.run_to(own, replace(job, life=life), query, batch)
        return own

    own = run(first, 0, 2)
    said = CliRunner().invoke(app, ["inspect", str(checkpoint)])
    assert f"({PROVIDERS[first]}), of which there is no log: `cec import --from {checkpoint} --to NEW`" in said.stderr
    carried = moved(own, checkpoint, "cec")
    assert sum(each.rows for each in carried.stores) > 0
    own = run("cec", 1, 4)
    decided = local.query_json(checkpoint)
    assert (decided["generation"] == 2 and decided["mode"] != "eager") or plan in {"join", "chain", "distinct-within"}
    before = moved(own, checkpoint, "cec", partitions=5)
    assert before.found.partitions != 5
    own = run("cec", 2, 6)
    after = moved(own, checkpoint, last)
    assert (after.found.provider, after.found.partitions) == (PROVIDERS["cec"], 5)
    run(last, 3, last_batch(job))
    assert not (checkpoint / "cec").exists()
    assert results.last_recorded(job.out(query)) == references.get(query, job)


@pytest.fixture
def stopped(spark: SparkSession, tmp_path: Path) -> tuple[SparkSession, Path]:
    """A query on Spark's own store that has run some batches."""
    job = Job(str(tmp_path / "job"), (TOTALS,), local.BATCHES, local.ROWS)
    own = local.session(spark, **{PROVIDER_KEY: PROVIDERS["rocksdb"]})
    local.run_to(own, job, TOTALS, 2)
    return own, job.checkpoint(TOTALS)


def refused(spark: SparkSession, request: Request, match: str) -> None:
    target, there = Path(request.target), Path(request.target).exists()
    before = sorted(local.files_in(target)) if there else []
    with pytest.raises(CecError, match=match):
        migrate_state(spark, request, lambda _: None)
    assert target.exists() == there
    assert (sorted(local.files_in(target)) if there else []) == before


def test_what_cannot_be_carried_is_refused_and_leaves_nothing(
    stopped: tuple[SparkSession, Path], tmp_path: Path
) -> None:
    spark, checkpoint = stopped
    target, cec = str(tmp_path / "new"), PROVIDERS["cec"]

    def request(**other: object) -> Request:
        return replace(Request(str(checkpoint), target, cec, None, 0.0), **other)  # type: ignore[arg-type]

    refused(spark, request(source=str(tmp_path / "nothing")), "is not the checkpoint of a query")
    refused(spark, request(provider=PROVIDERS["rocksdb"]), "is that of .*RocksDB.* already")
    refused(spark, request(partitions=2), "has 2 partitions already")
    refused(spark, request(target=str(checkpoint / "new")), "within the checkpoint")
    refused(spark, request(target=str(tmp_path / "with space")), "does not find a name with spaces")
    refused(spark, request(source=str(tmp_path / "50% off")), "does not find a name with spaces")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    refused(spark, request(target=str(tmp_path / "taken")), "there is something already")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".file").touch()
    refused(spark, request(target=str(tmp_path / "hidden")), "there is something already")
    assert (tmp_path / "hidden" / ".file").exists()
    own = local.session(spark, **{"log.path": str(tmp_path / "logs")})
    home = Path(home_of(f"file:{target}", Settings(log_path=str(tmp_path / "logs")), None))
    home.mkdir(parents=True)
    refused(own, request(), f"{home}.*there is something already")
    assert home.exists()


def test_a_place_that_is_taken_in_the_meantime_is_left_alone(
    stopped: tuple[SparkSession, Path], tmp_path: Path
) -> None:
    """While the command looks whether the query has stopped, somebody else makes the directory."""
    spark, checkpoint = stopped
    target = tmp_path / "new"

    def take(doing: str) -> None:
        if doing.startswith("looking"):
            target.mkdir(exist_ok=True)
            (target / "metadata").write_text("precious")

    with pytest.raises(CecError, match="there is something already"):
        migrate_state(spark, Request(str(checkpoint), str(target), PROVIDERS["cec"], None, 5.0), take)
    assert (target / "metadata").read_text() == "precious"
    assert [path.name for path in target.iterdir()] == ["metadata"]


def test_a_state_with_a_partition_gone_is_refused(stopped: tuple[SparkSession, Path], tmp_path: Path) -> None:
    spark, checkpoint = stopped
    shutil.rmtree(checkpoint / "state" / "0" / "1")
    request = Request(str(checkpoint), str(tmp_path / "new"), PROVIDERS["cec"], None, 0.0)
    refused(spark, request, "operator 0 has no partition 1; restore it")


# offsets/3 is of a batch that was planned and not committed, as a kill may leave it.
@pytest.mark.parametrize("path", ["offsets/2", "commits/2", "offsets/3", "state/0/_metadata/metadata"])
@pytest.mark.parametrize("left", ["v1", "v1\n{", "v1\n[]"])
def test_a_damaged_file_is_named(path: str, left: str, stopped: tuple[SparkSession, Path], tmp_path: Path) -> None:
    spark, checkpoint = stopped
    file = checkpoint / path
    file.write_text(left)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    request = Request(str(checkpoint), str(tmp_path / "new"), PROVIDERS["cec"], None, 0.0)
    refused(spark, request, f"{checkpoint}/{path} is damaged")


def test_a_root_directory_is_no_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    request = Request("/", str(tmp_path / "new"), PROVIDERS["cec"], None, 0.0)
    refused(spark, request, "/ is not the checkpoint of a query")


def test_an_error_of_the_jvm_is_told_by_its_first_cause(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), explain_errors("import", "there"):
        spark.read.format("statestore").load(str(tmp_path / "nothing"))
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "[STDS_COMMITTED_BATCH_UNAVAILABLE] No committed batch" in error
    assert "at org.apache" not in error
    assert "Py4J" not in error


def test_only_one_of_two_checkpoints_goes_on(stopped: tuple[SparkSession, Path], tmp_path: Path) -> None:
    """Both would process the same input. And what is to be replayed never comes from before the state was carried."""
    spark, checkpoint = stopped
    carried = moved(spark, checkpoint, "cec")
    assert read_carried(open_storage(str(checkpoint / "cec"))) == carried.found.batch + 1
    migrate_state(spark, Request(str(checkpoint), str(tmp_path / "out"), PROVIDERS["hdfs"], None, 0.0), lambda _: None)
    job = Job(str(tmp_path / "job"), (TOTALS,), local.BATCHES, local.ROWS, life=1)
    with pytest.raises(Exception, match=r"has left\.json: the state of this checkpoint was carried to another one"):
        local.run_to(local.session(spark), job, TOTALS, 4)
    assert newest(checkpoint / "commits") == carried.found.batch
    again = Request(str(checkpoint), str(tmp_path / "again"), PROVIDERS["hdfs"], None, 0.0)
    refused(spark, again, r"has left\.json: the state of this checkpoint was carried to another one")
    (checkpoint / "cec" / LEFT.name).unlink()
    local.run_to(local.session(spark), job, TOTALS, 4)


def test_a_carry_that_fails_at_its_end_leaves_no_mark(
    stopped: tuple[SparkSession, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the query could start nowhere."""
    spark, checkpoint = stopped
    moved(spark, checkpoint, "cec")

    def fail(*_: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr("spark_cec.migration.migrate.finish", fail)
    with pytest.raises(OSError, match="the store is away"):
        migrate_state(
            spark, Request(str(checkpoint), str(tmp_path / "out"), PROVIDERS["hdfs"], None, 0.0), lambda _: None
        )
    assert not (checkpoint / "cec" / LEFT.name).exists() and not (tmp_path / "out").exists()


def test_a_place_within_the_checkpoint_is_seen_through_a_link(
    stopped: tuple[SparkSession, Path], tmp_path: Path
) -> None:
    spark, checkpoint = stopped
    (tmp_path / "link").symlink_to(checkpoint)
    request = Request(str(checkpoint), str(tmp_path / "link" / "new"), PROVIDERS["cec"], None, 0.0)
    refused(spark, request, "is within the checkpoint")


def test_a_query_that_runs_is_not_carried(stopped: tuple[SparkSession, Path], tmp_path: Path) -> None:
    spark, checkpoint = stopped
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS, life=1)
    running = start(spark, job, query)
    try:
        request = Request(str(checkpoint), str(tmp_path / "new"), PROVIDERS["cec"], None, 1000.0)
        refused(spark, request, "runs: it has just written a batch")
    finally:
        running.stop()
    migrate_state(spark, replace(request, quiet_s=0.0), lambda _: None)
    own = local.session(spark, **{PROVIDER_KEY: PROVIDERS["cec"]})
    moved_job = Job(str(tmp_path / "job2"), (query,), local.BATCHES, local.ROWS)
    moved_job.checkpoint(query).parent.mkdir(parents=True)
    (tmp_path / "new").rename(moved_job.checkpoint(query))
    running = start(own, moved_job, query)
    try:
        local.wait_for(running, 4)
        request = Request(str(moved_job.checkpoint(query)), str(tmp_path / "back"), PROVIDERS["hdfs"], None, 0.0)
        refused(own, request, "runs: stop it first")
    finally:
        running.stop()


def test_a_copy_that_is_not_finished_cannot_be_started(
    stopped: tuple[SparkSession, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, checkpoint = stopped
    monkeypatch.setattr("spark_cec.migration.migrate.finish", lambda *_: None)
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "new"), (query,), local.BATCHES, local.ROWS)
    job.checkpoint(query).parent.mkdir(parents=True)
    migrate_state(
        spark, Request(str(checkpoint), str(job.checkpoint(query)), PROVIDERS["cec"], None, 0.0), lambda _: None
    )
    assert UNFINISHED in (job.checkpoint(query) / "metadata").read_text()
    with pytest.raises(Exception, match=r"a copy of a checkpoint that was not finished .*remove the directory"):
        start(local.session(spark, **{PROVIDER_KEY: PROVIDERS["cec"]}), job, query).processAllAvailable()


def test_a_state_that_a_crash_left_dirty_is_not_exported(spark: SparkSession, tmp_path: Path) -> None:
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY)
    local.run_to(own, job, query, 4)
    request = Request(str(job.checkpoint(query)), str(tmp_path / "new"), PROVIDERS["hdfs"], None, 0.0)
    refused(own, request, "start it once more and stop it")
    assert json.loads((job.checkpoint(query) / "metadata").read_text())


def run_until_none_is_under_way(spark: SparkSession, job: Job, query: Query, batch: int) -> int:
    """Runs to a batch, or some further, until stores and sink have nothing of a batch without Spark's commit."""
    checkpoint = job.checkpoint(query)
    for each in range(batch, batch + 20):
        local.run_to(spark, replace(job, life=each), query, each)
        local.tasks_are_over(spark)
        done = newest(checkpoint / "commits")
        published = max(int(path.stem) for path in (checkpoint / "cec" / "log" / "manifests").glob("0*.json"))
        versions = {entry.meta.version for entry in log.commits(checkpoint)}
        if published == done and max(versions, default=done + 1) == done + 1:
            return done
    raise AssertionError("each stop was in the middle of a batch")


@pytest.mark.parametrize(("provider", "partitions"), [("cec", 5), ("rocksdb", None)])
def test_a_batch_that_readers_have_and_spark_has_not_committed_is_not_run_again(
    provider: str, partitions: int | None, spark: SparkSession, tmp_path: Path
) -> None:
    """The new checkpoint would run it once more, and publish its rows in a log of its own."""
    query = Query("distinct", feeds.RATE, CEC_SINK)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, **{PROVIDER_KEY: PROVIDERS[provider], "stop.flush": "on"})
    checkpoint, target = job.checkpoint(query), tmp_path / "new"
    last = run_until_none_is_under_way(own, job, query, 4)
    cut(checkpoint / "commits", [last])
    cut(checkpoint / "offsets", [each for each in [last + 1] if (checkpoint / "offsets" / str(each)).exists()])
    before = {path: path.read_bytes() for path in local.files_in(checkpoint)}
    request = Request(str(checkpoint), str(target), PROVIDERS["cec"], partitions, 0.0)
    refused(own, request, f"has published batch {last} .*start the query once more and stop it")
    assert {path for path in before if not path.exists() or path.read_bytes() != before[path]} <= {
        checkpoint / "cec" / "lock"
    }
    run_until_none_is_under_way(own, job, query, last + 1)
    migrate_state(own, request, lambda _: None)


def test_a_checkpoint_that_is_older_than_its_log_is_not_carried(spark: SparkSession, tmp_path: Path) -> None:
    """A rollback came after the copy: the log has versions of the same numbers from another history."""
    job = Job(str(tmp_path / "job"), (TOTALS,), local.BATCHES, local.ROWS)
    own = local.session(spark, {"log.path": str(tmp_path / "logs")})
    checkpoint, old = job.checkpoint(TOTALS), tmp_path / "old"
    local.run_to(own, job, TOTALS, 5)
    shutil.copytree(checkpoint, old)
    assert CliRunner().invoke(app, ["rollback", str(checkpoint), "--to", "2", "--yes"]).exit_code == 0
    local.run_to(own, replace(job, life=1), TOTALS, 7)
    refused(own, Request(str(old), str(tmp_path / "new"), PROVIDERS["cec"], 5, 0.0), "belongs to the checkpoint")
    shutil.rmtree(checkpoint)
    old.rename(checkpoint)
    asked = Request(str(checkpoint), str(tmp_path / "new"), PROVIDERS["cec"], 5, 0.0)
    refused(own, asked, "the log is ahead of the checkpoint")


@pytest.mark.parametrize(
    ("plan", "conf"),
    [("join", {"spark.sql.streaming.join.stateFormatVersion": "3"})],
    ids=["a join whose stores are column families"],
)
def test_state_that_is_not_known_to_be_read_whole_is_refused(
    plan: str, conf: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's reader shows a part of such a state, and the part read back would be the same."""
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, **{PROVIDER_KEY: PROVIDERS["rocksdb"], **conf})
    local.run_to(own, job, query, 2)
    request = Request(str(job.checkpoint(query)), str(tmp_path / "new"), PROVIDERS["cec"], None, 0.0)
    refused(own, request, "operator 0 is symmetricHashJoin with a store default")


def run_by_a_part_of_the_key(
    spark: SparkSession, checkpoint: Path, partitions: int, to: int, seen: dict[int, list[tuple[object, ...]]]
) -> SparkSession:
    """A query whose rows lie where a part of their key says, as of Spark before 3.3, until it has run batch `to`."""
    own = local.session(spark, **{STRICT: "false", PARTITIONS_KEY: str(partitions), "stop.flush": "on"})
    rows = own.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).option("numPartitions", 1).load()
    keyed = rows.select((f.col("value") % 5).alias("a"), (f.col("value") % 7).alias("b"), "value").repartition("a")
    totals = keyed.groupBy("a", "b").agg(f.count("*").alias("n"), f.sum("value").alias("total"))
    writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(local.in_memory(seen)).start()
    try:
        local.wait_for(query, to)
    finally:
        query.stop()
    local.tasks_are_over(own)
    return own


def test_rows_that_lie_by_a_part_of_their_key_are_not_moved(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "here"
    own = run_by_a_part_of_the_key(spark, checkpoint, 3, 2, {})
    request = Request(str(checkpoint), str(tmp_path / "new"), PROVIDERS["cec"], 5, 0.0)
    refused(own, request, r"operator 0 \(aggregation\) .* has \d+ of 35 rows .*: keep its 3 partitions")
    assert not (checkpoint / "cec" / LEFT.name).exists()
    run_by_a_part_of_the_key(spark, checkpoint, 3, 4, {})


def test_rows_that_lie_in_one_partition_are_found_in_several(spark: SparkSession, tmp_path: Path) -> None:
    """One partition does not tell by which columns the query places its rows."""
    undisturbed: dict[int, list[tuple[object, ...]]] = {}
    seen: dict[int, list[tuple[object, ...]]] = {}
    run_by_a_part_of_the_key(spark, tmp_path / "undisturbed", 1, 8, undisturbed)
    own = run_by_a_part_of_the_key(spark, tmp_path / "here", 1, 2, seen)
    moved(own, tmp_path / "here", "cec", partitions=3)
    run_by_a_part_of_the_key(spark, tmp_path / "here", 3, 6, seen)
    common = seen.keys() & undisturbed.keys()
    assert len(common) > 5
    assert {batch: seen[batch] for batch in common} == {batch: undisturbed[batch] for batch in common}
