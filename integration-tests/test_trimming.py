"""A log with small segments: old ones go, and what stays is enough for a recovery."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it import local
from cec_it.crashes import newest

BATCHES = 64
SMALL = {**local.OPENINGS_ONLY, "log.segmentBytes": "4KiB", "output.retainBatches": "5"}
RETAIN = "spark.sql.streaming.minBatchesToRetain"
RETAINED = 12
KEYS = 12
ROWS = 24


def source(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    return rate.load().select((f.col("value") % KEYS).alias("key"), (f.col("value") % 7).alias("amount"))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A query after many batches and two restarts. `segments` are the names that were seen before the second."""

    checkpoint: Path
    segments: set[str]
    committed: int


def names(checkpoint: Path) -> set[str]:
    return {path.name for path in (checkpoint / "cec" / "log" / "segments").iterdir()}


@pytest.fixture(scope="module")
def trimmed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Trimmed:
    checkpoint = tmp_path_factory.mktemp("trimmed") / "checkpoint"
    own = local.session(spark, SMALL, **{RETAIN: str(RETAINED)})
    seen: set[str] = set()

    def run_to(batch: int, look: Callable[[], object] = lambda: None) -> None:
        totals = source(own).groupBy("key").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
        writer = totals.writeStream.format("cec").outputMode("update").option("checkpointLocation", str(checkpoint))
        streaming = writer.start()
        try:
            for step in range(newest(checkpoint / "commits"), batch, 5):
                local.wait_for(streaming, min(step + 5, batch))
                look()
        finally:
            streaming.stop()

    run_to(BATCHES // 2, lambda: seen.update(names(checkpoint)))
    run_to(BATCHES, lambda: seen.update(names(checkpoint)))
    committed = newest(checkpoint / "commits")
    run_to(committed + 3)
    return Trimmed(checkpoint, seen, committed)


def test_old_segments_go(trimmed: Trimmed) -> None:
    left = names(trimmed.checkpoint)
    assert len(trimmed.segments) > 6, "segments are not small"
    assert trimmed.segments - left, f"no segment has gone: {sorted(left)}"


def test_the_replay_stays_within_the_batches_that_spark_retains(trimmed: Trimmed) -> None:
    first, second = local.reports(trimmed.checkpoint, 2)[:2]
    assert (first["digest_ok"], second["digest_ok"]) == (True, True)
    assert second["committed_batch"] == trimmed.committed
    for report in (first, second):
        assert int(str(report["replayed_batches"])) <= RETAINED, report
    assert int(str(first["replayed_batches"])) + int(str(second["replayed_batches"])) > 2, (first, second)


def test_the_state_is_right_after_all(trimmed: Trimmed, spark: SparkSession) -> None:
    rows = spark.read.format("cec").load(str(trimmed.checkpoint)).collect()
    newest_rows = {key: max((row["n"], row["total"]) for row in rows if row["key"] == key) for key in range(KEYS)}
    last = max(n for n, _ in newest_rows.values()) * KEYS // ROWS
    values = range(last * ROWS)
    assert newest_rows == {
        key: (sum(v % KEYS == key for v in values), sum(v % 7 for v in values if v % KEYS == key))
        for key in range(KEYS)
    }
    assert last > trimmed.committed


def test_output_that_is_not_retained_goes_whole_batches_at_a_time(trimmed: Trimmed, spark: SparkSession) -> None:
    found = (trimmed.checkpoint / "cec" / "log" / "manifests").glob("*[0-9].json")
    manifests = sorted(int(path.stem) for path in found)
    assert manifests[0] > 0, "no output has gone"
    assert manifests == list(range(manifests[0], manifests[-1] + 1))
    assert len(manifests) < trimmed.committed
    rows = spark.read.format("cec").load(str(trimmed.checkpoint)).count()
    assert rows == KEYS * len(manifests), json.dumps(manifests)
