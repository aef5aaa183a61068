"""A driver that runs its query to the last batch, says so, and ends it only when a file says how.

`python -m cec_it.waiting_driver JOB.json`

It prints the events of `cec_it.driver`, and `idle` when no task runs any more. Then it waits for the file `end` in the
job's root: `stop` (it stops the query, then the application) or `leave` (it ends the application alone).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cec_it.driver import Job, Reporter, say, session_builder, start


def main(arguments: list[str]) -> int:
    """Entry point; the only argument is the job's file."""
    job = Job.from_json(Path(arguments[0]).read_text())
    builder = session_builder(Path(job.root) / "scratch", job.master)
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    (query,) = job.queries
    reporter = Reporter(job)
    spark.streams.addListener(reporter)
    streaming = start(spark, job, query)
    reporter.wait(streaming)
    say("idle", query.name)
    how = Path(job.root) / "end"
    while not how.exists():
        time.sleep(0.02)
    if how.read_text() == "stop":
        streaming.stop()
    say("done", query.name)
    spark.stop()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
