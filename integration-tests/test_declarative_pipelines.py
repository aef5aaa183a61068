"""Spark Declarative Pipelines with our conf line in the pipeline's configuration: killed, run again, exact."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it import feeds, results
from cec_it.cluster import LOOPBACK, PATIENCE_S, QUICK, SPARK_HOME, Daemon
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.local import eventually
from cec_it.plans import PLANS
from cec_it.references import PROVIDER_KEY, References
from spark_cec.session import jar_path
from spark_cec.settings import PROVIDER
from testbed.spark_logs import newest

pytest.importorskip("grpc", reason="Spark Declarative Pipelines need pyspark[pipelines]")

QUERY = Query("window-append", feeds.FILES, FOREACH)
BATCHES, ROWS = 12, 120
SPEC = f"""
name: windows
storage: file://{{root}}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  {PROVIDER_KEY}: {PROVIDER}
  {CEC}CI: 0ms
  {CEC}python: {sys.executable}
  spark.sql.session.timeZone: UTC
  spark.sql.shuffle.partitions: "2"
"""
TRANSFORMATION = """
from pathlib import Path

from pyspark import pipelines
from pyspark.sql import SparkSession

from cec_it import feeds
from cec_it.plans import PLANS

spark = SparkSession.active()


@pipelines.table
def windows():
    return PLANS["window-append"].build(lambda side: feeds.read_files(spark, Path("{events}"), side))
"""


def project(root: Path, events: Path) -> Path:
    """A pipeline's files; returns the path of its specification."""
    (root / "transformations").mkdir()
    (root / "transformations" / "windows.py").write_text(TRANSFORMATION.format(events=events))
    (root / "spark-pipeline.yml").write_text(SPEC.format(root=root))
    return root / "spark-pipeline.yml"


def update(root: Path, number: int) -> Daemon:
    """One update of the pipeline, as `spark-pipelines run` makes it; its table is in the working directory."""
    conf = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        # Not --jars: Spark Connect, which runs the pipeline, takes those for the session's own, after it began.
        "spark.driver.extraClassPath": jar_path(),
        "spark.ui.enabled": "false",
        "spark.local.dir": str(root),
        "spark.sql.warehouse.dir": str(root / "spark-warehouse"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{root}/metastore;create=true",
        "spark.driver.extraJavaOptions": " ".join(QUICK),
    }
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return Daemon(
        "spark-pipelines",
        [str(SPARK_HOME / "bin" / "spark-pipelines"), "--remote", "local[2]", *options,
         "run", "--spec", str(root / "spark-pipeline.yml")],
        root / f"update-{number}.log",
        {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable},
        cwd=root,
    )  # fmt: skip


@pytest.mark.long
def test_an_update_is_killed_and_run_again(spark: SparkSession, references: References, tmp_path: Path) -> None:
    job = Job(str(tmp_path), (QUERY,), BATCHES, ROWS)
    feeds.write_files(job.events, BATCHES, ROWS)
    project(tmp_path, job.events)

    def checkpoint() -> Path | None:
        return next((path.parent for path in (tmp_path / "storage").rglob("commits")), None)

    killed = update(tmp_path, 0)
    try:
        where = eventually(lambda: checkpoint() if killed.lives() else None, "a checkpoint", PATIENCE_S)
        eventually(lambda: (killed.lives() and newest(where / "commits") >= 5) or None, "batch 5", PATIENCE_S)
        assert newest(where / "commits") < BATCHES - 1, "the update was over before it was killed"
    finally:
        killed.lose()
    again = update(tmp_path, 1)
    try:
        assert again.exit_code() == 0, again.log.read_text(errors="replace")[-3000:]
    finally:
        again.lose()
    assert (where / "cec" / "query.json").exists(), "the flow ran on another provider"
    rows = results.json_rows(spark.read.parquet(str(tmp_path / "spark-warehouse" / "windows")))
    wanted = results.final(PLANS[QUERY.plan], references.get(QUERY, job))
    assert wanted and results.union({0: rows}) == wanted
