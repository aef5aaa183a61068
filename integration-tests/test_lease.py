"""One living run per checkpoint: who has the lease, through restarts in one application and an agent's death."""

from __future__ import annotations

import enum
import fcntl
import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, local
from cec_it.sparklogs import cut
from testbed.spark_logs import newest

RACES = 4
"""Rounds of a test in which two starts race."""

Rows = dict[int, list[tuple[object, ...]]]
"""The rows of each batch."""


def start(spark: SparkSession, checkpoint: Path, **conf: str) -> StreamingQuery:
    own = local.session(spark, local.OPENINGS_ONLY, **conf)
    totals = feeds.read_rate(own, "left", local.BATCHES, local.ROWS).groupBy("key").agg(f.sum("amount"))
    return totals.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint)).start()


def is_held(checkpoint: Path) -> bool:
    with (checkpoint / "cec" / "lock").open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def run_to(spark: SparkSession, checkpoint: Path, batch: int) -> None:
    streaming = start(spark, checkpoint)
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()


def all_events_told(spark: SparkSession) -> None:
    """Wait until every listener has been told of everything: the end of a run is told late."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)  # type: ignore[union-attr]


def test_a_run_that_takes_the_place_of_another_keeps_the_lease(spark: SparkSession, tmp_path: Path) -> None:
    first = start(spark, tmp_path)
    streaming = first
    try:
        local.wait_for(first, 1)
        for batch in (2, 3, 4):
            streaming = start(spark, tmp_path)
            local.wait_for(streaming, batch)
            all_events_told(spark)
            assert is_held(tmp_path), f"the lease was given back when the run before batch {batch} ended"
    finally:
        streaming.stop()
    all_events_told(spark)
    local.eventually(lambda: None if is_held(tmp_path) else True, "the lease is given back at the end")


def test_a_start_that_fails_gives_the_lease_back(spark: SparkSession, tmp_path: Path) -> None:
    run_to(spark, tmp_path, 3)
    cut(tmp_path / "offsets", range(2))
    with pytest.raises(AnalysisException, match="no longer has batch"):
        start(spark, tmp_path)
    all_events_told(spark)
    local.eventually(lambda: None if is_held(tmp_path) else True, "the lease is given back after a failed start")


def begin_elsewhere(spark: SparkSession, checkpoint: Path) -> None:
    """As if another driver had begun a run, after this one's agent had died, and the lease with it."""
    generations = checkpoint / "cec" / "generations"
    latest = max(int(path.stem) for path in generations.glob("*.json"))
    (generations / f"{latest + 1:010d}.json").write_text(json.dumps({"started_unix_ms": 0}))
    local.kill(local.agent_pid(spark))


def test_an_agent_that_comes_back_does_not_go_on_under_a_later_run(spark: SparkSession, tmp_path: Path) -> None:
    """As after a second driver that got the lease while the first one's agent was dead, and died."""
    streaming = start(spark, tmp_path)
    try:
        local.wait_for(streaming, 1)
        begin_elsewhere(spark, tmp_path)
        failure = local.eventually(lambda: streaming.exception() if not streaming.isActive else None, "the end")
        assert "began while run" in str(failure)
    finally:
        streaming.stop()
    again = start(spark, tmp_path)
    try:
        local.wait_for(again, 3)
    finally:
        again.stop()


def test_a_batch_that_ended_under_a_later_run_is_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    """The sink of a paused driver wakes up: the batch is another run's by now."""

    def write(_: DataFrame, batch: int) -> None:
        if batch == 3:
            begin_elsewhere(spark, tmp_path)

    own = local.session(spark, local.OPENINGS_ONLY)
    totals = feeds.read_rate(own, "left", local.BATCHES, local.ROWS).groupBy("key").agg(f.sum("amount"))
    writer = totals.writeStream.foreachBatch(write).outputMode("update").option("checkpointLocation", str(tmp_path))
    streaming = writer.start()
    try:
        with pytest.raises(StreamingQueryException, match="began while run"):
            local.wait_for(streaming, 3)
    finally:
        streaming.stop()
    assert newest(tmp_path / "commits") == 2


@pytest.mark.parametrize("stops", ["true", "false"])
@pytest.mark.parametrize("settings", [{"mode": "eager"}, local.OPENINGS_ONLY], ids=["eager", "deferred"])
def test_of_two_starts_at_once_one_goes_on(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str], stops: str
) -> None:
    """Two threads of one application start a query at once. Spark stops one of the two, or refuses one."""
    expected, batches, decided = Rows(), Rows(), 0

    def start_query(name: str, into: Rows) -> StreamingQuery:
        own = local.session(spark, settings, **{"spark.sql.streaming.stopActiveRunOnRestart": stops})
        totals = feeds.read_rate(own, "left", local.BATCHES, local.ROWS).groupBy("key").agg(f.sum("amount"))
        writer = totals.writeStream.foreachBatch(local.in_memory(into)).outputMode("update")
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    def try_to_start(together: threading.Barrier) -> StreamingQuery | Exception:
        together.wait(60)
        try:
            return start_query("raced", batches)
        except (PySparkException, Py4JJavaError) as refused:
            return refused

    for _ in range(3 * RACES):
        wanted = newest(tmp_path / "raced" / "commits") + 2
        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(try_to_start, [threading.Barrier(2)] * 2))
        started = [each for each in ends if not isinstance(each, Exception)]
        try:
            look = functools.partial(outcome, wanted, started, ends, stops=stops == "true")
            decided += local.eventually(look, f"one of the two runs batch {wanted}") is Outcome.DECIDED
        finally:
            for each in started:
                each.stop()
        if any(is_concurrent(each) for each in ends):
            forget_losers(spark)
        if decided == RACES:
            break
    assert decided == RACES
    undisturbed = start_query("undisturbed", expected)
    try:
        local.wait_for(undisturbed, max(batches))
    finally:
        undisturbed.stop()
    assert {batch: expected[batch] for batch in batches} == batches


class Outcome(enum.Enum):
    """The end of a race of two starts."""

    DECIDED = enum.auto()
    """One has run the batch, or has given way to the other one, which had committed."""
    NONE_RAN = enum.auto()
    """Spark stopped the first start before its thread ran, and refused the second one because of the first."""


def outcome(
    batch: int, started: list[StreamingQuery], ends: list[StreamingQuery | Exception], *, stops: bool
) -> Outcome | None:
    """The end of a race, or None while it goes on. Fails if none is left that could run, and Spark did not do it.

    `stops`: Spark may stop a run for the other start. If the run has committed a batch by then, none goes on.
    """
    if any((each.lastProgress or {"batchId": -1})["batchId"] >= batch for each in started):
        return Outcome.DECIDED
    if any(each.isActive for each in started):
        return None
    failures = [each if isinstance(each, Exception) else each.exception() for each in ends]
    if stops and any("is the last one: another run has gone on" in str(each) for each in failures):
        return Outcome.DECIDED
    assert stops and None in failures and any(is_concurrent(each) for each in failures), failures
    return Outcome.NONE_RAN


def is_concurrent(end: object) -> bool:
    """Whether Spark's list of active queries refused a start."""
    return isinstance(end, Py4JJavaError) and "[CONCURRENT_QUERY]" in str(end.java_exception)


def forget_losers(spark: SparkSession) -> None:
    """Spark keeps a start that it refused in its list of active queries. A new application has an empty list."""
    spark._jsparkSession.sharedState().activeStreamingQueries().clear()


def test_a_start_that_is_refused_the_lease_says_so_and_takes_it_never(spark: SparkSession, tmp_path: Path) -> None:
    """`agent.timeout` below the time that a start waits for the lease: the agent must not be taken for dead."""
    (tmp_path / "cec").mkdir()
    with (tmp_path / "cec" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AnalysisException, match="is running already"):
            start(spark, tmp_path, **{"agent.timeout": "12s"})
    assert not is_held(tmp_path)
    run_to(spark, tmp_path, 1)
