"""The driver that is killed: runs streaming queries in one session and says on standard output how they go.

`python -m cec_it.driver JOB.json`. Lines are JSON: {"event": "started"|"batch"|"done"|"failed", "query": ..., ...}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

import spark_cec
from cec_it import feeds, results
from cec_it.plans import PLANS

CEC = "spark.sql.streaming.stateStore.cec."
FOREACH = "foreachBatch"
LOOKS_AGAIN = "spark.cec_it.looksAgain"
"""Conf of a job: whether the function of its `foreachBatch` asks for rows of a batch again when it has written them."""
CEC_SINK = "cec"
EMPTY_AT_END = 3
"""Batches without rows that a query on `rate-micro-batch` runs at its end, so that the watermark has its effect."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a job. `source` is `rate` or `files`, `sink` is `foreachBatch`, `cec` or `json` (a file sink)."""

    plan: str
    source: str
    sink: str

    @property
    def name(self) -> str:
        return f"{self.plan}.{self.source}.{self.sink}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a driver runs: `queries` under `root`, `batches` micro-batches of `rows` rows, in its `life`-th life."""

    root: str
    queries: tuple[Query, ...]
    batches: int
    rows: int
    life: int = 0
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)
    home: str = ""
    """The URL below which the checkpoints are; empty: they are below `root`, where `checkpoint` finds them."""

    def checkpoint(self, query: Query) -> Path:
        return Path(self.root) / query.name / "checkpoint"

    def location(self, query: Query) -> str:
        """Where the query's checkpoint is, on whatever storage."""
        return f"{self.home}/{query.name}" if self.home else str(self.checkpoint(query))

    def out(self, query: Query) -> Path:
        return Path(self.root) / query.name / "out"

    @property
    def events(self) -> Path:
        return Path(self.root) / "events"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        raw = json.loads(text)
        return cls(**{**raw, "queries": tuple(Query(**query) for query in raw["queries"])})


def session_builder(scratch: Path, master: str, java_options: str = "") -> SparkSession.Builder:
    """A small local session with the CEC provider, whose temporary files go under `scratch`.

    `java_options`: further ones of its JVM, with a space before.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    builder = (
        SparkSession.builder.master(master)
        .appName("spark-cec integration tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.fileSink.log.compactInterval", "1000")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config(
            "spark.driver.extraJavaOptions",
            f'"-Djava.io.tmpdir={scratch}" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m'
            f"{java_options}",
        )
    )
    return spark_cec.configure(builder)


def session_of(job: Job) -> SparkSession:
    """The session of a driver of this job."""
    builder = session_builder(Path(job.root) / "scratch", job.master)
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    return spark_cec.configure(builder).getOrCreate()  # again, because the job may name jars


def start(spark: SparkSession, job: Job, query: Query, **trigger: Any) -> StreamingQuery:
    """Start one query of a job; `trigger` as for `DataStreamWriter.trigger`."""
    plan = PLANS[query.plan]
    frame = plan.build(lambda side: _feed(spark, job, query, side))
    writer = (
        frame.writeStream.queryName(query.name)
        .outputMode(plan.mode)
        .option("checkpointLocation", job.location(query))
    )
    if query.sink == FOREACH:
        looks_again = job.conf.get(LOOKS_AGAIN) == "true"
        writer = writer.foreachBatch(results.recorder(job.out(query), job.life, looks_again=looks_again))
    elif query.sink == "json":
        writer = writer.format("json").option("path", str(job.out(query)))
    else:
        writer = writer.format(query.sink)
    return (writer.trigger(**trigger) if trigger else writer).start()


def last_batch(job: Job) -> int:
    """The batch with which a query on `rate-micro-batch` is done."""
    return job.batches - 1 + EMPTY_AT_END


class Reporter(StreamingQueryListener):
    """Prints what the queries do, and knows which of them are done or have failed."""

    def __init__(self, job: Job) -> None:
        self._last = {query.name: last_batch(job) for query in job.queries if query.source == feeds.RATE}
        self._ends = {query.name: threading.Event() for query in job.queries}
        self._names: dict[str, str] = {}

    def wait(self, query: StreamingQuery) -> None:
        """Wait until a query on `rate-micro-batch` has run its last batch, or has ended by itself."""
        self._ends[str(query.name)].wait()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._names[str(event.runId)] = str(event.name)
        say("started", str(event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        say("batch", progress.name, batch=progress.batchId, rows=progress.numInputRows)
        if progress.batchId >= self._last.get(progress.name, sys.maxsize):
            self._ends[progress.name].set()

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._ends[self._names[str(event.runId)]].set()


_saying = threading.Lock()


def say(event: str, query: str, **more: object) -> None:
    """Print one event."""
    with _saying:
        print(json.dumps({"event": event, "query": query, **more}), flush=True)


def run(spark: SparkSession, job: Job) -> None:
    """Run all queries of the job to their end; a query that fails does not stop the others."""
    reporter = Reporter(job)
    spark.streams.addListener(reporter)
    running: list[tuple[Query, StreamingQuery]] = []
    for query in job.queries:
        try:
            running.append((query, start(spark, job, query)))
        except Exception as error:
            say("failed", query.name, error=str(error))
    for query, streaming in running:
        try:
            if query.source == feeds.FILES:
                streaming.processAllAvailable()
            else:
                reporter.wait(streaming)
            error = streaming.exception()
            streaming.stop()
        except Exception as failure:
            error = failure
        if error is None:
            say("done", query.name)
        else:
            say("failed", query.name, error=str(error))
    spark.streams.removeListener(reporter)


def _feed(spark: SparkSession, job: Job, query: Query, side: str) -> DataFrame:
    if query.source == feeds.FILES:
        return feeds.read_files(spark, job.events, side)
    return feeds.read_rate(spark, side, job.batches, job.rows)


def main(arguments: list[str]) -> int:
    """Run the job in the file named by the only argument."""
    job = Job.from_json(Path(arguments[0]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    run(session_of(job), job)
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
