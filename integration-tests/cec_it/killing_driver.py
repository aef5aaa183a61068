"""A query on two executors whose function ends one of them: `python -m cec_it.killing_driver JOB`.

The function has read its batch then, so that all tasks have ended. Each batch's rows go to a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import feeds, local
from testbed.processes import ProcessTree

CEC = "spark.sql.streaming.stateStore.cec."


@dataclass(frozen=True, slots=True)
class Job:
    """A run up to the batch before `batches`. In batch `kill_at` the function ends an executor; -1: in none.

    `softly`: the executor may write what it holds, as one that is idle or decommissioned.
    """

    root: str
    batches: int
    doubles: bool
    kill_at: int = -1
    softly: bool = False

    def to_json(self) -> str:
        """The inverse of `Job(**json.loads(text))`."""
        return json.dumps(asdict(self))


def main(job: Job) -> int:
    """Runs the query; 1 if it fails, and its error goes to the file `error`."""
    settings = {
        "spark.master": "local-cluster[2,1,768]", "spark.executor.memory": "768m", "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4", "spark.locality.wait": "60s",
        CEC + "CI": "0ms", CEC + "effort": "0", CEC + "writeAt": "batch", CEC + "index.path": f"{job.root}/index",
    }  # fmt: skip
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = spark_cec.configure(builder).getOrCreate()
    rows = Path(job.root, "rows")
    rows.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch: int) -> None:
        found = sorted((row["key"], row["total"]) for row in frame.collect())
        with (rows / str(batch)).open("a") as file:
            file.write(json.dumps(found) + "\n")
        if batch == job.kill_at:
            os.kill(one_executor(), signal.SIGTERM if job.softly else signal.SIGKILL)

    read = feeds.read_rate(spark, "left", job.batches, 120)
    amount = f.col("amount").cast("double") / 3 if job.doubles else f.col("amount")
    totals = read.groupBy("key").agg(f.sum(amount).alias("total"))
    writer = totals.writeStream.foreachBatch(keep).outputMode("update")
    query = writer.option("checkpointLocation", f"{job.root}/checkpoint").start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < job.batches - 1 and not query.awaitTermination(0.1):
            pass
    except Exception as error:
        Path(job.root, "error").write_text(str(error))
        return 1
    return 0


def one_executor() -> int:
    """The process id of an executor of this driver."""

    def look() -> int | None:
        for pid in ProcessTree(os.getpid()).members():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in command and b"java" in command.split(b"\0")[0]:
                return pid
        return None

    return local.eventually(look, "an executor")


if __name__ == "__main__":
    os._exit(main(Job(**json.loads(sys.argv[1]))))  # as a crash does, which flushes nothing
