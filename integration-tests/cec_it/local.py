"""Queries run in the tests' own session: with `stop.flush=off`, `stop()` forgets what the log misses, as a crash."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cec_it.driver import CEC, Job, Query, start

T = TypeVar("T")
DEADLINE_S = 60.0
BATCHES, ROWS = 8, 120
"""The size of most jobs, so that they share their undisturbed results."""
OPENINGS_ONLY = {"CI": "0ms", "U": "1000000", "functions.orderFree": "on"}
"""A replay has as much to do as it can. The functions of these tests sort the rows that they are given."""
TIGHT = {"CI": "5ms", "CP": "20ms", "U": "300", "Q": "1.5x", "effort": "0", "log.segmentBytes": "64KiB"}
SETTINGS: tuple[Mapping[str, str], ...] = (OPENINGS_ONLY, {}, TIGHT)
"""What campaigns draw from, given without the prefix."""


def session(spark: SparkSession, own: Mapping[str, str] | None = None, /, **conf: str) -> SparkSession:
    """A session of its own with `cec.*` settings, given without their prefix, and other confs, given in full.

    Its queries stop as if they crashed, unless it says otherwise.
    """
    fresh = spark.newSession()
    for key, value in {"stop.flush": "off", **(own or {}), **conf}.items():
        fresh.conf.set(key if key.startswith("spark.") else CEC + key, value)
    return fresh


def run_to(spark: SparkSession, job: Job, query: Query, batch: int) -> None:
    """Run a query until it has committed `batch`, then stop it at once, wherever it is then."""
    streaming = start(spark, job, query)
    try:
        wait_for(streaming, batch)
    finally:
        streaming.stop()


def wait_for(streaming: StreamingQuery, batch: int) -> None:
    """Wait until a query has run `batch`; raises its error if it fails before. Each batch may take `DEADLINE_S`."""
    newest, deadline = -1, time.monotonic() + DEADLINE_S
    while (found := (streaming.lastProgress or {"batchId": -1})["batchId"]) < batch:
        if found > newest:
            newest, deadline = found, time.monotonic() + DEADLINE_S
        if streaming.awaitTermination(0.02) or time.monotonic() > deadline:
            raise AssertionError(f"{streaming.name} has not run batch {batch}: {streaming.lastProgress}")


def eventually(look: Callable[[], T | None], what: str | Callable[[], str], within_s: float = DEADLINE_S) -> T:
    """What `look` finds as soon as that is not None. `what`: the text of the failure, or what makes it then."""
    deadline = time.monotonic() + within_s
    pause = os.eventfd(0)
    try:
        while True:
            found = look()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:.0f} s: {what if isinstance(what, str) else what()}")
            select_on(pause, 0.01)
    finally:
        os.close(pause)


def tasks_are_over(spark: SparkSession) -> None:
    """Wait until no task runs: those of a query that is stopped may outlive `stop()`, and write until they end."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()  # type: ignore[union-attr]

    def look() -> bool | None:
        running = scheduler.runningTasksByExecutors().values().iterator()
        while running.hasNext():
            if running.next():
                return None
        return True

    eventually(look, "no task runs")


def select_on(descriptor: int, seconds: float) -> bool:
    """Whether a file descriptor becomes readable in so many seconds."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def reports(checkpoint: Path, count: int) -> list[dict[str, object]]:
    """The recovery reports of a query, oldest first, once there are `count`."""

    def look() -> list[dict[str, object]] | None:
        files = sorted((checkpoint / "cec" / "recoveries").glob("*.json"))
        return [json.loads(path.read_text()) for path in files] if len(files) >= count else None

    return eventually(look, f"{count} recovery reports in {checkpoint}")


def files_in(directory: Path) -> list[Path]:
    """All files under a directory."""
    return [path for path in directory.rglob("*") if path.is_file()]


def query_json(checkpoint: Path) -> dict[str, object]:
    """What the last start of a query decided."""
    decided = json.loads((checkpoint / "cec" / "query.json").read_text())
    assert isinstance(decided, dict)
    return decided


def in_memory(into: dict[int, list[tuple[object, ...]]]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that keeps each batch's rows, sorted; a batch that comes twice must be the same."""

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        assert into.setdefault(batch, rows) == rows, f"batch {batch} came twice, with other rows"

    return keep


def agent_pid(spark: SparkSession) -> int:
    """The process id of the session's agent."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return eventually(lambda: child_running(jvm, b"spark_cec.agent"), "an agent of this JVM")


def agent_of_driver(driver: int) -> int:
    """The process id of the agent of a driver, which is a Python process with a JVM as its child."""

    def look() -> int | None:
        jvm = child_running(driver, b"SparkSubmit")
        return None if jvm is None else child_running(jvm, b"spark_cec.agent")

    return eventually(look, "the driver's agent")


def child_running(parent: int, words: bytes) -> int | None:
    """The process id of a child of `parent` whose command line has these words."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[stat.rindex(")") + 2 :].split()[1]) == parent and words in command:
            return int(entry.name)
    return None


def kill(pid: int) -> None:
    """SIGKILL one process, and wait for its end."""
    await_end(pid, lambda: os.kill(pid, signal.SIGKILL))


def await_end(pid: int, cause: Callable[[], None]) -> None:
    """Do what ends the process, then wait for its end."""
    handle = os.pidfd_open(pid)
    try:
        cause()
        assert select_on(handle, DEADLINE_S), f"process {pid} has not ended within {DEADLINE_S:.0f} s"
    finally:
        os.close(handle)
