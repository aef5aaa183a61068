"""A start that ends behind our rule, before its first batch: Spark refuses it, or another run has begun."""

from __future__ import annotations

import fcntl
import json
import resource
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
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


def logs_are_closed(spark: SparkSession, before: set[str]) -> None:
    """Spark may close the stores of an earlier test meanwhile, so `before` may shrink."""
    local.eventually(lambda: True if open_logs(spark) <= before else None, "the log is closed")


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
    assert list((root / "checkpoint" / "cec" / "generations").iterdir()), "the rule has begun a run"
    assert not is_held(root)
    assert open_logs(spark) <= before
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
        logs_are_closed(spark, before)


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


def end_of(streaming: StreamingQuery) -> str:
    return str(local.eventually(lambda: streaming.exception() if not streaming.isActive else None, "the end"))


def refuse_changes(root: Path, batches: dict[int, Any]) -> None:
    """Fails if the run has written anything."""
    assert newest(root / "checkpoint" / "offsets") == newest(root / "checkpoint" / "commits") == -1
    assert not (root / "checkpoint" / "sources").exists()
    assert batches == {}


@pytest.mark.parametrize("made", [totals, rated])
@pytest.mark.parametrize("settings", [EAGER, DEFERRED], ids=["eager", "deferred"])
def test_a_start_under_which_another_run_commits_writes_nothing(
    spark: SparkSession, root: Path, settings: dict[str, str], made: Callable[[SparkSession, Path], DataFrame]
) -> None:
    """Another driver runs the same query between the two steps of this start."""
    own, batches = local.session(spark, settings), dict[int, Any]()
    begin = writer(own, root, made).foreachBatch(local.in_memory(batches))

    committed = [root / "checkpoint" / log / "0" for log in ("offsets", "commits")]

    def elsewhere() -> None:
        for path in committed:
            path.parent.mkdir(exist_ok=True)
            path.write_text("v1\n{}\n-")

    with as_it_starts(own, elsewhere):
        failure = end_of(begin.start())
    assert "began after batch -1, and now batch 0 is the last one" in failure
    for path in committed:
        path.unlink()
    refuse_changes(root, batches)
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
            assert "is running already" in end_of(begin.start())
            refuse_changes(root, batches)
    is_given_back(root)


def test_a_start_that_cannot_write_leaves_the_lease_free(spark: SparkSession, root: Path) -> None:
    """As on a full disk: whichever file it is that does not fit, the next start finds nothing in its way."""
    own = local.session(spark, DEFERRED)
    before = rated(own, root).writeStream.format("noop").outputMode("update")
    before.option("checkpointLocation", str(root / "before")).start().stop()  # now there is an agent
    begin = writer(own, root, rated).format("cec").option("path", str(root / "log"))
    agent = local.agent_pid(spark)
    limits = resource.prlimit(agent, resource.RLIMIT_FSIZE)
    try:
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (0, limits[1]))
        (root / "checkpoint" / "cec").mkdir(parents=True)
        with pytest.raises(AnalysisException, match="the file may not grow: raise `ulimit -f`"):
            begin.start()
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (60, limits[1]))  # `probe-…`, and no more
        with pytest.raises(AnalysisException, match="the file may not grow: raise `ulimit -f`"):
            begin.start()
        assert not is_held(root)
    finally:
        resource.prlimit(agent, resource.RLIMIT_FSIZE, limits)
    streaming = begin.start()
    try:
        local.wait_for(streaming, 1)
    finally:
        streaming.stop()
    is_given_back(root)


def copied(root: Path) -> str:
    """A copy of the checkpoint; it has another id, since Spark runs a query of one id once in a process."""
    being_written = shutil.ignore_patterns(".*.tmp", ".*.tmp.crc")  # the query renames them while the copy goes on
    shutil.copytree(root / "checkpoint", root / "copy" / "checkpoint", ignore=being_written)
    path = root / "copy" / "checkpoint" / "metadata"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["id"], str(uuid.uuid4())))
    (path.parent / ".metadata.crc").unlink(missing_ok=True)
    return str(root / "copy" / "checkpoint")


@pytest.mark.parametrize("while_it_runs", [True, False])
@pytest.mark.parametrize("stateful", [True, False])
def test_a_copy_of_a_checkpoint_does_not_write_into_the_log_of_the_original(
    spark: SparkSession, root: Path, stateful: bool, while_it_runs: bool
) -> None:
    own = local.session(spark, DEFERRED)

    def start(checkpoint: str) -> StreamingQuery:
        rows = feeds.read_rate(own, "left", local.BATCHES, local.ROWS)
        made = (rows.groupBy("key").agg(f.sum("amount")) if stateful else rows).writeStream.format("cec")
        mode = made.outputMode("update" if stateful else "append").option("path", str(root / "log"))
        return mode.option("checkpointLocation", checkpoint).start()

    streaming = start(str(root / "checkpoint"))
    try:
        local.wait_for(streaming, 2)
        copy = copied(root)
        if not while_it_runs:
            streaming.stop()
        with pytest.raises(AnalysisException, match=f"belongs to the checkpoint file:{root}/checkpoint, of which"):
            start(copy)
        if not while_it_runs:
            streaming = start(str(root / "checkpoint"))
        local.wait_for(streaming, 4)
    finally:
        streaming.stop()


def test_a_checkpoint_that_was_moved_goes_on_with_its_log_and_warns_once(
    spark: SparkSession, root: Path, spark_log: Path
) -> None:
    own = local.session(spark, DEFERRED)
    told = spark_log.stat().st_size
    (root / "link").symlink_to(root / "moved")
    for name, batch in (("checkpoint", 1), ("moved/checkpoint", 2), ("link/checkpoint", 3)):
        if name == "moved/checkpoint":
            (root / "moved").mkdir()
            (root / "checkpoint").rename(root / "moved" / "checkpoint")
        begin = writer(own, root, rated).format("cec").option("path", str(root / "log"))
        streaming = begin.option("checkpointLocation", str(root / name)).start()
        try:
            local.wait_for(streaming, batch)
        finally:
            streaming.stop()
    with spark_log.open() as lines:
        lines.seek(told)
        assert sum("which is gone or has another log: it belongs to" in line for line in lines) == 1


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
    logs_are_closed(spark, before)


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
