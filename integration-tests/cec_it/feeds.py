"""Input that is the same in every run: generated JSON files, and Spark's `rate-micro-batch` with hashed columns."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timezone
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

START_MS = 1_700_000_000_000
STEP_MS = 10_000
KEYS = 41
SCHEMA = "key LONG, amount LONG, seq LONG, ts TIMESTAMP, at TIMESTAMP"
SALTS = {"left": 1, "right": 2}
RATE = "rate"
FILES = "files"

_LATE_MS = 14_000
_PUNCTUAL_MS = 9_000


def write_file(directory: Path, side: str, number: int, rows: int) -> Path:
    """Write file `number` of a feed: `rows` events, none of them late.

    None may be late because after a crash the file source may put two files into one batch, with an older watermark.
    """
    dice = random.Random(f"{side}-{number}")
    at = START_MS + number * STEP_MS
    lines = [
        {
            "key": dice.randrange(KEYS),
            "amount": dice.randrange(1000),
            "seq": number * rows + i,
            "ts": _iso(at - dice.randrange(_PUNCTUAL_MS)),
            "at": _iso(at),
        }
        for i in range(rows)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:05d}.json"
    hidden = directory / f".{path.name}"
    hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # The file source takes files in the order of their times of modification.
    os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
    hidden.rename(path)
    return path


def write_files(root: Path, files: int, rows: int) -> Path:
    """Write both sides of a feed under `root`; returns `root`."""
    for side in SALTS:
        for number in range(files):
            write_file(root / side, side, number, rows)
    return root


def read_files(spark: SparkSession, root: Path, side: str) -> DataFrame:
    """One file per micro-batch of one side of the feed under `root`."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / side))


def read_rate(spark: SparkSession, side: str, batches: int, rows: int) -> DataFrame:
    """`batches` micro-batches of `rows` events, some of them late, and empty micro-batches after those."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .option("startTimestamp", START_MS)
        .option("advanceMillisPerBatch", STEP_MS)
        .load()
        .where(f.col("value") < batches * rows)
    )
    dice = f.xxhash64("value", f.lit(SALTS[side]))
    late_ms = f.pmod(f.shiftright(dice, 24), f.lit(_LATE_MS))
    return source.select(
        f.pmod(dice, f.lit(KEYS)).alias("key"),
        f.pmod(f.shiftright(dice, 8), f.lit(1000)).alias("amount"),
        f.col("value").alias("seq"),
        f.timestamp_millis(f.unix_millis("timestamp") - late_ms).alias("ts"),
        f.col("timestamp").alias("at"),
    )


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{_utc(seconds)}.{rest:03d}Z"


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
