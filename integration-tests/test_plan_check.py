"""What runs is what was decided: a plan with other operators stops the query before anything is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, local, results
from cec_it.decisions import events
from cec_it.driver import FOREACH, Job, Query
from cec_it.references import References

RECOVERY = "org.apache.spark.sql.cec.recovery"
DIFFERS = "the plan that Spark runs is not the one for which deferred commits were found safe"
SINKS = ("foreachBatch", "noop", "json", "cec", "memory")


def claim(spark: SparkSession, checkpoint: str, *operators: tuple[str, bool]) -> None:
    """Tell Spark CEC that it has decided otherwise than it has."""
    jvm: Any = spark._jvm
    decided = jvm.java.util.ArrayList()
    for number, (kind, deferred) in enumerate(operators):
        decided.add(getattr(jvm, f"{RECOVERY}.OperatorDecision")(number, kind, deferred, "a lie"))
    decision = getattr(jvm, f"{RECOVERY}.Decision")(jvm.PythonUtils.toSeq(decided))
    getattr(jvm, f"{RECOVERY}.DeferralRegistry").expect(spark._jsparkSession, checkpoint, decision)


def begin(spark: SparkSession, frame: DataFrame, mode: str, sink: str, root: Path) -> StreamingQuery:
    """Start a query that has no input yet; it has been told what was decided."""
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(root / "checkpoint"))
    if sink == "foreachBatch":
        streaming = writer.foreachBatch(lambda batch, _: batch.collect() and None).start()
    elif sink == "json":
        streaming = writer.format("json").option("path", str(root / "out")).start()
    else:
        streaming = writer.queryName("plan_check").format(sink).start()
    streaming.processAllAvailable()
    return streaming


def frames_in(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "checkpoint" / "cec" / "log" / "segments").glob("*"))


def totals(spark: SparkSession, root: Path) -> DataFrame:
    (root / "events" / "left").mkdir(parents=True)
    windowed = events(spark, root).withWatermark("ts", "10 seconds").groupBy(f.window("ts", "10 seconds"), "key")
    return windowed.agg(f.sum("amount").alias("total"))


def refused(streaming: StreamingQuery, root: Path, words: str) -> None:
    before = frames_in(root)
    feeds.write_file(root / "events" / "left", "left", 0, 20)
    with pytest.raises(StreamingQueryException, match=f"(?s){DIFFERS}: .*{words}.*cec.mode=eager"):
        streaming.processAllAvailable()
    assert not list((root / "checkpoint" / "commits").glob("[0-9]*"))
    assert frames_in(root) == before


@pytest.mark.parametrize("sink", SINKS)
def test_a_lie_stops_the_query_whatever_its_sink(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    own = local.session(spark)
    streaming = begin(own, totals(own, tmp_path), "append", sink, tmp_path)
    claim(own, f"file:{tmp_path}/checkpoint", ("deduplication", True))
    refused(
        streaming,
        tmp_path,
        r"it has the stateful operators \[0 \(aggregation\)\], and not \[0 \(deduplication\)\]",
    )


def test_operators_that_are_not_there_are_missed(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark)
    streaming = begin(own, totals(own, tmp_path), "update", "noop", tmp_path)
    claim(own, f"file:{tmp_path}/checkpoint", ("aggregation", True), ("aggregation", False))
    refused(streaming, tmp_path, r"and not \[0 \(aggregation\), 1 \(aggregation\)\]")


def chained(spark: SparkSession, root: Path) -> DataFrame:
    rows = totals(spark, root)
    return rows.groupBy(f.window(f.window_time("window"), "20 seconds")).agg(f.sum("total"))


def test_operators_that_are_swapped_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    """Both are aggregations: that the one which is deferred is fed by the other shows in the plan alone."""
    own = local.session(spark)
    streaming = begin(own, chained(own, tmp_path), "append", "noop", tmp_path)
    claim(own, f"file:{tmp_path}/checkpoint", ("aggregation", True), ("aggregation", False))
    refused(streaming, tmp_path, r"operator 0 \(aggregation\): it is fed by another stateful operator \(aggregation\)")


def test_functions_are_looked_at_in_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark)
    (tmp_path / "events" / "left").mkdir(parents=True)
    frame = events(own, tmp_path).groupBy("key").agg(f.collect_list("seq"))
    streaming = begin(own, frame, "update", "noop", tmp_path)
    claim(own, f"file:{tmp_path}/checkpoint", ("aggregation", True))
    refused(streaming, tmp_path, r"operator 0 \(aggregation\): collect_list is not known")


def test_eager_operators_may_be_what_they_are(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark)
    streaming = begin(own, totals(own, tmp_path), "update", "noop", tmp_path)
    claim(own, f"file:{tmp_path}/checkpoint", ("deduplication", False))
    feeds.write_file(tmp_path / "events" / "left", "left", 0, 20)
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()


def test_a_query_with_common_tables_recovers(spark: SparkSession, references: References, tmp_path: Path) -> None:
    """Both its aggregations were taken for independent once, and each obeyed what was decided for the other."""
    query = Query("common-table", feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY)
    local.run_to(own, job, query, 4)
    local.run_to(own, job, query, local.BATCHES + 2)
    (report,) = local.reports(job.checkpoint(query), 1)
    assert report["digest_ok"] is True
    assert int(str(report["replayed_batches"])) > 0
    assert results.last_recorded(job.out(query)) == references.get(query, job)


@pytest.mark.parametrize("settings", [{}, {"mode": "eager"}], ids=["auto", "eager"])
def test_two_deduplications_of_which_spark_makes_one(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    """Spark's optimizer makes one union of two. The query runs and goes on, and no row comes twice."""
    own, folder, keys = local.session(spark, settings), tmp_path / "events" / "left", list[int]()
    folder.mkdir(parents=True)
    for number in range(3):
        feeds.write_file(folder, "left", number, 20 * (number + 1))
        one, two, three = (events(own, tmp_path).select("key") for _ in range(3))
        writer = one.union(two).distinct().union(three).distinct().writeStream.outputMode("append")
        checked = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        streaming = checked.foreachBatch(lambda batch, _: keys.extend(row["key"] for row in batch.collect())).start()
        try:
            streaming.processAllAvailable()
            assert [each["operatorName"] for each in streaming.recentProgress[0]["stateOperators"]] == ["dedupe"]
        finally:
            streaming.stop()
    there = own.read.schema(feeds.SCHEMA).json(str(folder)).select("key").distinct().collect()
    assert sorted(keys) == sorted(row["key"] for row in there)
