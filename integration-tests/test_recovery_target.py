"""A recovery target on real Spark: what is foretold reaches footers, progress and reports, and steers q and u."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import local, log
from spark_cec.log.index import CommitEntry

BATCHES = 6


def totals(spark: SparkSession) -> DataFrame:
    rate = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 2)
        .option("startTimestamp", 0).load()
    )  # fmt: skip
    return rate.groupBy(f.pmod("value", f.lit(37)).alias("key")).agg(f.sum("value").alias("total"))


def run_to(spark: SparkSession, checkpoint: Path, batch: int) -> list[dict[str, Any]]:
    """Run the query until it has committed `batch`; the progress of each of its batches."""
    query: StreamingQuery = (
        totals(spark).writeStream.format("noop").outputMode("update")
        .option("checkpointLocation", str(checkpoint)).start()
    )  # fmt: skip
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < batch:
            query.awaitTermination(1)
            error = query.exception()
            assert error is None, error
    finally:
        query.stop()
    return [json.loads(each.json) for each in query.recentProgress]


def by_version(checkpoint: Path) -> dict[int, list[CommitEntry]]:
    """The commits of all stores, by version."""
    found: dict[int, list[CommitEntry]] = {}
    for entry in log.commits(checkpoint):
        found.setdefault(entry.meta.version, []).append(entry)
    return found


def reports(checkpoint: Path) -> list[dict[str, Any]]:
    paths = sorted((checkpoint / "cec" / "recoveries").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_progress_shows_the_slowest_partitions_estimate(spark: SparkSession, tmp_path: Path) -> None:
    progress = run_to(local.session(spark, {"recoveryTarget": "1h", "effort": "0"}), tmp_path, BATCHES)
    found = by_version(tmp_path)
    compared = 0
    for each in progress:
        entries = found.get(each["batchId"] + 1, [])
        shown = each["stateOperators"][0]["customMetrics"]["cecRecoveryEstimateMs"]
        estimates = [entry.meta.recovery_estimate_ms for entry in entries]
        if len(entries) == 2:
            assert shown == round(max(estimates)), f"batch {each['batchId']}: {estimates}"
            compared += shown > 0
    assert compared, "no batch had an estimate: that proves nothing"
    last = found[max(found)]
    assert all(entry.meta.replay > 0 for entry in last), "an hour is enough to leave windows dirty"
    assert all(entry.meta.replay_us_per_tuple > 0 and entry.meta.recovery_base_ms > 0 for entry in last)


def test_a_target_out_of_reach_leaves_nothing_to_replay(spark: SparkSession, tmp_path: Path) -> None:
    run_to(local.session(spark, {"recoveryTarget": "1ms"}), tmp_path, BATCHES)
    found = by_version(tmp_path)
    # The plan that a commit obeys was made at the one before it: what was learned shows from then on.
    late = [entry.meta for version, entries in found.items() if version > BATCHES // 2 for entry in entries]
    assert late
    assert {meta.replay for meta in late} == {0}, [(meta.version, meta.replay) for meta in late]


def test_a_report_has_what_was_foretold_and_the_next_run_learns_from_it(spark: SparkSession, tmp_path: Path) -> None:
    patient = local.session(spark, {"recoveryTarget": "1h", "effort": "0"})
    run_to(patient, tmp_path, BATCHES)
    before = by_version(tmp_path)
    run_to(patient, tmp_path, 2 * BATCHES)
    (report,) = reports(tmp_path)
    heads = [entry.meta for entry in before[report["committed_batch"] + 1]]
    assert report["replayed_batches"] > 1, "a recovery without a replay proves nothing"
    assert report["predicted_ms"] == max(meta.recovery_estimate_ms for meta in heads)
    assert report["digest_ok"]
    known = by_version(tmp_path)
    run_to(patient, tmp_path, 3 * BATCHES)
    after = [
        entry.meta for version, entries in by_version(tmp_path).items() if version not in known for entry in entries
    ]
    assert after
    base_ms = max(report["duration_ms"] - report["predicted_work_ms"], 0)
    assert [meta.recovery_base_ms for meta in after] == [pytest.approx(base_ms)] * len(after)
    assert all(meta.load_us_per_record > 0 for meta in after), "the load was measured"
