"""A flow by buckets gives out each window in the batch that has its last bucket, and loses none for that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from cec_it.feed import NOON, Feed, rows_of
from cec_it.local import eventually
from cec_it.running import flow_of, running
from spark_cec.admin.find_log import find_log
from spark_cec.admin.outputs import OutputBatch, read_outputs
from spark_cec.log.manifest import read_bucket_end
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline

SCHEMA = "time TIMESTAMP, page STRING, price DOUBLE"
LAST_S = 54


def windows(rows: DataFrame) -> DataFrame:
    """Counts, and sums of doubles."""
    grouped = rows.groupBy(f.window("time", "10 seconds").alias("w"), "page")
    found = grouped.agg(f.count("*").alias("n"), f.sum("price").alias("price"))
    return found.select(f.col("w.end").alias("time"), "page", "n", "price")


def sessions(rows: DataFrame) -> DataFrame:
    """Sessions, which a row of the same batch may make longer."""
    found = rows.groupBy(f.session_window("time", "3500 milliseconds").alias("w"), "page").count()
    return found.select(f.col("w.end").alias("time"), "page", f.col("count").alias("n"))


def windows_of_windows(rows: DataFrame) -> DataFrame:
    """Two operators in a row: the second one gets its rows when the first one closes windows."""
    short = rows.groupBy(f.window("time", "10 seconds").alias("w"), "page").count()
    long = short.groupBy(f.window(f.window_time("w"), "20 seconds").alias("v"), "page").agg(f.sum("count").alias("n"))
    return long.select(f.col("v.end").alias("time"), "page", "n")


def windows_of_first_rows(rows: DataFrame) -> DataFrame:
    """Each row counts once."""
    return windows(rows.dropDuplicates(["time", "page"]))


def timeouts(rows: DataFrame) -> DataFrame:
    """A function that wants to be called at the time of its latest row."""
    schema = "time TIMESTAMP, page STRING, n LONG"
    of = rows.select("time", "page").groupBy("page")
    return of.applyInPandasWithState(count_until, schema, "n LONG, ms LONG", "append", "EventTimeTimeout")


def count_until(key: tuple[str], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Counts rows, and gives the number out at the timeout."""
    n, latest_ms = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"time": [pd.Timestamp(latest_ms, unit="ms", tz="UTC")], "page": [key[0]], "n": [n]})
        return
    for chunk in chunks:
        n, latest_ms = n + len(chunk), max(latest_ms, int(chunk["time"].max().timestamp() * 1000))
    state.update((n, latest_ms))
    state.setTimeoutTimestamp(latest_ms)


CLOSE: dict[str, Callable[[DataFrame], DataFrame]] = {
    each.__name__: each for each in (windows, sessions, windows_of_windows, windows_of_first_rows)
}
ALL = {**CLOSE, "timeouts": timeouts}


def shop(root: Path) -> Pipeline:
    """web and app -> a flow for each of `ALL`."""
    made = Pipeline("ends", f"{root}/home")

    def read(name: str, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(f"{root}/{name}")

    @made.flow(kept=True)
    def web(spark: SparkSession) -> DataFrame:
        return read("web", spark)

    @made.flow(kept=True)
    def app(spark: SparkSession) -> DataFrame:
        return read("app", spark)

    for name, function in ALL.items():

        def both(web: DataFrame, app: DataFrame, function: Callable[[DataFrame], DataFrame] = function) -> DataFrame:
            return function(web.unionByName(app))

        both.__name__ = name
        how: dict[str, Any] = {"kept": True, "partitions": 2, "bucket": "1s"}
        made.flow(**how, watermarks={"web": ("time", "2 seconds"), "app": ("time", "2 seconds")})(both)

    return made


def batches(root: Path, flow: str) -> tuple[OutputBatch, ...]:
    """All batches of a flow."""
    return read_outputs(find_log(f"{root}/home/flows/{flow}"), 1000).batches


def has_read(run: RunningPipeline, root: Path, until_s: int) -> bool | None:
    """Whether all flows have a batch that ends there."""
    for name in ALL:
        assert (flow := flow_of(run, name)).error is None, flow.error
        if not any((root / "home/flows" / name / "cec/log/manifests").glob("*.json")):
            return None
        if ends_of(batches(root, name)[-1])[1] < (NOON.timestamp() + until_s) * 1000:
            return None
    return True


def ends_of(batch: OutputBatch) -> tuple[int, int]:
    """Where the buckets of a batch begin and end, in ms since 1970."""
    begins = [read_bucket_end(each.start) or 0 if each.start else 0 for each in batch.inputs]
    return min(begins), min(read_bucket_end(each.end or "") or 0 for each in batch.inputs)


def test_duplicates_within_a_delay_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would forget a row with its bucket, and its duplicate in the next one would pass."""
    made = Pipeline("twice", f"{tmp_path}/home")
    (tmp_path / "web").mkdir()

    @made.flow
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).json(f"{tmp_path}/web")

    @made.flow(kept=True, bucket="1s", watermarks={"web": ("time", "5 seconds")})
    def once(web: DataFrame) -> DataFrame:
        return web.dropDuplicatesWithinWatermark(["page"])

    with pytest.raises(FlowError, match="flow once reads by buckets, and has dropDuplicatesWithinWatermark"):
        start_pipeline(made, spark)


def test_a_window_comes_in_the_batch_of_its_last_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """In three runs; the first batch of each has windows to close. A function over a state has its own time, as before.
    """
    feed = Feed(tmp_path)
    for second in range(0, LAST_S, 18):
        with running(shop(tmp_path), spark) as run:
            for begin in range(second, second + 18, 6):
                for name, price in (("web", 0.5), ("app", 0.25)):
                    rows = [(begin + step, page, price) for step in (0, 0.3, 4) for page in "ab"[: 1 + begin % 4 // 2]]
                    feed.put(name, *rows, (begin + 5.9, "z", 0.75))
                eventually(partial(has_read, run, tmp_path, begin + 3), f"all flows have read up to {begin + 3} s")
    for name in CLOSE:
        closing = [each for each in batches(tmp_path, name) if each.manifest.rows]
        assert len(closing) >= 2, f"{name} has no windows"
        for each in closing:
            begin_ms, end_ms = ends_of(each)
            times = each.manifest.times["time"]
            assert times.first_ms is not None and times.last_ms is not None
            assert begin_ms < times.first_ms and times.last_ms <= end_ms, f"{name}, batch {each.manifest.batch}"
    member = {"name": "web", "path": f"{tmp_path}/home/flows/web", "time": "time", "delay_ms": 0}
    union = json.dumps({"bucket_ms": 1000, "members": [member], "notes": False})
    read = spark.readStream.format("cec").options(union=union, own="0").schema(SCHEMA).load(member["path"])
    writer = read.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/noop")
    with pytest.raises(StreamingQueryException, match="cannot run with the trigger availableNow"):
        writer.trigger(availableNow=True).start().awaitTermination()
    until = (NOON + timedelta(seconds=LAST_S - 3)).astimezone().replace(tzinfo=None)
    fed = {name: spark.read.schema(SCHEMA).json(f"{tmp_path}/{name}") for name in ("web", "app")}
    for name, function in CLOSE.items():
        right = function(fed["web"].unionByName(fed["app"]))
        # Spark would push a filter below the sessions, where it makes them shorter.
        due = [row for row in right.collect() if row.time <= until]
        assert Counter(rows_of(spark, tmp_path, name)) == Counter(due), name
