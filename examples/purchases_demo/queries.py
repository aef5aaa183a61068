"""The Spark side: the session, the two streaming queries, and reading back what they wrote."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

import spark_cec
from purchases_demo import count_windows
from purchases_demo.count_windows import close_windows
from purchases_demo.events import Stream
from purchases_demo.feeder import publish
from purchases_demo.layout import (
    BY_MINUTE,
    BY_TEN,
    COUNT_WINDOW,
    QUERIES,
    WATERMARK_DELAY_MS,
    WINDOW_MS,
    Layout,
    QuerySpec,
)

_EVENT_SCHEMA = "item_id LONG, item_price LONG, item_time TIMESTAMP, seq LONG"
_FED_POLL_S = 1
_output_lock = threading.Lock()

# Python workers do not have this directory on their path.
cloudpickle.register_pickle_by_value(count_windows)  # type: ignore[no-untyped-call]


def open_session(layout: Layout, *, ui: bool = False) -> SparkSession:
    """A local session on two cores with the CEC provider; its temporary files go under `layout.scratch`.

    `ui`: with Spark's user interface, for this machine alone.
    """
    if ui:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("purchases")
        .config("spark.ui.enabled", str(ui).lower())
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        # `close_windows` sorts its rows: whatever their order, it leaves the same state.
        .config("spark.sql.streaming.stateStore.cec.functions.orderFree", "on")
        .config("spark.local.dir", str(layout.scratch))
        .config("spark.sql.warehouse.dir", str(layout.scratch / "warehouse"))
        # Lives are short here: the quick compiler alone has a driver up sooner on two cores.
        .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={layout.scratch}" -XX:TieredStopAtLevel=1')
    )
    spark: SparkSession = spark_cec.configure(builder).getOrCreate()
    return spark


def run_queries(layout: Layout, bounds: Mapping[str, str] | None = None) -> None:
    """Run both queries until the feeder has ended and everything it wrote is processed.

    `bounds` are `cec.*` settings, keys without their prefix; without any each query has those of its `QuerySpec`.

    Prints a JSON line per micro-batch (`query`, `batch`, `files` consumed so far, `rows`) and `{"query", "done"}` when
    a query has nothing left to do. Raises `StreamingQueryException` if a query fails.
    """
    spark = open_session(layout)
    spark.streams.addListener(_ProgressPrinter())
    running = [
        _start(spark, layout, spec, transform, _bounds_of(spec) if bounds is None else bounds)
        for spec, transform in ((BY_MINUTE, averages_by_minute), (BY_TEN, averages_by_ten))
    ]
    while not layout.fed.exists():
        spark.streams.awaitAnyTermination(_FED_POLL_S)
    with ThreadPoolExecutor(len(running)) as pool:
        list(pool.map(_drain, running))
    for query in running:
        query.stop()
    spark.stop()


def stay(layout: Layout, stream: Stream, first: int, interval_s: float) -> None:
    """Run both queries on with Spark's user interface, and publish file after file from `first` on, for ever.

    Prints `{"query", "url"}` first. Raises `StreamingQueryException` if a query fails.
    """
    spark = open_session(layout, ui=True)
    spark.streams.addListener(_ProgressPrinter())
    for spec, transform in ((BY_MINUTE, averages_by_minute), (BY_TEN, averages_by_ten)):
        _start(spark, layout, spec, transform, _bounds_of(spec))
    _emit({"query": "", "url": f"{spark.sparkContext.uiWebUrl}/cec/"})
    for number in itertools.count(first):
        publish(layout, stream, number)
        spark.streams.awaitAnyTermination(interval_s)


def _bounds_of(spec: QuerySpec) -> Mapping[str, str]:
    """Without `effort`: stores as small as these would be clean at every commit, and a crash had nothing to replay."""
    return {"Q": spec.q, "U": str(spec.u), "effort": "0"}


def averages_by_minute(events: DataFrame) -> DataFrame:
    """The average price per item over one-minute event-time windows."""
    window = f.window("item_time", f"{WINDOW_MS // 1000} seconds")
    return (
        events.withWatermark("item_time", f"{WATERMARK_DELAY_MS // 1000} seconds")
        .groupBy(window, "item_id")
        .agg(f.count("*").alias("purchases"), f.sum("item_price").alias("sum_cents"))
        .select(
            f.col("window.start").alias("window_start"),
            "item_id",
            "purchases",
            "sum_cents",
            (f.col("sum_cents") / f.col("purchases")).alias("average_price"),
        )
    )


def averages_by_ten(events: DataFrame) -> DataFrame:
    """The average price over every ten purchases of an item, in the order of `seq`."""

    def close(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        return close_windows(key[0], chunks, state, COUNT_WINDOW)

    return (
        events.select("item_id", "item_price", "seq")
        .groupBy("item_id")
        .applyInPandasWithState(close, count_windows.OUTPUT_SCHEMA, count_windows.STATE_SCHEMA, "append", "NoTimeout")
    )


def read_rows(layout: Layout) -> None:
    """Read each query's output from its checkpoint with the `cec` reader and write it to `layout.rows`."""
    spark = open_session(layout)
    for spec in QUERIES:
        rows = spark.read.format("cec").load(str(layout.checkpoint(spec.name)))
        if spec is BY_MINUTE:
            rows = rows.withColumn("window_start", f.unix_millis("window_start"))
        pq.write_table(rows.toArrow(), layout.rows(spec.name))
    spark.stop()


def _start(
    spark: SparkSession,
    layout: Layout,
    spec: QuerySpec,
    transform: Callable[[DataFrame], DataFrame],
    bounds: Mapping[str, str],
) -> StreamingQuery:
    for key, value in bounds.items():
        spark.conf.set(f"spark.sql.streaming.stateStore.cec.{key}", value)
    events = spark.readStream.schema(_EVENT_SCHEMA).option("maxFilesPerTrigger", 1).json(str(layout.events))
    return (
        transform(events)
        .writeStream.format("cec")
        .queryName(spec.name)
        .outputMode("append")
        .option("checkpointLocation", str(layout.checkpoint(spec.name)))
        .start()
    )


def _drain(query: StreamingQuery) -> None:
    query.processAllAvailable()
    _emit({"query": query.name, "done": True})


class _ProgressPrinter(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        consumed = int(json.loads(progress.sources[0].endOffset)["logOffset"]) + 1
        _emit({"query": progress.name, "batch": progress.batchId, "files": consumed, "rows": progress.numInputRows})

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802


def _emit(event: dict[str, object]) -> None:
    with _output_lock:
        print(json.dumps(event), flush=True)
