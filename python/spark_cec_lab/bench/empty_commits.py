"""What a commit takes in the agent where nothing has happened: no JVM, no records, one write to the log each."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec_lab.bench.aging import Life
from spark_cec_lab.bench.aging_store import AgingStore, Quiet
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule

_STORES = 50
_SETTLING = 20
_FRAME_BYTES = 272
"""About what a commit without records appends to the log."""


def empty_commits(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    """Batches of fifty stores that nobody touches. Values: median `empty_commit_ms`, the wait for the disk in it, and
    `disk_ms`, what the disk alone takes for as many bytes.

    Of `spec` and `schedule` only the number of measured batches counts.
    """
    life = Life(home / "agent", output=False)
    life.stores = [AgingStore(partition, Quiet()) for partition in range(_STORES)]
    try:
        life.run(_SETTLING)
        life.commit_ms.clear()
        life.run(schedule.timed)
        say(f"{len(life.commit_ms)} commits")
        values = {"empty_commit_ms": statistics.median(life.commit_ms), "disk_ms": _disk_ms(home, len(life.commit_ms))}
        return Measured(values, {"commits": len(life.commit_ms)})
    finally:
        life.close()


def _disk_ms(home: Path, appends: int) -> float:
    """The median of so many appends of a frame's length, each of which waits for the disk."""
    appender, each = open_storage(str(home)).append_to_new("disk"), []
    try:
        for _ in range(appends):
            began = time.perf_counter()
            appender.append([bytes(_FRAME_BYTES)])
            each.append((time.perf_counter() - began) * 1000)
    finally:
        appender.close()
    return statistics.median(each)
