"""A start that ends behind our rule, before its first batch: Spark refuses it, or another run has begun."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it import feeds, local
from testbed.spark_logs import newest

EAGER, DEFERRED = {"mode": "eager"}, {"CI": "0ms", "effort": "0"}


def totals(own: SparkSession, root: Path) -> DataFrame:
    """From a source of Spark's old interface, which makes its own files at once."""
    rows = own.readStream.schema(feeds.SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "events" / "left"))
    return rows.groupBy("key").agg(f.sum("amount"))


def rated(own: SparkSession, root: Path) -> DataFrame:
    """From a source of the new one."""
    return feeds.read_rate(own, "left", local.BATCHES, local.ROWS).groupBy("key").agg(f.sum("amount"))


def writer(own: SparkSession, root: Path, made: Callable[[SparkSession, Path], DataFrame]) -> DataStreamWriter:
    return made(own, root).writeStream.outputMode("update").option("checkpointLocation", str(root / "checkpoint"))


def is_held(root: Path) -> bool:
    path = root / "checkpoint" / "cec" / "lock"
    with path.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def is_given_back(root: Path) -> None:
    local.eventually(lambda: None if is_held(root) else True, "the lease is given back")


def open_logs(spark: SparkSession) -> set[str]:
    jvm: Any = spark._jvm
    logs = jvm.org.apache.spark.sql.cec.agent.Agent.openLogs().iterator()
    found = set()
    while logs.hasNext():
        found.add(str(logs.next()))
    return found


def local_property(spark: SparkSession) -> object:
    return spark.sparkContext.getLocalProperty("spark.sql.cec.run")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(local.BATCHES):
        feeds.write_file(tmp_path / "events" / "left", "left", number, local.ROWS)
    return tmp_path


@contextmanager
def as_it_starts(own: SparkSession, happens: Callable[[], None]) -> Iterator[None]:
    """Spark tells of the start in the query's own thread, before it makes a source."""

    class Watcher(StreamingQueryListener):
        def onQueryStarted(self, event: object) -> None:  # noqa: N802
            happens()

        def onQueryProgress(self, event: object) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: object) -> None:  # noqa: N802
            pass

    watcher = Watcher()
    own.streams.addListener(watcher)
    try:
        yield
    finally:
        own.streams.removeListener(watcher)


@pytest.mark.parametrize("settings", [EAGER, DEFERRED], ids=["eager", "deferred"])
def test_a_start_that_spark_refuses_holds_nothing(spark: SparkSession, root: Path, settings: dict[str, str]) -> None:
    """Spark looks at the trigger of this query, for one, when ours has been prepared."""
    own = local.session(spark, settings)
    before = open_logs(spark)
    begin = writer(own, root, totals).format("noop").option("asyncProgressTrackingEnabled", "true")
    with pytest.raises(IllegalArgumentException, match="Async progress tracking"):
        begin.trigger(once=True).start()
    assert (root / "checkpoint" / "cec" / "query.json").exists(), "the rule has begun a run"
    assert not is_held(root)
    assert open_logs(spark) == before
    assert local_property(own) is None
    streaming = writer(own, root, totals).format("noop").start()
    try:
        local.wait_for(streaming, 1)
        assert is_held(root)
        assert local_property(own) is None, "the word to the stores is for the query's thread"
    finally:
        streaming.stop()
    is_given_back(root)
    if settings is DEFERRED:  # else Spark closes the stores, when it comes to it
        local.eventually(lambda: True if open_logs(spark) == before else None, "the log is closed")


def test_a_start_that_spark_refuses_for_its_name_ends_no_run(spark: SparkSession, root: Path) -> None:
    """Spark looks at the name first, and stops the run that is there only then."""
    own = local.session(spark, EAGER, **{"spark.sql.streaming.stopActiveRunOnRestart": "true"})
    streaming = writer(own, root, rated).format("noop").queryName("taken").start()
    try:
        local.wait_for(streaming, 1)
        with pytest.raises(IllegalArgumentException, match="a query with that name is already active"):
            writer(own, root, rated).format("noop").queryName("taken").start()
        assert streaming.isActive
        local.wait_for(streaming, 3)
        assert is_held(root)
    finally:
        streaming.stop()


def nothing_was_written(root: Path, streaming: StreamingQuery, batches: dict[int, Any], says: str) -> None:
    failure = local.eventually(lambda: streaming.exception() if not streaming.isActive else None, "the end")
    assert says in str(failure)
    assert newest(root / "checkpoint" / "offsets") == newest(root / "checkpoint" / "commits") == -1
    assert not (root / "checkpoint" / "sources").exists()
    assert batches == {}


@pytest.mark.parametrize("made", [totals, rated])
@pytest.mark.parametrize("settings", [EAGER, DEFERRED], ids=["eager", "deferred"])
def test_a_start_under_which_another_run_begins_writes_nothing(
    spark: SparkSession, root: Path, settings: dict[str, str], made: Callable[[SparkSession, Path], DataFrame]
) -> None:
    """Another driver prepares a start of the same query between the two steps of this one."""
    own, batches = local.session(spark, settings), dict[int, Any]()
    begin = writer(own, root, made).foreachBatch(local.in_memory(batches))

    def elsewhere() -> None:
        generations = root / "checkpoint" / "cec" / "generations"
        latest = max(int(path.stem) for path in generations.glob("*.json"))
        (generations / f"{latest + 1:010d}.json").write_text(json.dumps({"started_unix_ms": 0, "committed_batch": -1}))

    with as_it_starts(own, elsewhere):
        streaming = begin.start()
        nothing_was_written(root, streaming, batches, "run 2 of the query with checkpoint")
    is_given_back(root)
    again = writer(own, root, made).foreachBatch(local.in_memory(batches)).start()
    try:
        local.wait_for(again, 2)
    finally:
        again.stop()


def test_a_start_whose_lease_is_taken_meanwhile_is_refused(spark: SparkSession, root: Path) -> None:
    own, batches = local.session(spark, EAGER, **{"agent.timeout": "6s"}), dict[int, Any]()
    begin = writer(own, root, rated).foreachBatch(local.in_memory(batches))
    with (root / "lock").open("w") as aside:
        (root / "checkpoint" / "cec").mkdir(parents=True)
        (root / "lock").rename(root / "checkpoint" / "cec" / "lock")
        with as_it_starts(own, lambda: fcntl.flock(aside, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            nothing_was_written(root, begin.start(), batches, "is running already")
    is_given_back(root)


def test_a_query_whose_end_nobody_is_told_of_gives_the_lease_back(spark: SparkSession, root: Path) -> None:
    """Events get lost: a queue was full, or somebody has removed the listener."""
    own = local.session(spark, DEFERRED)
    before = open_logs(spark)
    streaming = writer(own, root, rated).format("noop").start()
    try:
        local.wait_for(streaming, 1)
        manager: Any = own._jsparkSession.streams()  # type: ignore[attr-defined]
        for listener in manager.listListeners():
            manager.removeListener(listener)
        assert is_held(root)
    finally:
        streaming.stop()
    is_given_back(root)
    local.eventually(lambda: True if open_logs(spark) == before else None, "the log is closed")


def test_a_run_that_fails_at_its_first_source_gives_the_lease_back(spark: SparkSession, root: Path) -> None:
    own = local.session(spark, EAGER)
    # The directory of the source goes between the analysis and the making of the source, which lists it.
    begin = writer(own, root, totals).format("noop")

    def remove() -> None:
        (root / "checkpoint" / "sources").write_text("a file where Spark makes a directory")

    with as_it_starts(own, remove):
        streaming = begin.start()
        with pytest.raises(StreamingQueryException):
            streaming.awaitTermination(60)
    is_given_back(root)
