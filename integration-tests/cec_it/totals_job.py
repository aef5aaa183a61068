"""A query of totals in a driver of its own, with its checkpoint on any store; its function may end an executor.

`python -m cec_it.totals_job JOB`: JOB is a `Job` as JSON. The keys of S3 are where Spark keeps them, and nowhere else.
Each batch's rows go to a file, one line for each call of the function.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import feeds, local
from cec_it.cluster import EXECUTOR, command_of
from testbed.processes import ProcessTree

CEC = "spark.sql.streaming.stateStore.cec."
MANAGER = "org.apache.spark.sql.cec.CecCheckpointFileManager"


@dataclass(frozen=True, slots=True)
class Job:
    """A run up to the batch before `batches`. `root`: for files of this machine. `doubles`: it adds doubles.

    `kill_at`: in this batch the function ends an executor once it has read the batch, so that all tasks have ended.
    `softly`: the executor may write what it holds, as one that is idle or decommissioned.
    `probe`: at its end it tries the checkpoint file manager, and writes what it found to `probe.json` in `root`.
    """

    root: str
    checkpoint: str
    batches: int
    conf: dict[str, str]
    doubles: bool = False
    kill_at: int = -1
    softly: bool = False
    probe: bool = False

    def to_json(self) -> str:
        """The inverse of `Job(**json.loads(text))`."""
        return json.dumps(asdict(self))


def main(job: Job) -> None:
    """Runs the query."""
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        CEC + "CI": "0ms", CEC + "effort": "0", CEC + "index.path": f"{job.root}/index", **job.conf,
    }  # fmt: skip
    spark = open_session(settings)
    rows = Path(job.root, "rows")
    rows.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch: int) -> None:
        found = sorted((row["key"], row["total"], row["mean"]) for row in frame.collect())
        whole, part = rows / str(batch), rows / f".{batch}"
        part.write_text((whole.read_text() if whole.exists() else "") + json.dumps(found) + "\n")
        part.replace(whole)
        if batch == job.kill_at:
            os.kill(one_executor(), signal.SIGTERM if job.softly else signal.SIGKILL)

    read = feeds.read_rate(spark, "left", job.batches, 120)
    amount = f.col("amount").cast("double") / 3 if job.doubles else f.col("amount")
    totals = read.groupBy("key").agg(f.sum(amount).alias("total"), f.avg(f.col("amount").cast("int")).alias("mean"))
    writer = totals.writeStream.foreachBatch(keep).outputMode("update")
    query = writer.option("checkpointLocation", job.checkpoint).start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < job.batches - 1 and not query.awaitTermination(0.1):
            pass
        if job.probe:
            Path(job.root, "probe.json").write_text(json.dumps(probe(spark, job.checkpoint)))
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    os._exit(code)  # as a crash does, which flushes nothing


def open_session(settings: Mapping[str, str]) -> SparkSession:
    """The session of a driver, with Spark CEC."""
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return spark_cec.configure(builder).getOrCreate()


def one_executor() -> int:
    """The process id of an executor of this driver."""

    def look() -> int | None:
        for pid in ProcessTree(os.getpid()).members():
            command = command_of(pid)
            if EXECUTOR in command and b"java" in command.split(b"\0")[0]:
                return pid
        return None

    return local.eventually(look, "an executor")


def probe(spark: SparkSession, checkpoint: str) -> dict[str, Any]:
    """What the file manager does with entries that exist, that are given up, and that are new."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path
    directory = path(f"{checkpoint}/commits")
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = directory, spark._jsparkSession.sessionState().newHadoopConf()
    manager = jvm.java.lang.Class.forName(MANAGER, True, loader).getConstructors()[0].newInstance(arguments)

    def create(name: str, *, cancels: bool = False) -> str:
        stream = manager.createAtomic(path(directory, name), False)
        stream.write(bytearray(b"v1\n{}"))
        if cancels:
            stream.cancel()
        try:
            stream.close()
        except Exception as error:
            return str(error).splitlines()[1].split(":")[1].strip()
        return "created"

    known = {name: create(name) for name in ("0", "900")}
    given_up = create("901", cancels=True)
    there = [name for name in ("0", "900", "901") if manager.exists(path(directory, name))]
    manager.delete(path(directory, "900"))
    manager.delete(path(directory, "900"))
    left = [name for name in ("0", "900") if manager.exists(path(directory, name))]
    return {"created": known, "given_up": given_up, "there": there, "left": left}


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
