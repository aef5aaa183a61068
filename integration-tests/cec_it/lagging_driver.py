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
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import feeds, local
from testbed.processes import ProcessTree

CEC = "spark.sql.streaming.stateStore.cec."
EXECUTORS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A run up to the batch before `batches`. In batch `stop_at` (-1: in none) `agents` executors lose their agent.

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
        if batch == job.stop_at:
            for agent in find_agents()[: job.agents]:
                os.kill(agent, signal.SIGSTOP)
            threading.Thread(target=end_when_committed, args=(job,), daemon=True).start()

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


def find_agents() -> list[int]:
    """The process ids of the executors' agents; the driver has one of its own."""

    def look() -> list[int] | None:
        agents = [
            agent
            for executor in _find(os.getpid(), "CoarseGrainedExecutorBackend")
            for agent in _find(executor, "spark_cec.agent")
        ]
        return agents if len(set(agents)) == EXECUTORS else None

    return local.eventually(look, "the agents of the executors")


def _find(root: int, word: str) -> list[int]:
    """The processes below `root` whose command names the word, and whose parent's does not."""
    found: dict[int, bytes] = {}
    for pid in ProcessTree(root).members():
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return sorted(pid for pid, command in found.items() if word.encode() in command)


if __name__ == "__main__":
    os._exit(main(Job(**json.loads(sys.argv[1]))))  # as a crash does, which flushes nothing
