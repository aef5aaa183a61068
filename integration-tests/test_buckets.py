"""Flows that read by buckets: nothing comes before all inputs have passed a bucket, and late rows are kept aside."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.feed import NOON, WATERMARKS, Feed, Windows, rows_of, windows
from cec_it.local import eventually
from cec_it.running import flow_of, running
from spark_cec.admin.find_log import find_log
from spark_cec.admin.outputs import read_outputs
from spark_cec.log.manifest import read_bucket_end
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Patience


def per_page(root: Path, column: str = "time") -> Pipeline:
    """web and app -> counts and sums by page and window of 10 seconds, by buckets of a second."""
    made = Pipeline("shop", f"{root}/home")
    schema = "time TIMESTAMP, page STRING, price DOUBLE"

    @made.flow(kept=True)
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(schema).json(f"{root}/web")

    @made.flow(kept=True)
    def app(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(schema).json(f"{root}/app")

    @made.flow(kept=True, partitions=2, bucket="1s", watermarks={**WATERMARKS, "app": (column, "2 seconds")})
    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        grouped = web.unionByName(app).groupBy(f.window("time", "10 seconds").alias("w"), "page")
        found = grouped.agg(f.count("*").alias("n"), f.sum("price").alias("price"))
        return found.select(f.col("w.start").alias("time"), "page", "n", "price")

    @made.sink
    def board(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.format("noop")

    return made


def becomes(spark: SparkSession, run: RunningPipeline, root: Path, expected: Windows) -> None:
    """Waits for these windows; there may be no others."""

    def look() -> bool | None:
        assert (flow := flow_of(run, "totals")).error is None, flow.error
        found = windows(spark, root)
        assert found <= expected, "a row that is wrong, or comes twice"
        return found == expected or None

    eventually(look, f"the windows {sorted(expected)}")


def test_windows_wait_for_the_input_that_lags(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    first: Windows = Counter([(0, "a", 3, 1.75), (0, "b", 1, 8.0)])
    second = first + Counter([(10, "a", 2, 0.75)])
    with running(per_page(tmp_path), spark) as run:
        feed.put("web", (1, "a", 0.5), (9, "a", 0.25), (15, "a", 0.5))
        feed.put("web", (40, "z", 1.0))
        held = eventually(lambda: flow if (flow := flow_of(run, "totals")).waits_for else None, "it waits")
        assert held.waits_for == ("app",)
        assert not windows(spark, tmp_path), "nobody knows what app will bring"
        feed.put("app", (2, "a", 1.0), (3, "b", 8.0), (12.1, "z", 0.5))
        becomes(spark, run, tmp_path, first)  # without a later row: the buckets themselves have passed the end
        # The first row comes too late, and the second just in time.
        feed.put("app", (9.5, "a", 64.0), (12.5, "a", 0.25), (22.5, "z", 1.0))
        becomes(spark, run, tmp_path, second + Counter([(10, "z", 1, 0.5)]))
    late = spark.read.format("cec").option("view", "late").option("reader", "totals").load(f"{tmp_path}/home/flows/app")
    assert [(row.page, row.price) for row in late.collect()] == [("a", 64.0)]
    again = second + Counter([(10, "z", 1, 0.5), (20, "z", 1, 1.0), (30, "z", 2, 2.0), (40, "z", 1, 1.0)])
    for restart in range(2):
        with running(per_page(tmp_path), spark) as run:
            feed.put("app", (31 + restart, "z", 1.0))
            if restart:
                for name in ("web", "app"):
                    feed.put(name, (60, "last", 1.0))
                becomes(spark, run, tmp_path, again)
    ends = [each.inputs for each in read_outputs(find_log(f"{tmp_path}/home/flows/totals"), 100).batches]
    assert all(len({read_bucket_end(read.end or "") for read in inputs}) == 1 for inputs in ends), "of all the same"


def test_windows_of_windows_need_no_later_row(spark: SparkSession, tmp_path: Path) -> None:
    """A flow over windows learns from the boundary of its input that no other window will come."""
    feed, made = Feed(tmp_path), per_page(tmp_path)

    @made.flow(kept=True, partitions=2, bucket="1s", watermarks={"short": ("time", "0 seconds")})
    def long(short: DataFrame) -> DataFrame:
        found = short.groupBy(f.window("time", "30 seconds").alias("w"), "page").agg(f.sum("n").alias("n"))
        return found.select(f.window_time("w").alias("time"), "page", "n")

    @made.flow(partitions=2, bucket="1s", watermarks=WATERMARKS)
    def short(web: DataFrame, app: DataFrame) -> DataFrame:
        found = web.unionByName(app).groupBy(f.window("time", "10 seconds").alias("w"), "page").count()
        return found.select(f.window_time("w").alias("time"), "page", f.col("count").alias("n"))

    @made.sink
    def end(long: DataFrame) -> DataStreamWriter:
        return long.writeStream.format("noop")

    def look() -> set[tuple[str, int]] | None:
        assert (flow := flow_of(run, "long")).error is None, flow.error
        return {(row.page, row.n) for row in rows_of(spark, tmp_path, "long")} or None

    with running(made, spark) as run:
        feed.put("web", (1, "a", 1.0), (11, "a", 1.0), (12, "b", 1.0), (32.5, "z", 1.0))
        feed.put("app", (2, "a", 1.0), (29.9, "b", 1.0), (32.1, "z", 1.0))
        assert eventually(look, "the window of 30 seconds") == {("a", 3), ("b", 2)}


STATEFUL = ("distinct", "pairs", "twice")


def edges(root: Path) -> Pipeline:
    """web and app -> the flows of `STATEFUL`, and one that leaves an input out."""
    made = Pipeline("edges", f"{root}/home")
    schema = "time TIMESTAMP, page STRING, price DOUBLE"
    at_once = {"web": ("time", "0 seconds"), "app": ("time", "0 seconds")}

    @made.flow(kept=True)
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(schema).json(f"{root}/web")

    @made.flow(kept=True)
    def app(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(schema).json(f"{root}/app")

    @made.flow(kept=True, partitions=1, bucket="1s", watermarks=at_once)
    def distinct(web: DataFrame, app: DataFrame) -> DataFrame:
        return web.unionByName(app).dropDuplicates(["time", "page"])

    @made.flow(kept=True, partitions=1, bucket="1s", watermarks=at_once)
    def pairs(web: DataFrame, app: DataFrame) -> DataFrame:
        near = "a.page = b.page AND b.time BETWEEN a.time - INTERVAL 500 MILLISECONDS AND a.time"
        return web.alias("a").join(app.alias("b"), f.expr(near)).select("a.time", "a.page")

    @made.flow(kept=True, partitions=1, bucket="1s", watermarks={"web": ("time", "0 seconds")})
    def twice(web: DataFrame) -> DataFrame:
        near = "a.page = b.page AND a.time BETWEEN b.time AND b.time + INTERVAL 500 MILLISECONDS"
        return web.alias("a").join(web.alias("b"), f.expr(near)).select("a.time", "a.page")

    @made.flow(kept=True, bucket="1s", watermarks=at_once)
    def half(web: DataFrame, app: DataFrame) -> DataFrame:
        return web

    return made


def test_no_row_at_the_begin_of_a_bucket_is_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """Most operators drop a row at the watermark itself. A batch without rows lies between two buckets here."""
    feed, last, noon_s = Feed(tmp_path), 5, int(NOON.timestamp())

    def reached(run: RunningPipeline, second: int) -> bool | None:
        """Whether the watermarks have come to the begin of the bucket, in a batch without rows."""
        least_ms = (noon_s + second) * 1000 - 1
        return all((flow_of(run, name).complete_to_ms or 0) >= least_ms for name in STATEFUL) or None

    def have_all() -> bool | None:
        for name in (*STATEFUL, "half"):
            rows = [row for row in rows_of(spark, tmp_path, name) if row.page == "a"]
            if sorted(int(row.time.timestamp()) - noon_s for row in rows) != list(range(last)):
                return None
        return True

    with running(edges(tmp_path), spark) as run:
        for second in range(last):
            for name in ("web", "app"):
                feed.put(name, (second, "a", 1.0))
            eventually(partial(reached, run, second), f"the watermark is at second {second}")
        for name in ("web", "app"):
            feed.put(name, (100, "z", 1.0))
        eventually(have_all, "all rows of all flows")


def line(root: Path, bucket: str | None) -> Pipeline:
    """web -> a flow, and a sink with state of its own, both by buckets or not."""
    made = Pipeline("line", f"{root}/home")
    watermarks = {"web": ("time", "2 seconds")}

    @made.flow(kept=True)
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("time TIMESTAMP, page STRING, price DOUBLE").json(f"{root}/web")

    @made.flow(kept=True, bucket=bucket, watermarks=watermarks)
    def kept(web: DataFrame) -> DataFrame:
        return web

    @made.sink(partitions=1, bucket=bucket, watermarks=watermarks)
    def board(web: DataFrame) -> DataStreamWriter:
        found = web.groupBy(f.window("time", "10 seconds").alias("w"), "page").agg(f.sum("price").alias("price"))
        return found.select("page", "price").writeStream.format("parquet").option("path", f"{root}/board")

    return made


def test_a_sink_reads_by_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Over two restarts. Its windows close by the buckets alone."""
    feed = Feed(tmp_path)
    for restart in range(3):
        begin, expected = restart * 20, [("a", 0.5 * (each + 1)) for each in range(restart + 1)]
        with running(line(tmp_path, "1s"), spark) as run:
            feed.put("web", (begin + 1, "a", 0.25 * (restart + 1)), (begin + 9, "a", 0.25 * (restart + 1)))
            feed.put("web", (begin + 12.5, "z", 1.0))

            def look(run: RunningPipeline = run, expected: list[tuple[str, float]] = expected) -> bool | None:
                assert (flow := flow_of(run, "board")).error is None, flow.error
                if not (tmp_path / "board/_spark_metadata").is_dir():
                    return None
                rows = spark.read.schema("page STRING, price DOUBLE").parquet(f"{tmp_path}/board").where("page = 'a'")
                return sorted((row.page, row.price) for row in rows.collect()) == expected or None

            eventually(look, f"the windows {expected}")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("1s", None, r"has read by buckets so far, .*: read as before, or give the flow another name"),
        (None, "1s", r"has read whole batches so far, .*: read as before, or give the flow another name"),
    ],
)
def test_a_read_that_was_changed_is_refused(
    spark: SparkSession, tmp_path: Path, before: str | None, after: str | None, why: str
) -> None:
    feed = Feed(tmp_path)
    with running(line(tmp_path, before), spark) as run:
        feed.put("web", (1, "a", 1.0), (9, "a", 1.0))
        eventually(lambda: flow if (flow := flow_of(run, "kept")).batch is not None else None, "a batch")
    with running(line(tmp_path, after), spark, Patience(most=0)) as run:
        failed = eventually(
            lambda: flow if (flow := flow_of(run, "kept")).state is State.FAILED else None, "it is refused"
        )
        assert re.search(why, failed.error or "", re.DOTALL), failed.error


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("tme", r"reads app by buckets of 'tme', which is no column of app: did you mean time"),
        ("page", r"reads app by buckets of 'page', which is of type string: give a TIMESTAMP column"),
    ],
)
def test_a_column_without_times_is_named(spark: SparkSession, tmp_path: Path, column: str, why: str) -> None:
    Feed(tmp_path)
    with pytest.raises(FlowError, match=why):
        start_pipeline(per_page(tmp_path, column), spark)
