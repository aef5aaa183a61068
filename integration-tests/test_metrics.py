"""Spark's metrics system has each query's numbers and the agents' health, and gives them to Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from cec_it import feeds, local
from cec_it.driver import FOREACH, Job, Query
from spark_cec.cli.app import app

PROGRAM = Path(__file__).with_name("cec_it") / "prometheus_job.py"


def test_prometheus_is_told_of_a_running_query_and_of_a_replay(tmp_path: Path) -> None:
    """In a process of its own: only a session with a user interface has the page for Prometheus."""
    done = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    running, stopped, replaying, ended = (values(told[when]) for when in ("running", "stopped", "replaying", "ended"))
    assert running["query_clicks_batch"] == 4
    assert (running["query_clicks_openWindows"], running["query_clicks_stateRows"]) == (7, 7)
    assert running["query_clicks_dirty"] == 7
    assert running["query_clicks_replay"] > 0
    assert running["query_clicks_recoveryEstimateMs"] > 0
    assert running["query_clicks_replayBatchesLeft"] == 0
    assert (running["agent_alive"], running["agent_starts"]) == (1, 1)
    assert running["agent_residentBytes"] > 50e6
    assert running["windows_heapBytes"] > running["query_clicks_openWindows"] * 40
    assert running["windows_heapBytes"] > running["windows_besideBytes"] > running["query_clicks_openWindows"] * 20
    assert running["windows_majorFaults"] >= 0
    assert stopped["query_clicks_late_batch"] == replaying["query_clicks_late_batch"] == 4, "Spark has removed it, too"
    assert "query_clicks_batch" not in stopped
    assert 0 < replaying["query_clicks_replayBatchesLeft"] <= 4
    assert not any(name.startswith("query_") for name in ended)
    assert ended["agent_alive"] == 1


def values(page: str) -> dict[str, float]:
    """What the page says of us, without the name of the application."""
    found = re.findall(r'^metrics_\w+?_driver_cec_(\w+)_Value\{type="gauges"\} (\S+)$', page, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize(
    ("plan", "several"),
    [("sessions", True), ("join", False), ("native-count-windows", False), ("long-window-updates", False)],
)
def test_windows_and_rows_are_the_same_in_metrics_and_in_inspect(
    plan: str, several: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Of sessions a window has several rows; of a join Spark's own metric counts two of four stores."""
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS)
    streaming = local.start(local.session(spark, {"Q": "2x"}), job, query)

    def look() -> tuple[dict[str, int], dict[str, Any]] | None:
        inspected = CliRunner().invoke(app, ["inspect", str(job.checkpoint(query)), "--json"])
        found = json.loads(inspected.stdout)
        for progress in streaming.recentProgress:
            told = json.loads(progress.json)
            if told["batchId"] == found["committed_batch"] and told["batchId"] >= 6:
                return told["stateOperators"][0]["customMetrics"], found
        return None

    try:
        local.wait_for(streaming, 6)
        metrics, found = local.eventually(look, "the progress of the newest batch")
    finally:
        streaming.stop()
    totals = found["totals"]
    assert (metrics["cecOpenWindows"], metrics["cecStateRows"]) == (totals["open_windows"], totals["state_rows"])
    assert metrics["cecDirty"] == totals["dirty_windows"] and metrics["cecExtent"] == totals["extent_records"]
    assert (totals["state_rows"] > totals["open_windows"] > 0) == several
    for store in found["stores"]:
        assert store["extent_bound"] == 2 * store["state_rows"], "Q is a multiple of the state keys"


def _idle(query: StreamingQuery) -> dict[str, Any] | None:
    progress = query.lastProgress
    return json.loads(progress.json) if progress is not None and progress.numInputRows == 0 else None


def test_an_idle_query_goes_on_saying_what_a_recovery_would_take(spark: SparkSession, tmp_path: Path) -> None:
    """Spark leaves out of the progress of an idle query what is not said to last."""
    own = local.session(spark, local.OPENINGS_ONLY, **{"spark.sql.streaming.noDataProgressEventInterval": "100"})
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text("".join(f'{{"key": {row % 5}}}\n' for row in range(50)))
    rows = own.readStream.schema("key int").option("maxFilesPerTrigger", 1).json(str(source))
    writer = rows.groupBy("key").count().writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start()
    try:
        query.processAllAvailable()
        idle = local.eventually(lambda: _idle(query), "an idle progress")
    finally:
        query.stop()
    metrics = idle["stateOperators"][0]["customMetrics"]
    assert (metrics["cecDirty"], metrics["cecExtent"]) == (5, 5)
    assert metrics["cecReplay"] > 0 and metrics["cecRecoveryEstimateMs"] > 0


def test_rows_beyond_memory_are_in_the_metrics(spark: SparkSession, tmp_path: Path) -> None:
    session = local.session(spark, {"memory": "4KiB"})
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 8000).load()
    counts = rows.groupBy((f.col("value") % 20_000).alias("key")).agg(f.count("*"), f.sum("value"))
    writer = counts.writeStream.format("noop").outputMode("update")
    streaming = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        local.wait_for(streaming, 4)
        operators = [json.loads(each.json)["stateOperators"][0] for each in streaming.recentProgress]
    finally:
        streaming.stop()
    for operator, metrics in ((each, each["customMetrics"]) for each in operators):
        assert 0 < metrics["cecDeadBytes"] < metrics["cecFileBytes"] + operator["memoryUsedBytes"]
        assert metrics["cecFileReads"] > 0, "a commit reads the rows that it writes"
    spilled = sum(each["customMetrics"]["cecSpilledBytes"] for each in operators)
    assert spilled >= operators[-1]["customMetrics"]["cecFileBytes"] > 500_000
