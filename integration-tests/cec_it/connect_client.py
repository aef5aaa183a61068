"""A Spark Connect client that starts a query and waits for its end: `python -m cec_it.connect_client JOB.json`.

The job's master is the server, `sc://HOST:PORT`. It prints the events of `cec_it.driver`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from cec_it.driver import Job, last_batch, say, start


def main(arguments: list[str]) -> int:
    """Entry point; the only argument is the job's file."""
    job = Job.from_json(Path(arguments[0]).read_text())
    spark = SparkSession.builder.remote(job.master).getOrCreate()
    for key, value in job.conf.items():
        spark.conf.set(key, value)
    (query,) = job.queries
    try:
        streaming = start(spark, job, query)
        say("started", query.name)
        while (progress := streaming.lastProgress) is None or int(progress["batchId"]) < last_batch(job):
            failure = streaming.exception()
            if failure is not None:
                raise failure
            time.sleep(0.1)
        streaming.stop()
    except Exception as failure:
        say("failed", query.name, error=str(failure))
        return 1
    say("done", query.name)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
