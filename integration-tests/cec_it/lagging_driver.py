"""A query that ends when Spark has committed a batch that the log lacks: `python -m cec_it.lagging_driver JOB`.

Its stores write while Spark commits (`writeAt=async`). In one batch the agents of some executors are stopped, so that
they never write it. Then the driver ends, as a crash ends it. Each batch's rows go to a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cec_it import feeds, local
from cec_it.cluster import EXECUTOR, command_of
from cec_it.totals_job import CEC, open_session
from testbed.processes import ProcessTree

EXECUTORS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A run up to the batch before `batches`. In batch `stop_at` (-1: in none) `agents` executors lose their agent.

    The first batch of a run is written before Spark commits it, so a run that stops there does not commit it.

    `names_state`: Spark names the versions of state by checkpoint ids.
    """

    root: str
    batches: int
    doubles: bool
    write_at: str = "async"
    stop_at: int = -1
    agents: int = EXECUTORS
    names_state: bool = False

    def to_json(self) -> str:
        """The inverse of `Job(**json.loads(text))`."""
        return json.dumps(asdict(self))


def main(job: Job) -> int:
    """Runs the query; 1 if it fails, and its error goes to the file `error`."""
    settings = {
        "spark.master": f"local-cluster[{EXECUTORS},1,768]", "spark.executor.memory": "768m",
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.locality.wait": "60s",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2" if job.names_state else "1",
        CEC + "CI": "0ms", CEC + "effort": "0", CEC + "writeAt": job.write_at, CEC + "index.path": f"{job.root}/index",
    }  # fmt: skip
    spark = open_session(settings)
    rows = Path(job.root, "rows")
    rows.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch: int) -> None:
        found = sorted((row["key"], row["total"]) for row in frame.collect())
        with (rows / str(batch)).open("a") as file:
            file.write(json.dumps(found) + "\n")
        if batch == job.stop_at:
            for agent in find_agents()[: job.agents]:
                os.kill(agent, signal.SIGSTOP)
            end = end_when_partly_written if batch == 0 else end_when_committed
            threading.Thread(target=end, args=(job,), daemon=True).start()

    read = feeds.read_rate(spark, "left", job.batches, 120)
    # A sum of doubles would be eager, and an eager operator does not write asynchronously.
    total = f.max(f.col("amount").cast("double") / 3) if job.doubles else f.sum("amount")
    totals = read.groupBy("key").agg(total.alias("total"))
    writer = totals.writeStream.foreachBatch(keep).outputMode("update")
    query = writer.option("checkpointLocation", f"{job.root}/checkpoint").start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < job.batches - 1 and not query.awaitTermination(0.1):
            pass
    except Exception as error:
        Path(job.root, "error").write_text(str(error))
        return 1
    return 0


def end_when_committed(job: Job) -> None:
    """Ends this process, once Spark has committed the batch that the executors cannot write."""
    entry = Path(job.root, "checkpoint", "commits", str(job.stop_at))
    local.eventually(lambda: entry.exists() or None, f"{entry}")
    os.kill(os.getpid(), signal.SIGKILL)


def end_when_partly_written(job: Job) -> None:
    """Ends this process once one executor has written the first batch and some time has passed.

    In that time Spark would commit a batch for which it does not wait.
    """
    segments = Path(job.root, "checkpoint", "cec", "log", "segments")
    local.eventually(lambda: any(each.stat().st_size for each in segments.glob("*")) or None, f"a frame in {segments}")
    time.sleep(2.0)
    os.kill(os.getpid(), signal.SIGKILL)


def find_agents() -> list[int]:
    """The process ids of the executors' agents; the driver has one of its own."""

    def look() -> list[int] | None:
        agents = {
            agent
            for executor in _find(os.getpid(), EXECUTOR)
            for agent in _find(executor, b"spark_cec.agent")
        }
        return sorted(agents) if len(agents) == EXECUTORS else None

    return local.eventually(look, "the agents of the executors")


def _find(root: int, word: bytes) -> list[int]:
    """The processes below `root` whose command has the word."""
    return [pid for pid in ProcessTree(root).members() if word in command_of(pid)]


if __name__ == "__main__":
    os._exit(main(Job(**json.loads(sys.argv[1]))))  # as a crash does, which flushes nothing
