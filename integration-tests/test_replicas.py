"""A pipeline in two replicas: the same rows in each bucket, and a sink that changes from one to the other."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.board import Board, Table
from cec_it.fed_pages import BOUND, INPUTS, Shown, feeding, per_page, shown
from cec_it.local import eventually
from spark_cec.errors import Fenced
from spark_cec.pipeline import Pipeline, read_replicas
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Patience
from spark_cec.settings import PREFIX


def windows_of(table: Table) -> Shown:
    """All rows: the second at which a window ends, the page, the count and the sum."""
    return Counter(shown(row) for row in table.rows())


def state_of(run: RunningPipeline, name: str) -> State:
    return next(flow.state for flow in run.status().flows if flow.name == name)


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_sink_goes_on_in_the_other_replica(
    first: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of each window come once, from one replica or the other. A second run of a replica is refused."""
    table, other = Table(), "b" if first == "a" else "a"
    with ExitStack() as stack:
        feed = stack.enter_context(feeding(spark, tmp_path))
        runs = {}
        for name in (first, other):
            runs[name] = start_pipeline(per_page(tmp_path, table.take), spark, Patience(wait_s=0.1), replica=name)
            stack.callback(runs[name].stop)
            if name == first:
                eventually(lambda: state_of(runs[first], "board") is State.RUNNING or None, "the sink runs")
        for name in INPUTS:
            feed.put(name, (1, "a", 1.5), (12, "b", 1), (13, "b", 2), (25, "c", 1))
        right: Shown = Counter([(10, "a", 2, 3.0), (20, "b", 4, 6.0)])
        eventually(lambda: windows_of(table) == right or None, f"{right}, not {windows_of(table)}")
        assert state_of(runs[other], "board") is State.STANDBY
        for name in (first, other):
            with monkeypatch.context() as lease, pytest.raises(Fenced, match=rf"replicas/{name} is running already"):
                lease.setattr("spark_cec.agent.lease.WAIT_S", 0.0)
                start_pipeline(per_page(tmp_path, table.take), spark, replica=name)
        runs[first].stop()
        for name in INPUTS:
            feed.put(name, (26, "c", 1), (31, "d", 1), (45, "e", 1))
        right += Counter([(30, "c", 4, 4.0), (40, "d", 2, 2.0)])
        eventually(lambda: windows_of(table) == right or None, lambda: f"{right}, not {windows_of(table)}")
        runs[first] = start_pipeline(per_page(tmp_path, table.take), spark, Patience(wait_s=0.1), replica=first)
        stack.callback(runs[first].stop)
        for name in INPUTS:
            feed.put(name, (46, "e", 1), (58, "f", 1))
        right += Counter([(50, "e", 4, 4.0)])
        eventually(lambda: windows_of(table) == right or None, lambda: f"{right}, not {windows_of(table)}")
        runs[other].stop()
        for name in INPUTS:
            feed.put(name, (75, "g", 1))
        right += Counter([(60, "f", 2, 2.0)])
        eventually(lambda: windows_of(table) == right or None, lambda: f"{right}, not {windows_of(table)}")


def test_tentative_rows_by_buckets(spark: SparkSession, tmp_path: Path) -> None:
    """Without replicas. They are taken back after the stable rows, and not before."""
    board = Board(shown)
    with ExitStack() as stack:
        feed = stack.enter_context(feeding(spark, tmp_path))
        run = start_pipeline(per_page(tmp_path, board.take, tentative=True, **BOUND), spark, Patience(wait_s=0.1))
        stack.callback(run.stop)
        for name in INPUTS:
            feed.put(name, (1, "a", 1.5), (13, "b", 2))
        stable: Shown = Counter([(10, "a", 2, 3.0)])
        eventually(lambda: board.stable == stable or None, lambda: f"{stable}, not {board.stable}")
        assert not board.tentative
        feed.put("web", (14, "b", 1), (25, "c", 1), (26, "c", 1), (40, "d", 1))
        without: Shown = Counter([(20, "b", 3, 5.0), (30, "c", 2, 2.0)])
        eventually(lambda: board.shown() == without or None, lambda: f"{without}, not {board.shown()}")
        assert board.stable == stable and set(board.tentative) == {"totals/1"}
        feed.put("app", (14, "b", 8), (27, "c", 8), (41, "d", 1))
        right = stable + Counter([(20, "b", 4, 13.0), (30, "c", 3, 10.0)])
        eventually(lambda: board.stable == right or None, lambda: f"{right}, not {board.stable}")
        eventually(lambda: not board.tentative or None, lambda: f"none, not {board.tentative}")
    assert board.undone == ["totals/1"]


def test_files_of_an_epoch_that_go_under_a_batch_stop_no_stable_row(spark: SparkSession, tmp_path: Path) -> None:
    """The batch is planned, and its tasks find no log. It ends without the rows of the epoch, and no query fails."""
    board, gone = Board(shown), threading.Event()

    def take(rows: DataFrame, batch: int) -> None:
        if not gone.is_set() and place.exists() and any(place.glob("epochs/*/cec/log/segments/*")):
            shutil.rmtree(place / "epochs/1")
            gone.set()
        board.take(rows, batch)

    place = tmp_path / "home/flows/totals"
    with ExitStack() as stack:
        feed = stack.enter_context(feeding(spark, tmp_path))
        run = start_pipeline(per_page(tmp_path, take, tentative=True, **BOUND), spark, Patience(wait_s=0.1))
        stack.callback(run.stop)
        for name in INPUTS:
            feed.put(name, (1, "a", 1.5), (13, "b", 2))
        stable: Shown = Counter([(10, "a", 2, 3.0)])
        eventually(lambda: board.stable == stable or None, lambda: f"{stable}, not {board.stable}")
        feed.put("web", (14, "b", 1), (25, "c", 1), (40, "d", 1))
        eventually(lambda: gone.is_set() or None, "a batch with tentative rows")
        feed.put("app", (14, "b", 8), (27, "c", 8), (41, "d", 1))
        right = stable + Counter([(20, "b", 4, 13.0), (30, "c", 2, 9.0)])
        eventually(lambda: board.stable == right or None, lambda: f"{right}, not {board.stable}")
        eventually(lambda: not board.tentative or None, lambda: f"none, not {board.tentative}")
        sink = next(flow for flow in run.status().flows if flow.name == "board")
        assert sink.restarts == 0, sink


def test_a_sink_has_tentative_rows_of_one_replica_or_the_other(spark: SparkSession, tmp_path: Path) -> None:
    """An input is away, and the replica whose epoch is read stops. The other one's epoch takes its place, once."""
    board = Board(shown)
    with ExitStack() as stack:
        feed = stack.enter_context(feeding(spark, tmp_path))
        runs = {}
        for name in "ab":
            made = per_page(tmp_path, board.take, tentative=True, **BOUND)
            runs[name] = start_pipeline(made, spark, Patience(wait_s=0.1), replica=name)
            stack.callback(runs[name].stop)
            if name == "a":
                eventually(lambda: state_of(runs["a"], "board") is State.RUNNING or None, "the sink runs")
        for name in INPUTS:
            feed.put(name, (1, "a", 1.5), (13, "b", 2))
        stable: Shown = Counter([(10, "a", 2, 3.0)])
        eventually(lambda: board.stable == stable or None, lambda: f"{stable}, not {board.stable}")
        feed.put("web", (14, "b", 1), (25, "c", 1), (40, "d", 1))
        without: Shown = Counter([(20, "b", 3, 5.0), (30, "c", 1, 1.0)])
        eventually(lambda: board.shown() == without or None, lambda: f"{without}, not {board.shown()}")
        assert board.stable == stable
        (read,) = board.tentative
        assert read in ("totals/a/1", "totals/b/1")
        first = read.split("/")[1]
        runs[first].stop()
        feed.put("web", (55, "e", 1))
        without += Counter([(50, "d", 1, 1.0)])
        eventually(lambda: board.shown() == without or None, lambda: f"{without}, not {board.shown()}")
        assert len(board.tentative) == 1 and read not in board.tentative
        feed.put("app", (14, "b", 8), (27, "c", 8), (41, "d", 1), (56, "e", 1))
        right = stable + Counter([(20, "b", 4, 13.0), (30, "c", 2, 9.0), (50, "d", 2, 2.0)])
        eventually(lambda: board.stable == right or None, lambda: f"{right}, not {board.stable}")
        eventually(lambda: not board.tentative or None, lambda: f"none, not {board.tentative}")
    assert len(set(board.undone)) == len(board.undone), "each once"


def test_a_query_outside_reads_one_replica_or_the_other(spark: SparkSession, tmp_path: Path) -> None:
    """Each row once, on its first start and on its second, with tentative rows if it asks for them."""
    table, outside, board = Table(), Table(), Board(shown)

    def read(session: SparkSession, name: str, **how: Any) -> StreamingQuery:
        rows = read_replicas(session, f"{tmp_path}/home", "totals", "time", **how)
        taken = board.take if how else outside.take
        return rows.writeStream.foreachBatch(taken).option("checkpointLocation", f"{tmp_path}/{name}").start()

    with ExitStack() as stack:
        feed, runs = stack.enter_context(feeding(spark, tmp_path)), {}
        for name in "ab":
            made = per_page(tmp_path, table.take, kept=True, **BOUND)
            runs[name] = start_pipeline(made, spark, Patience(wait_s=0.1), replica=name)
            stack.callback(runs[name].stop)
        for name in INPUTS:
            feed.put(name, (1, "a", 1.5), (13, "b", 2))
        stable: Shown = Counter([(10, "a", 2, 3.0)])
        eventually(lambda: windows_of(table) == stable or None, lambda: f"{stable}, not {windows_of(table)}")
        query, other = read(spark, "outside"), read(spark, "tentative", tentative="4800ms")
        stack.callback(lambda: (query.stop(), other.stop()))
        for each in (lambda: windows_of(outside), lambda: board.stable):
            eventually(lambda each=each: each() == stable or None, lambda each=each: f"{stable}, not {each()}")
        runs["a"].stop()
        feed.put("web", (14, "b", 1), (40, "d", 1))
        without: Shown = Counter([(20, "b", 3, 5.0)])
        eventually(lambda: board.shown() == without or None, lambda: f"{without}, not {board.shown()}")
        assert set(board.tentative) == {"totals/b/1"}
        query.stop()
        query = read(spark, "outside")
        feed.put("app", (14, "b", 8), (41, "d", 1))
        right = stable + Counter([(20, "b", 4, 13.0)])
        for each in (lambda: windows_of(outside), lambda: board.stable):
            eventually(lambda each=each: each() == right or None, lambda each=each: f"{right}, not {each()}")
        eventually(lambda: not board.tentative or None, lambda: f"none, not {board.tentative}")


def test_a_home_without_replicas_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=f"{tmp_path} has no replicas"):
        read_replicas(spark, str(tmp_path), "totals", "time")


@pytest.mark.parametrize(("flow", "how", "says"), [
    ("total", {}, "it has no flow 'total': did you mean totals"),
    ("board", {}, "it has no flow 'board'"),
    ("web", {}, "flow web is read from outside, and replica b does not keep it"),
    ("totals", {"time": "page"}, "does not tell below which 'page' no row will come: give time"),
    ("totals", {"bucket": "soon"}, "bucket='soon' of its reader: give a duration"),
])  # fmt: skip
def test_what_a_query_outside_cannot_read_is_named(
    flow: str, how: dict[str, str], says: str, spark: SparkSession, tmp_path: Path
) -> None:
    run = start_pipeline(per_page(tmp_path, Table().take, kept=True), spark, Patience(wait_s=0.1), replica="b")
    try:
        with pytest.raises(GraphError, match=re.escape(says)):
            read_replicas(spark, f"{tmp_path}/home", flow, **{"time": "time", **how})
    finally:
        run.stop()


def joined(web: DataFrame, app: DataFrame) -> DataFrame:
    return web.join(app.withColumnRenamed("time", "t").withColumnRenamed("page", "p"), f.expr("page = p AND time = t"))


DIFFER = {
    "chance": (None, lambda web, app: web.withColumn("n", f.rand()), "not deterministic: rand"),
    "the first row": (None, lambda web, app: web.groupBy(f.window("time", "1 second")).agg(f.first("page")), "first"),
    "a join": (None, joined, "it has a stream-stream join"),
    "no end of a window": (
        None,
        lambda web, app: web.groupBy(f.window("time", "1 second").alias("w")).count().select(
            f.col("w.start").alias("time"), "count"),
        "does not tell which rows will come no more",
    ),
    "a source beside channels": (
        None,
        lambda web, app: web.select("time").unionByName(
            web.sparkSession.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().select(
                f.col("timestamp").alias("time"))),
        "it reads flows and a source of its own",
    ),
    "another time than the buckets have": (
        None, lambda web, app: web.select(f.col("time").alias("t"), f.col("at").alias("time")),
        "does not tell which rows will come no more",
    ),
    "lost rows": (
        lambda spark: spark.readStream.format("cec").option("waitForLog", "true").option("failOnDataLoss", "false")
        .schema("timestamp TIMESTAMP").load(spark.conf.get("cec.test.table")),
        None, "its source has failOnDataLoss=false",
    ),
    "one name of two readers": (
        lambda spark: spark.readStream.format("cec").option("waitForLog", "true").option("reader", "shop")
        .schema("timestamp TIMESTAMP").load(spark.conf.get("cec.test.table")),
        None, "its source has reader=shop",
    ),
    "tentative rows": (
        lambda spark: spark.readStream.format("cec").option("waitForLog", "true").option("Tentative", " True ")
        .schema("timestamp TIMESTAMP, _kind STRING, _epoch STRING").load(spark.conf.get("cec.test.table")),
        None, "its source reads tentative rows",
    ),
    "a source that differs": (lambda spark: spark.readStream.format("rate").load(), None, "source 'rate'"),
    "a source flow with state": (
        lambda spark: spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        .dropDuplicates(["value"]),
        None, "it reads a source and has state",
    ),
    "two sources": (
        lambda spark: spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().unionByName(
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()),
        None, "it reads 2 sources",
    ),
    "a table beside it": (
        lambda spark: spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().join(
            spark.read.json(spark.conf.get("cec.test.table")), "value"),
        None, "reads data beside its streams",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFER)
def test_what_may_differ_is_refused(case: str, spark: SparkSession, tmp_path: Path) -> None:
    """Before anything starts, and nothing is written."""
    source, flow, says = DIFFER[case]
    (tmp_path / "table.json").write_text('{"value": 1}')
    session = spark.newSession()
    session.conf.set("cec.test.table", str(tmp_path / "table.json"))
    made = Pipeline("shop", f"{tmp_path}/home")
    marks = dict.fromkeys(INPUTS, ("time", "2 seconds"))

    def declare(name: str) -> None:
        @made.flow(name=name)
        def rows(spark: SparkSession) -> DataFrame:
            if source is not None:
                return source(spark).withColumn("time", f.col("timestamp"))
            read = spark.readStream.format("cec").option("waitForLog", "true")
            return read.schema("time TIMESTAMP, page STRING, at TIMESTAMP").load(f"{tmp_path}/fed")

    for name in INPUTS:
        declare(name)

    @made.flow(bucket="1s", watermarks=marks)
    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        return web.unionByName(app) if flow is None else flow(web, app)

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def board(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.format("noop")

    with pytest.raises(FlowError, match=re.escape(says)):
        start_pipeline(made, session, replica="a")
    assert not (tmp_path / "home").exists()


def test_a_flow_that_starts_again_with_another_date_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its function reads a clock. The other replica has compared the date of the first start, if it compares any."""
    day = ["2026-01-01"]
    made = Pipeline("shop", f"{tmp_path}/home")

    @made.flow(kept=True)
    def web(spark: SparkSession) -> DataFrame:
        read = spark.readStream.format("cec").option("waitForLog", "true").schema("time TIMESTAMP")
        return read.load(f"{tmp_path}/fed").where(f.expr(f"time > DATE'{day[0]}'"))

    run = start_pipeline(made, spark, Patience(most=0), replica="a")
    try:
        flow = run._supervisors["web"]
        for today in ("2026-01-01", "2026-01-02"):
            before = eventually(flow.running_query, "the query runs")
            day[0] = today
            flow.hold("test")
            eventually(lambda: flow.is_at_rest or None, "the query has ended")
            flow.let_go("test")
            eventually(
                lambda before=before: flow.is_over or flow.query() is not before or None, lambda: str(flow.status())
            )
        assert flow.is_over, "it has started again with the same date, and not with another one"
        assert "web has other dates, times or tables than at the start" in str(flow.status().error)
    finally:
        run.stop()


def test_the_clock_moves_no_watermark_in_replicas(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PREFIX + "sources.quiet", "1s")
    with pytest.raises(FlowError, match="each replica has a clock of its own"):
        start_pipeline(per_page(tmp_path, Table().take), session, replica="a")
