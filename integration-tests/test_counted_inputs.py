"""The input of a batch, as its footers count it, however Spark reads the shuffle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import local
from cec_it.log import commits
from cec_it.references import PROVIDER_KEY, SPARKS_OWN

CODEGEN = "spark.sql.codegen.wholeStage"
FILES, SIZE = 4, 10
SCHEMA = "seq long, key long, amount long, share double, name string, ts timestamp"


def write(source: Path, number: int, rows: list[dict[str, object]]) -> None:
    source.mkdir(exist_ok=True)
    path = source / f".{number}.json"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    # Spark reads files in the order of their times, and several are written in a millisecond.
    os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
    path.rename(source / f"{number}.json")


def event(seq: int, key: int) -> dict[str, object]:
    at = f"2026-01-01T00:{seq // 60:02}:{seq % 60:02}Z"
    return {"seq": seq, "key": key, "amount": seq * 7 % 11, "share": seq / 7, "name": f"n{seq}", "ts": at}


def read(spark: SparkSession, source: Path, files: int) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(str(source))


def run(frame: DataFrame, root: Path, mode: str, into: dict[int, list[tuple[object, ...]]]) -> None:
    """Run the query over all of its files."""
    writer = frame.writeStream.outputMode(mode).foreachBatch(local.in_memory(into))
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def inputs_of(root: Path) -> int:
    """The input of the first batch, in all stores."""
    return sum(entry.meta.inputs for entry in commits(root / "checkpoint") if entry.meta.version == 1)


@pytest.mark.parametrize("codegen", ["true", "false"])
def test_each_row_of_a_session_counts(spark: SparkSession, tmp_path: Path, codegen: str) -> None:
    own = local.session(spark, {}, **{CODEGEN: codegen})
    write(tmp_path / "source", 0, [event(seq, key=1) for seq in range(100)])
    events = read(own, tmp_path / "source", FILES).withWatermark("ts", "1 minute")
    run(events.groupBy(f.session_window("ts", "10 seconds"), "key").count(), tmp_path, "append", {})
    assert inputs_of(tmp_path) == 100


@pytest.mark.parametrize("codegen", ["true", "false"])
@pytest.mark.parametrize("aggregate", ["max(name)", "approx_count_distinct(seq)", "sum(amount)"])
def test_each_part_of_an_aggregate_counts(spark: SparkSession, tmp_path: Path, aggregate: str, codegen: str) -> None:
    """Each file is a task of its own, which aggregates its rows."""
    own = local.session(spark, {}, **{CODEGEN: codegen, "spark.sql.files.minPartitionNum": str(FILES)})
    for number in range(FILES):
        write(tmp_path / "source", number, [event(SIZE * number + row, key=1) for row in range(SIZE)])
    run(read(own, tmp_path / "source", FILES).groupBy("key").agg(f.expr(aggregate)), tmp_path, "update", {})
    assert inputs_of(tmp_path) == FILES


@pytest.mark.parametrize("column", ["amount", "share"])
@pytest.mark.parametrize(("before", "after"), [("true", "false"), ("false", "true"), ("false", "false")])
def test_a_replay_may_run_without_generated_code_or_with_it(
    spark: SparkSession, tmp_path: Path, before: str, after: str, column: str
) -> None:
    found: dict[str, dict[int, list[tuple[object, ...]]]] = {"cec": {}, "undisturbed": {}}
    for name, batches in found.items():
        root = tmp_path / name
        root.mkdir()
        for codegen, numbers in ((before, range(3)), (after, range(3, 6))):
            own = local.session(spark, {**local.OPENINGS_ONLY, "stop.flush": "off"}, **{CODEGEN: codegen})
            if name == "undisturbed":
                own.conf.set(PROVIDER_KEY, SPARKS_OWN)
            for number in numbers:
                write(root / "source", number, [event(SIZE * number + row, key=row % 3) for row in range(SIZE)])
            aggregates = [f.sum(column).alias("total"), f.max("name").alias("most"), f.count("*").alias("n")]
            events = read(own, root / "source", 1)
            run(spark_cec.count_window(events, "key", 7, aggregates, order_by="seq"), root, "append", batches)
    (report,) = local.reports(tmp_path / "cec" / "checkpoint", 1)
    assert report["digest_ok"] and int(str(report["replayed_batches"])) > 0, report
    assert found["cec"] == found["undisturbed"]
    assert any(found["cec"].values())
