"""A plan that must be eager is eager, and says why; the rest is deferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.state import GroupState

import spark_cec
from cec_it import feeds, local
from cec_it.decisions import Frame, decide, events
from cec_it.plans import PLANS
from cec_it.references import PROVIDER_KEY, SPARKS_OWN

SPECULATION = "spark.speculation"
STREAMING = "spark.sql.streaming."


class Counter(SimpleDataSourceStreamReader):
    """Five numbers a call."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(start["at"] + i,) for i in range(5)]), {"at": start["at"] + 5}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:  # noqa: N802
        return iter([(i,) for i in range(start["at"], end["at"])])


class CounterSource(DataSource):
    """A source that Spark CEC has never heard of."""

    @classmethod
    def name(cls) -> str:
        return "it-counter"

    def schema(self) -> str:
        return "n LONG"

    def simpleStreamReader(self, schema: object) -> Counter:  # noqa: N802
        return Counter()


def totals(*columns: str) -> Frame:
    return lambda spark, root: events(spark, root).groupBy("key").agg(f.sum("amount"), *map(f.expr, columns))


def on(plan: str) -> Frame:
    return lambda spark, root: PLANS[plan].build(lambda side: feeds.read_files(spark, root / "events", side))


def with_column(column: str) -> Frame:
    return lambda spark, root: events(spark, root).withColumn("x", f.expr(column)).groupBy("key").agg(f.max("x"))


def nondeterministic_udf(spark: SparkSession, root: Path) -> DataFrame:
    guess = f.udf(lambda amount: amount, "long").asNondeterministic()
    return events(spark, root).where(guess("amount") > 0).groupBy("key").agg(f.sum("amount"))


def processing_time(spark: SparkSession, root: Path) -> DataFrame:
    def pass_on(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        yield from ()

    groups = events(spark, root).groupBy("key")
    return groups.applyInPandasWithState(pass_on, "n LONG", "n LONG", "update", "ProcessingTimeTimeout")


def counted(spark: SparkSession, root: Path) -> DataFrame:
    spark.dataSource.register(CounterSource)
    return spark.readStream.format("it-counter").load().groupBy((f.col("n") % 3).alias("k")).count()


def cleaned(spark: SparkSession, root: Path) -> DataFrame:
    (root / "events" / "left").mkdir(parents=True, exist_ok=True)
    reader = spark.readStream.schema(feeds.SCHEMA).option("cleanSource", "delete")
    return reader.json(str(root / "events" / "left")).groupBy("key").count()


def passed_over(spark: SparkSession, root: Path) -> DataFrame:
    (root / "events" / "left").mkdir(parents=True, exist_ok=True)
    reader = spark.readStream.schema(feeds.SCHEMA).option("ignorecorruptfiles", "true")
    return reader.json(str(root / "events" / "left")).groupBy("key").count()


def united_twice(spark: SparkSession, root: Path) -> DataFrame:
    one, two, three = (events(spark, root).select("key") for _ in range(3))
    return one.union(two).distinct().union(three).distinct()


def unordered_windows(spark: SparkSession, root: Path) -> DataFrame:
    return spark_cec.count_window(events(spark, root), "key", 7, [f.sum("amount").alias("total")])


def windows_of(aggregate: str, key: str = "key") -> Frame:
    def build(spark: SparkSession, root: Path) -> DataFrame:
        keyed = events(spark, root).withColumn("share", f.col("amount") / 7)
        return spark_cec.count_window(keyed, key, 7, [f.expr(aggregate)], order_by="seq")

    return build


def since_yesterday(spark: SparkSession, root: Path) -> DataFrame:
    return events(spark, root).where("to_date(ts) >= 'yesterday'").groupBy("key").count()


def since_variable(spark: SparkSession, root: Path) -> DataFrame:
    spark.sql("DECLARE OR REPLACE VARIABLE cutoff DATE DEFAULT current_date()")
    return events(spark, root).where("to_date(ts) >= cutoff").groupBy("key").count()


def named_by_table(spark: SparkSession, root: Path) -> DataFrame:
    names = spark.sql("SELECT * FROM VALUES (1L, 'one'), (2L, 'two') AS names(key, name)")
    return events(spark, root).join(names, "key").groupBy("name").count()


def inferred(spark: SparkSession, root: Path) -> DataFrame:
    (root / "events" / "left").mkdir(parents=True, exist_ok=True)
    feeds.write_file(root / "events" / "left", "left", 0, 10)
    spark.conf.set(f"{STREAMING}schemaInference", "true")
    return spark.readStream.json(str(root / "events" / "left")).groupBy("key").count()


def places(spark: SparkSession, root: Path) -> DataFrame:
    return events(spark, root).select("key", "_metadata").distinct()


def limited(spark: SparkSession, root: Path) -> DataFrame:
    return events(spark, root).limit(5)


def top(spark: SparkSession, root: Path) -> DataFrame:
    return totals()(spark, root).orderBy("key").limit(5)


def limited_twice(spark: SparkSession, root: Path) -> DataFrame:
    # Which rows a limit takes depends on their order.
    return events(spark, root).dropDuplicates(["seq"]).limit(30).limit(25).select(f.lit("row"))


CELLS = """
    SELECT window(ts, '10 seconds') AS cell, key, count(*) AS n FROM events GROUP BY window(ts, '10 seconds'), key"""
PER_GROUP = "SELECT window(window_time(cell), '20 seconds') AS w, sum(n) AS n FROM cells GROUP BY 1"


def sql(text: str, *views: tuple[str, str]) -> Frame:
    def build(spark: SparkSession, root: Path) -> DataFrame:
        events(spark, root).withWatermark("ts", "10 seconds").createOrReplaceTempView("events")
        for name, query in views:
            spark.sql(query).createOrReplaceTempView(name)
        return spark.sql(text)

    return build


common_table = sql(f"WITH cells AS ({CELLS}) {PER_GROUP}")
common_table_twice = sql(
    f"WITH cells AS ({CELLS}), more AS (SELECT cell, n FROM cells WHERE n > 1) "
    f"SELECT cell AS w, n FROM more UNION ALL {PER_GROUP}"
)
view = sql(PER_GROUP, ("cells", CELLS))
distinct_below = sql(
    "SELECT window(ts, '10 seconds') AS cell, key, max(amount) AS most "
    "FROM (SELECT DISTINCT ts, key, amount FROM events) GROUP BY window(ts, '10 seconds'), key"
)
distinct_above = sql("SELECT DISTINCT cell, key, n FROM cells", ("cells", CELLS))
fixed_subquery = sql("SELECT key, count(*) FROM events WHERE key IN (SELECT id FROM range(5)) GROUP BY key")


def subquery(spark: SparkSession, root: Path) -> DataFrame:
    spark.range(5).toDF("key").write.parquet(str(root / "keys"))
    spark.read.parquet(str(root / "keys")).createOrReplaceTempView("keys")
    return sql("SELECT key, count(*) FROM events WHERE key IN (SELECT key FROM keys) GROUP BY key")(spark, root)


def difference(spark: SparkSession, root: Path) -> DataFrame:
    return events(spark, root).select("key").subtract(spark.range(5).toDF("key"))


def scalar_pandas(spark: SparkSession, root: Path) -> DataFrame:
    @f.pandas_udf("long")
    def demean(amounts: pd.Series) -> pd.Series:
        return amounts - int(amounts.mean())

    return events(spark, root).groupBy("key").agg(f.sum(demean("amount")))


def plain_udf(spark: SparkSession, root: Path) -> DataFrame:
    double = f.udf(lambda amount: 2 * amount, "long")
    return events(spark, root).groupBy("key").agg(f.sum(double("amount")))


MERGED = "Spark may make one operator of"
CASES: dict[str, tuple[Frame, str, dict[str, str], str, list[bool], str]] = {
    # name: frame, output mode, settings, mode, deferred per operator, words of the reason
    "aggregation": (totals(), "update", {}, "deferred", [True], "a replay gives the same state"),
    "sessions": (on("sessions"), "append", {}, "deferred", [True], "same state"),
    "sessions merged in each task": (
        on("sessions"),
        "append",
        {f"{STREAMING}sessionWindow.merge.sessions.in.local.partition": "true"},
        "eager",
        [False],
        "sessions are merged in each task",
    ),
    "deduplication": (on("distinct"), "append", {}, "deferred", [True], "same state"),
    "deduplication within": (on("distinct-within"), "append", {}, "eager", [False], "the first of its rows"),
    "count windows": (on("native-count-windows"), "append", {}, "deferred", [True], "same state"),
    "count windows without an order": (unordered_windows, "append", {}, "eager", [False], "without order_by"),
    "count windows that read a clock": (
        windows_of("max(current_timestamp()) AS seen"),
        "append",
        {},
        "eager",
        [False],
        "not deterministic: current_timestamp",
    ),
    "count windows of a double": (
        windows_of("count(*) AS n", key="share"),
        "append",
        {},
        "eager",
        [False],
        "its key share is a floating-point number",
    ),
    "since yesterday": (since_yesterday, "update", {}, "eager", [False], "is read off a clock"),
    "aes_encrypt": (
        with_column("hex(aes_encrypt(string(amount), '0000111122223333'))"),
        "update",
        {},
        "eager",
        [False],
        "not deterministic: aes_encrypt",
    ),
    "block of a file": (
        with_column("_metadata.file_block_start"),
        "update",
        {},
        "eager",
        [False],
        "depends on how files are split",
    ),
    "origin of a row": (
        with_column("struct(seq, _metadata)"),
        "update",
        {},
        "eager",
        [False],
        "depends on how files are split",
    ),
    "origins of rows": (places, "append", {}, "eager", [False], "depends on how files are split"),
    "a variable": (since_variable, "update", {}, "eager", [False], "is a variable of the session"),
    "a table of the program": (named_by_table, "update", {}, "eager", [False], "(LocalRelation)"),
    "inferred columns": (inferred, "update", {}, "eager", [False], "give the source a schema"),
    "a function": (on("count-windows"), "append", {}, "eager", [False], "functions.orderFree=on"),
    "a function, vouched for": (
        on("count-windows"),
        "append",
        {"functions.orderFree": "on"},
        "deferred",
        [True],
        "same state",
    ),
    "join": (on("join"), "append", {}, "eager", [False], "stream-stream join"),
    "chain": (on("chain"), "append", {}, "mixed", [False, True], "fed by another stateful operator"),
    "limit": (limited, "append", {}, "eager", [False], "limit"),
    "top": (top, "complete", {}, "deferred", [True], "same state"),
    "common table": (common_table, "append", {}, "mixed", [False, True], "fed by another stateful operator"),
    "common table, twice": (common_table_twice, "append", {}, "mixed", [True, False, True], "same state"),
    "view": (view, "append", {}, "mixed", [False, True], "fed by another stateful operator"),
    "subquery": (subquery, "update", {}, "eager", [False], "it reads data beside its streams"),
    "fixed subquery": (fixed_subquery, "update", {}, "deferred", [True], "same state"),
    "difference": (difference, "append", {}, "eager", [False], "it is not known to give the same state again"),
    "uniform": (with_column("uniform(0, 10)"), "update", {}, "eager", [False], "not deterministic"),
    "current_user": (with_column("current_user()"), "update", {}, "eager", [False], "not deterministic: current_user"),
    "input_file_name": (with_column("input_file_name()"), "update", {}, "eager", [False], "not deterministic"),
    "scalar pandas": (scalar_pandas, "update", {}, "eager", [False], "'demean' is a function of many rows at once"),
    "plain udf": (plain_udf, "update", {}, "deferred", [True], "same state"),
    "rand": (with_column("rand()"), "update", {}, "eager", [False], "not deterministic: rand"),
    "uuid": (with_column("uuid()"), "update", {}, "eager", [False], "not deterministic: uuid"),
    "current_timestamp": (
        with_column("current_timestamp()"),
        "update",
        {},
        "eager",
        [False],
        "not deterministic: current_timestamp",
    ),
    "current_date": (with_column("current_date()"), "update", {}, "eager", [False], "not deterministic: current_date"),
    "now": (with_column("now()"), "update", {}, "eager", [False], "not deterministic"),
    "localtimestamp": (
        with_column("localtimestamp()"),
        "update",
        {},
        "eager",
        [False],
        "not deterministic: localtimestamp",
    ),
    "unix_timestamp": (with_column("unix_timestamp()"), "update", {}, "eager", [False], "not deterministic"),
    "first": (totals("first(seq)"), "update", {}, "eager", [False], "first is not known to be independent"),
    "last": (totals("last(seq)"), "update", {}, "eager", [False], "last is not known to be independent"),
    "any_value": (totals("any_value(seq)"), "update", {}, "eager", [False], "any_value: first is not known"),
    "collect_list": (totals("collect_list(seq)"), "update", {}, "eager", [False], "collect_list is not known"),
    "nondeterministic udf": (nondeterministic_udf, "update", {}, "eager", [False], "not deterministic"),
    "processing time": (processing_time, "update", {}, "eager", [False], "processing-time timeouts"),
    "unknown source": (counted, "update", {}, "eager", [False], "'it-counter' is not known to be replayable"),
    "vouched for": (counted, "update", {"sources.replayable": "kafka, it-counter"}, "deferred", [True], "same state"),
    "a time of day": (with_column("CAST('08:00' AS TIMESTAMP)"), "update", {}, "eager", [False], "is read off a clock"),
    "ignoreCorruptFiles": (passed_over, "update", {}, "eager", [False], "passes over what cannot be read"),
    "ignoreMissingFiles": (
        totals(),
        "update",
        {"spark.sql.files.ignoreMissingFiles": "true"},
        "eager",
        [False],
        "spark.sql.files.ignoreMissingFiles",
    ),
    "distinct unions": (united_twice, "append", {}, "eager", [False, False], "Spark may make one operator of it"),
    "distinct below": (distinct_below, "append", {}, "eager", [False, False], MERGED),
    "distinct above": (distinct_above, "append", {}, "eager", [False, False], MERGED),
    "limits": (limited_twice, "append", {}, "eager", [False, False, False], MERGED),
    "cleanSource": (cleaned, "update", {}, "eager", [False], "cleanSource"),
    "one-row plans": (
        totals(),
        "update",
        {f"{STREAMING}optimizeOneRowPlan.enabled": "true"},
        "eager",
        [False],
        "leave a stateful operator out",
    ),
    "mode=eager": (totals(), "update", {"mode": "eager"}, "eager", [False], "cec.mode=eager"),
    "mode=deferred": (totals(), "update", {"mode": "deferred"}, "deferred", [True], "same state"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_decision_and_its_reason(name: str, spark: SparkSession, tmp_path: Path) -> None:
    frame, mode, settings, wanted, deferred, reason = CASES[name]
    decided = decide(spark, tmp_path, frame, mode, settings)
    assert decided["mode"] == wanted, decided
    operators = decided["operators"]
    assert isinstance(operators, list)
    assert [each["deferred"] for each in operators] == deferred, decided
    assert [each["operator"] for each in operators] == list(range(len(deferred)))
    assert reason in str(decided["reason"]), decided


@pytest.mark.parametrize("name", ["distinct below", "distinct above", "limits"])
def test_a_query_of_which_spark_makes_one_operator_runs_and_starts_again(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    frame, mode, *_ = CASES[name]
    found: dict[str, dict[int, list[tuple[object, ...]]]] = {"cec": {}, "undisturbed": {}}
    for provider, batches in found.items():
        root = tmp_path / provider
        (root / "events" / "left").mkdir(parents=True)
        for numbers in (range(2), range(2, 4)):
            own = local.session(spark, local.OPENINGS_ONLY)
            if provider == "undisturbed":
                own.conf.set(PROVIDER_KEY, SPARKS_OWN)
            for number in numbers:
                feeds.write_file(root / "events" / "left", "left", number, 20)
            writer = frame(own, root).writeStream.outputMode(mode).foreachBatch(local.in_memory(batches))
            streaming = writer.option("checkpointLocation", str(root / "checkpoint")).start()
            try:
                streaming.processAllAvailable()
            finally:
                streaming.stop()
    assert found["cec"] == found["undisturbed"]
    assert any(found["cec"].values())


def test_speculation_makes_every_operator_eager(spark: SparkSession, tmp_path: Path) -> None:
    conf = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    conf.set(SPECULATION, "true")
    try:
        decided = decide(spark, tmp_path, totals(), "update", {})
    finally:
        conf.remove(SPECULATION)
    assert decided["mode"] == "eager"
    assert "speculative execution is on" in str(decided["reason"])


def test_a_sink_that_spark_records_the_class_of_is_not_wrapped(spark: SparkSession, tmp_path: Path) -> None:
    """The commit log has the sink's class, and would have ours."""
    own = local.session(spark, {}, **{f"{STREAMING}queryEvolution.enableSinkEvolution": "true"})
    checkpoint = tmp_path / "checkpoint"
    (tmp_path / "events" / "left").mkdir(parents=True)
    feeds.write_file(tmp_path / "events" / "left", "left", 0, 10)
    writer = totals()(own, tmp_path).writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    writer._jwrite.name("results")  # Python has no name for it
    streaming = writer.format("noop").start()
    try:
        local.wait_for(streaming, 0)
    finally:
        streaming.stop()
    assert "sink evolution" in str(local.query_json(checkpoint)["reason"])
    recorded = (checkpoint / "commits" / "0").read_text()
    assert "results" in recorded
    assert ".cec." not in recorded


@pytest.mark.parametrize("name", ["join", "chain", "rand", "unknown source", "cleanSource", "processing time"])
def test_deferral_is_refused_where_it_is_unsafe(name: str, spark: SparkSession, tmp_path: Path) -> None:
    frame, mode, _, _, _, reason = CASES[name]
    with pytest.raises(
        Exception, match=rf"(?s)cec\.mode=deferred, but not all commits can be deferred.*{reason}.*mode=auto"
    ) as refused:
        decide(spark, tmp_path, frame, mode, {"mode": "deferred"})
    assert not isinstance(refused.value, StreamingQueryException), "refused at start(), not when the query runs"
    assert not local.files_in(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("mode", "plan", "warning"),
    [
        pytest.param("auto", "join", r"operator 0 \(stream-stream join\), which costs little, since", id="a join"),
        pytest.param("auto", "window-append", None, id="deferred"),
        pytest.param("eager", "join", None, id="as was asked for"),
    ],
)
def test_a_start_warns_of_what_is_eager_in_one_line(
    mode: str, plan: str, warning: str | None, spark: SparkSession, spark_log: Path, tmp_path: Path
) -> None:
    before = spark_log.stat().st_size
    decide(spark, tmp_path, on(plan), PLANS[plan].mode, {"mode": mode})
    said = spark_log.read_bytes()[before:].decode()
    lines = [line for line in said.splitlines() if "Spark CEC: eager, so that" in line]
    assert len(lines) == (warning is not None)
    assert all(re.search(rf" WARN .*every commit writes all that its batch touched: {warning}", each) for each in lines)
