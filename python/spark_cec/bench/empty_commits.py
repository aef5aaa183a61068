"""What a commit takes in the agent where nothing has happened: no JVM, no records, one write to the log each."""

from __future__ import annotations

import statistics
from pathlib import Path

from spark_cec.bench.aging import Life
from spark_cec.bench.aging_store import AgingStore, Quiet
from spark_cec.bench.job import JobSpec
from spark_cec.bench.measure import Measured, Say, Schedule

_STORES = 50
_SETTLING = 20


def empty_commits(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    """Batches of fifty stores that nobody touches. Value: median `empty_commit_ms`, the wait for the disk in it.

    Of `spec` and `schedule` only the number of measured batches counts.
    """
    life = Life(home / "agent", output=False)
    life.stores = [AgingStore(partition, Quiet()) for partition in range(_STORES)]
    try:
        life.run(_SETTLING)
        life.commit_ms.clear()
        life.run(schedule.timed)
        say(f"{len(life.commit_ms)} commits")
        return Measured({"empty_commit_ms": statistics.median(life.commit_ms)}, {"commits": len(life.commit_ms)})
    finally:
        life.close()
