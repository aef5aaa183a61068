"""The programs and commands in the documents, run as they are written there."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cec_it.local import eventually
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.storage import Storage
from spark_cec.recovery.spark_logs import committed_batch
from testbed.processes import Child

ROOT = Path(__file__).resolve().parents[1]
ROWS_PER_KEY = 10


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in that language; `""`: without one."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [code for named, code in found if named == language]


def has_committed(checkpoint: Storage, batch: int, program: Child) -> bool | None:
    """Whether that batch is committed; fails if the program has ended."""
    assert not program.ends_within(0), f"the program has ended; see {program.log}"
    return True if committed_batch(checkpoint) >= batch else None


@pytest.mark.long  # it has Spark's 200 partitions
def test_the_first_query_runs_and_comes_back_as_its_page_says(spark: SparkSession, tmp_path: Path) -> None:
    (program,) = blocks("first-query.md", "python")
    (commands,) = (each for each in blocks("first-query.md", "") if "cec inspect" in each)
    assert "/tmp/first/checkpoint" in program and "/tmp/first/checkpoint" in commands
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "program.py"
    file.write_text(program.replace("/tmp/first/checkpoint", str(checkpoint)))
    storage, reached = open_storage(str(checkpoint)), -1
    for _ in range(2):
        child = Child([sys.executable, str(file)], tmp_path / "log", {"SPARK_LOCAL_IP": "127.0.0.1"})
        try:
            eventually(partial(has_committed, storage, reached + 3, child), f"batches; see {child.log}", 120)
        finally:
            child.kill()
        reached = committed_batch(storage)
    for line in commands.replace("/tmp/first/checkpoint", str(checkpoint)).splitlines():
        command = line.partition("#")[0].split()
        command[0] = str(Path(sys.executable).with_name(command[0]))
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout.decode()} {done.stderr.decode()}"
    rows = spark.read.format("cec").load(str(checkpoint))
    newest = [row["count"] for row in rows.groupBy("key").agg(f.max("count").alias("count")).collect()]
    # The source gives the numbers from 0 on, in order: each key has its share of them.
    assert len(newest) == 100
    assert max(newest) - min(newest) <= 1
    assert sum(newest) >= 100 * ROWS_PER_KEY


def test_the_rows_are_read_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    written, read = blocks("reading.md", "python")[:2]
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    counts = rows.groupBy((f.col("value") % 3).alias("key")).count()
    names = {"counts": counts.withColumnRenamed("count", "n"), "checkpoint": str(tmp_path), "spark": spark}
    exec(written.replace('.format("cec")', '.format("cec").outputMode("update")'), names)
    query = names["query"]
    try:
        eventually(lambda: True if query.lastProgress and query.lastProgress["batchId"] >= 2 else None, "batches")
    finally:
        query.stop()
    for line in read.splitlines():
        found = eval(line.partition("#")[0], names).collect()
        assert len(found) >= 3, line
