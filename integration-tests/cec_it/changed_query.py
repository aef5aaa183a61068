"""One life of a query that may have been changed: `python -m cec_it.changed_query ROOT MASTER FACTOR FILES END`.

It adds up whole numbers, and keeps the largest of doubles, each times FACTOR. When all FILES are read it prints the
newest rows, or how it was refused, and ends: `stop` it, `exit` without, or wait to be killed (`kill`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cec_it.driver import CEC, session_builder

KEYS, ROWS = 6, 40


def numbers(file: int) -> list[tuple[int, int, float]]:
    """Key, whole number and double of each row."""
    rows = range(file * ROWS, (file + 1) * ROWS)
    return [(row * 7 % KEYS, row * 31 % 1000, (row * 37 % 101) / 8 - 6) for row in rows]


def expected(files: int) -> dict[int, tuple[int, float]]:
    """Sum and largest of each key, undisturbed."""
    found: dict[int, tuple[int, float]] = {}
    for key, whole, double in (row for file in range(files) for row in numbers(file)):
        total, most = found.get(key, (0, double))
        found[key] = (total + whole, max(most, double))
    return found


def write(events: Path, files: int) -> None:
    events.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        path = events / f"{file:03d}.json"
        if not path.exists():
            hidden = events / f".{file}"
            lines = [json.dumps({"k": key, "v": whole, "x": double}) for key, whole, double in numbers(file)]
            hidden.write_text("\n".join(lines))
            os.utime(hidden, (1_600_000_000 + file, 1_600_000_000 + file))
            hidden.rename(path)


def main(root: Path, master: str, factor: int, files: int, end: str) -> None:
    write(root / "events", files)
    builder = session_builder(root / "scratch", master).config("spark.executor.memory", "700m")
    for key, value in {"CI": "0ms", "effort": "0"}.items():
        builder = builder.config(CEC + key, value)
    spark = builder.getOrCreate()
    newest: dict[int, tuple[int, float]] = {}

    def keep(rows: DataFrame, batch: int) -> None:
        newest.update({row.k: (row.total, row.most) for row in rows.collect()})

    reader = spark.readStream.schema("k LONG, v LONG, x DOUBLE").option("maxFilesPerTrigger", 1)
    result = reader.json(str(root / "events")).groupBy("k").agg(
        f.sum(f.col("v") * factor).alias("total"), f.max(f.col("x") * factor).alias("most")
    )
    writer = result.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        query.processAllAvailable()
        print(json.dumps({"ran": newest}), flush=True)
    except StreamingQueryException as error:
        print(json.dumps({"refused": str(error)}), flush=True)
    if end == "stop":
        query.stop()
        spark.stop()
    elif end == "kill":
        threading.Event().wait()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
