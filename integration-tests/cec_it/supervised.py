"""A driver that starts its query again whenever it fails, as a supervisor would.

`python -m cec_it.supervised JOB.json`

It prints the events of `cec_it.driver`, and before each start {"event": "starting", "query": ..., "life": ...,
"committed": ..., "application": ...}: the number under which the sink records, the last batch that Spark has
committed, and Spark's id of the application. At the end it leaves what the `cec` sink holds in `rows.json`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from cec_it import results
from cec_it.checkpoints import Checkpoint, hadoop_of, settings_of
from cec_it.driver import CEC_SINK, Job, Query, Reporter, say, session_of, start

HOLDS = "spark.cec_it.holds"
"""Conf of a job: `3-6 9-12` keeps one core busy with another job from the end of batch 3 to the end of batch 6, …"""
TRIGGER = "spark.cec_it.trigger"
"""Conf of a job: the query's trigger, as `4 seconds`."""
RESTARTS = 20
"""How often a query may fail in one life of the driver."""


class BusyCores(StreamingQueryListener):
    """Keeps a core busy between two batches of the query, as another query would."""

    def __init__(self, spark: SparkSession, scratch: Path, holds: str) -> None:
        self._context = spark.sparkContext
        self._scratch = scratch
        self._pending = [tuple(map(int, hold.split("-"))) for hold in holds.split()]
        self._held: list[tuple[int, Path]] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        batch = event.progress.batchId
        for until, marker in [held for held in self._held if held[0] <= batch]:
            marker.touch()
            self._held.remove((until, marker))
        while self._pending and self._pending[0][0] <= batch:
            first, until = self._pending.pop(0)
            marker = self._scratch / f"release-{first}-{time.time_ns()}"
            self._held.append((until, marker))
            threading.Thread(target=self._hold, args=[str(marker)], daemon=True).start()

    def _hold(self, marker: str) -> None:
        self._context.parallelize([marker], 1).foreach(_wait_for)


def _wait_for(marker: str) -> None:
    """Runs in an executor: waits until a file appears."""
    while not os.path.exists(marker):  # noqa: PTH110
        time.sleep(0.02)


def supervise(spark: SparkSession, job: Job, query: Query) -> bool:
    """Run a query to its end, starting it again when it fails; answers whether it got there."""
    trigger = {"processingTime": job.conf[TRIGGER]} if TRIGGER in job.conf else {}
    checkpoint = Checkpoint(job.location(query))
    spark.streams.addListener(BusyCores(spark, Path(job.root), job.conf.get(HOLDS, "")))
    for restart in range(RESTARTS):
        life = job.life * RESTARTS + restart
        application = spark.sparkContext.applicationId
        say("starting", query.name, life=life, committed=checkpoint.committed(), application=application)
        reporter = Reporter(job)
        spark.streams.addListener(reporter)
        try:
            streaming = start(spark, replace(job, life=life), query, **trigger)
            reporter.wait(streaming)
            error = streaming.exception()
            streaming.stop()
        except Exception as failure:
            error = failure
        finally:
            spark.streams.removeListener(reporter)
        if error is None:
            if query.sink == CEC_SINK:
                results.leave_rows(spark, job.location(query), job.out(query))
            say("done", query.name)
            return True
        say("failed", query.name, error=str(error))
    return False


def main(arguments: list[str]) -> int:
    """Entry point; the only argument is the job's file."""
    job = Job.from_json(Path(arguments[0]).read_text())
    spark = session_of(job)
    (query,) = job.queries
    with settings_of(hadoop_of(job.conf)):
        done = supervise(spark, job, query)
    spark.stop()
    return 0 if done else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
