"""`make soak`: one query for so many minutes, with a busy store and quiet ones; everything that might grow, as a plot.

    python -m cec_it.soak --minutes 30 --out soak-output

Every `RESTART_EVERY_S` the query is stopped and started again. Samples go to `soak.jsonl` as they are taken, the plot
to `soak.png` at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = [str(ROOT / "python"), str(ROOT / "integration-tests"), str(ROOT / "support")]
sys.path[:0] = [path for path in OURS if path not in sys.path]

from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402
from pyspark.sql.streaming.query import StreamingQuery  # noqa: E402

from cec_it import local  # noqa: E402
from cec_it.driver import session_builder  # noqa: E402

SAMPLE_EVERY_S = 10.0
RESTART_EVERY_S = 120.0
PARTITIONS = 4
EARLY_ROWS = 4_000
ROWS = 200
SETTINGS = {"footprintAge": "200", "log.segmentBytes": "256KiB", "output.retainBatches": "200"}
"""Bounds that half an hour goes past many times."""

PANELS = (
    ("commit_ms", "commit, ms (median)"),
    ("batch_ms", "batch, ms (median)"),
    ("start_ms", "start() to the first batch, ms"),
    ("log_bytes", "log, bytes"),
    ("segments", "segments"),
    ("index_bytes", "index, bytes"),
    ("agent_rss_bytes", "agent's memory, bytes"),
    ("heap_bytes", "heap after GC, bytes"),
    ("agent_files", "agent's open files"),
    ("jvm_files", "JVM's open files"),
)


def quiet_and_busy(spark: SparkSession) -> DataFrame:
    """Counts by key: the first rows open windows in all stores, all others touch those of partition 0 alone."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    keyed = rate.select("value", (f.col("value") % 400).alias("key"))
    busy = f.pmod(f.hash("key"), f.lit(PARTITIONS)) == 0
    return keyed.filter((f.col("value") < EARLY_ROWS) | busy).groupBy("key").agg(f.count("*").alias("n"))


class Soak:
    """The query, its restarts and its samples."""

    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
        self.spark = local.session(spark, {**SETTINGS, "index.path": str(scratch / "index")}, **partitions)
        self.scratch = scratch
        self.checkpoint = scratch / "checkpoint"
        self.began = time.monotonic()
        self.start_ms = 0.0
        self.streaming = self.start()

    def start(self) -> StreamingQuery:
        """A start of the query; timed until its first progress."""
        began = time.monotonic()
        writer = quiet_and_busy(self.spark).writeStream.format("cec").outputMode("update")
        streaming = writer.option("checkpointLocation", str(self.checkpoint)).start()
        while streaming.lastProgress is None:
            if streaming.awaitTermination(0.02):
                raise AssertionError("the query ended before its first batch")
        self.start_ms = (time.monotonic() - began) * 1000
        return streaming

    def restart(self) -> None:
        """Stop and start."""
        self.streaming.stop()
        self.streaming = self.start()

    def sample(self) -> dict[str, float]:
        """Everything that might grow."""
        recent = self.streaming.recentProgress[-50:]
        jvm = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        agent = local.agent_pid(self.spark)
        return {
            "minutes": (time.monotonic() - self.began) / 60,
            "batch": recent[-1]["batchId"],
            "commit_ms": statistics.median(_metric(each, "cecCommitMs") for each in recent),
            "batch_ms": statistics.median(each["batchDuration"] for each in recent),
            "start_ms": self.start_ms,
            "log_bytes": _bytes(self.checkpoint / "cec" / "log" / "segments"),
            "segments": len(local.files_in(self.checkpoint / "cec" / "log" / "segments")),
            "index_bytes": _bytes(self.scratch / "index"),
            "agent_rss_bytes": _rss(agent),
            "heap_bytes": self._heap(),
            "agent_files": _files(agent),
            "jvm_files": _files(jvm),
        }

    def _heap(self) -> int:
        lang = self.spark._jvm.java.lang  # type: ignore[union-attr]
        lang.System.gc()
        runtime = lang.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())

    def run(self, minutes: float, out: Path) -> list[dict[str, float]]:
        """So many minutes; the samples, which are in `soak.jsonl` too."""
        samples: list[dict[str, float]] = []
        restarted = time.monotonic()
        with (out / "soak.jsonl").open("w") as lines:
            while time.monotonic() - self.began < minutes * 60:
                if self.streaming.awaitTermination(SAMPLE_EVERY_S):
                    raise AssertionError("the query ended by itself")
                samples.append(self.sample())
                print(json.dumps(samples[-1]), file=lines, flush=True)
                if time.monotonic() - restarted > RESTART_EVERY_S:
                    self.restart()
                    restarted = time.monotonic()
        self.streaming.stop()
        return samples


def _metric(progress: Mapping[str, Any], name: str) -> float:
    return float(progress["stateOperators"][0]["customMetrics"].get(name, 0))


def _bytes(below: Path) -> int:
    total = 0
    for path in local.files_in(below):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def draw(samples: Sequence[Mapping[str, float]], path: Path) -> None:
    """One panel for each quantity, over minutes, from zero."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, 2, figsize=(12, 14), sharex=True, layout="constrained")
    for axis, (name, title) in zip(axes.flat, PANELS, strict=True):
        axis.plot([each["minutes"] for each in samples], [each[name] for each in samples], linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
    for axis in axes[-1]:
        axis.set_xlabel(f"minutes ({int(samples[-1]['batch']):,} batches)")
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m cec_it.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("soak-output"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        scratch = Path(directory)
        os.environ.update(PYTHONPATH=os.pathsep.join(OURS), PYSPARK_PYTHON=sys.executable, TMPDIR=directory)
        spark = session_builder(scratch, "local[2]").getOrCreate()
        try:
            samples = Soak(spark, scratch).run(options.minutes, options.out)
        finally:
            spark.stop()
    draw(samples, options.out / "soak.png")
    print(f"{len(samples)} samples in {options.out}/soak.jsonl, drawn in {options.out}/soak.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
