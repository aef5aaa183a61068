"""Where Spark has an error of its own, it is that one: a query that runs already, a checkpoint of an old Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cec_it import feeds, local
from cec_it.driver import FOREACH, Job, Query, start
from cec_it.references import PROVIDER_KEY, SPARKS_OWN

QUERY = Query("totals", feeds.RATE, FOREACH)
STOP_ACTIVE = "spark.sql.streaming.stopActiveRunOnRestart"


def second_start(spark: SparkSession, root: Path) -> str:
    """What a second start of a running query fails with; the first run goes on."""
    job = Job(str(root), (QUERY,), 4, 40)
    running = start(spark, job, QUERY)
    try:
        local.wait_for(running, 1)
        spark.conf.set(STOP_ACTIVE, "false")
        other = Job(str(root), (Query("totals", feeds.RATE, "noop"),), 4, 40)
        with pytest.raises(Exception, match="already active") as refused:
            _start_unnamed(spark, other, job.checkpoint(QUERY))
        local.wait_for(running, 3)
    finally:
        running.stop()
    said = re.sub(r"[0-9a-f-]{36}|\bo\d+\b", "ID", str(refused.value)).splitlines()
    return "\n".join([type(refused.value).__name__, *said[:2]])


def _start_unnamed(spark: SparkSession, job: Job, checkpoint: Path) -> None:
    frame = feeds.read_rate(spark, "left", job.batches, job.rows).groupBy("key").count()
    writer = frame.writeStream.format("noop").outputMode("complete").option("checkpointLocation", str(checkpoint))
    writer.start().stop()


def test_a_query_that_runs_already(spark: SparkSession, tmp_path: Path) -> None:
    ours = second_start(local.session(spark), tmp_path / "ours")
    theirs = second_start(local.session(spark, {PROVIDER_KEY: SPARKS_OWN}), tmp_path / "theirs")
    assert ours == theirs


def test_a_checkpoint_of_spark_2_1(spark: SparkSession, tmp_path: Path) -> None:
    """Its offset log names no provider, it has no commit log, and its state is in delta files."""
    job = Job(str(tmp_path), (QUERY,), 4, 40)
    checkpoint = job.checkpoint(QUERY)
    for directory in ("offsets", "state/0/0", "state/0/1"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "dddc5e7f-1e71-454c-8362-de184444fb5a"}))
    for batch in (0, 1):
        times = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1489180207737 + batch})
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{times}\n{batch}")
        for partition in (0, 1):
            (checkpoint / "state" / "0" / str(partition) / f"{batch + 1}.delta").write_bytes(b"\0" * 46)
    before = {path: path.read_bytes() for path in local.files_in(checkpoint)}
    with pytest.raises(AnalysisException, match=r"begun by an old release of Spark.*another provider.*providerClass"):
        start(local.session(spark), job, QUERY).stop()
    after = {path: path.read_bytes() for path in local.files_in(checkpoint)}
    assert {path: content for path, content in after.items() if path in before} == before
    assert not (checkpoint / "cec" / "log").exists()
