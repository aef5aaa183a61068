"""`cec import`, `rescale` and `export` of state that Spark names by ids (checkpoint format 2).

Spark does not record the format among the settings of a batch, and the commands' own session has format 1.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it import feeds, local, results
from cec_it.commands import cec
from cec_it.driver import FOREACH, Job, Query, last_batch
from cec_it.references import PROVIDER_KEY, References
from spark_cec.cli.migrate import PROVIDERS
from spark_cec.migration.migrate import Request, migrate_state
from testbed.spark_logs import newest

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
TOTALS = Query("totals", feeds.RATE, FOREACH)

Run = Callable[[str, str, int, int], Path]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(str(tmp_path / "job"), (TOTALS,), local.BATCHES, local.ROWS)


@pytest.fixture
def run(spark: SparkSession, job: Job) -> Run:
    """Runs the query on a provider, in a format, in its so-manieth life, to a batch; its checkpoint."""

    def run_to(provider: str, version: str, life: int, batch: int) -> Path:
        own = local.session(spark, **{PROVIDER_KEY: PROVIDERS[provider], FORMAT: version, "stop.flush": "on"})
        local.run_to(own, replace(job, life=life), TOTALS, batch)
        local.tasks_are_over(own)
        return job.checkpoint(TOTALS)

    return run_to


def put(beside: Path, checkpoint: Path) -> None:
    """The new checkpoint takes the place of the old one, where the job looks for it."""
    shutil.rmtree(checkpoint)
    beside.rename(checkpoint)


def has_ids(checkpoint: Path) -> bool:
    return '"stateUniqueIds"' in (checkpoint / "commits" / str(newest(checkpoint / "commits"))).read_text()


def test_the_commands_follow_the_checkpoint(run: Run, job: Job, references: References, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    checkpoint = run("rocksdb", "2", 0, 1)
    cec("import", "--from", str(checkpoint), "--to", str(beside), "--quiet-for", "0")
    put(beside, checkpoint)
    assert has_ids(checkpoint)
    run("cec", "2", 1, 3)
    cec("rescale", "--from", str(checkpoint), "--to", str(beside), "--partitions", "3")
    put(beside, checkpoint)
    assert has_ids(checkpoint)
    run("cec", "2", 2, 5)
    cec("export", "--from", str(checkpoint), "--to", str(beside))
    put(beside, checkpoint)
    assert has_ids(checkpoint)
    run("rocksdb", "2", 3, last_batch(job))
    assert results.last_recorded(job.out(TOTALS)) == references.get(TOTALS, job)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_store_without_ids(
    version: str, spark: SparkSession, run: Run, job: Job, references: References, tmp_path: Path
) -> None:
    """The HDFS-backed provider refuses ids. Spark goes on in the format of the newest commit."""
    beside, checkpoint = tmp_path / "beside", run("cec", "2", 0, 3)
    own = local.session(spark, **{FORMAT: version})
    migrate_state(own, Request(str(checkpoint), str(beside), PROVIDERS["hdfs"]), lambda _: None)
    assert own.conf.get(FORMAT) == version
    put(beside, checkpoint)
    assert not has_ids(checkpoint)
    run("hdfs", version, 1, last_batch(job))
    assert results.last_recorded(job.out(TOTALS)) == references.get(TOTALS, job)


def test_a_session_with_ids_and_state_without(
    spark: SparkSession, run: Run, job: Job, references: References, tmp_path: Path
) -> None:
    beside, checkpoint = tmp_path / "beside", run("hdfs", "1", 0, 3)
    own = local.session(spark, **{FORMAT: "2"})
    migrate_state(own, Request(str(checkpoint), str(beside), PROVIDERS["cec"], quiet_s=0.0), lambda _: None)
    put(beside, checkpoint)
    assert not has_ids(checkpoint)
    run("cec", "1", 1, last_batch(job))
    assert results.last_recorded(job.out(TOTALS)) == references.get(TOTALS, job)
