"""Queries of every stateful kind on several stores: prints the rows of each batch as JSON. No crash, all defaults.

`python -m cec_it.same_rows ROOT MASTER [KEY=VALUE ...]`: `ROOT/events` has the input, one file a batch. So each batch
is one map task, and a key's rows have one order, which Spark delivers and functions may rest on.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

import spark_cec
from cec_it.driver import session_builder
from cec_it.references import PROVIDER_KEY

PROVIDERS = {
    "cec": "org.apache.spark.sql.cec.CecStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

SCHEMA = "key LONG, amount INT, seq LONG, x DOUBLE, word STRING, ts TIMESTAMP"
BATCHES, ROWS = 6, 90

Build = Callable[[DataFrame], DataFrame]


def write_events(root: Path, seed: int) -> None:
    """Ties, rows that are late, zeros of both signs, and numbers that cancel each other out."""
    dice = random.Random(seed)
    root.mkdir(parents=True)
    for number in range(BATCHES):
        lines = []
        for row in range(ROWS):
            late = dice.randrange(60) if dice.random() < 0.2 else dice.randrange(8)
            second = max(number * 15 + 20 - late, 0)
            lines.append(
                {
                    "key": dice.randrange(7),
                    "amount": dice.randrange(5),
                    "seq": number * ROWS + row,
                    "x": dice.choice([0.0, -0.0, 1e17, -1e17, 0.1, dice.uniform(-5, 5)]),
                    "word": dice.choice(["a", "b", "B", None]),
                    "ts": f"2024-01-01T00:{second // 60:02d}:{second % 60:02d}Z",
                }
            )
        (root / f"{number:03d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def follow(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """What was seen last, and a trail of all rows in their order; a timeout is a part of it."""
    n, trail = state.getOption or (0, 0)
    for rows in chunks:
        for seq, amount in zip(rows["seq"], rows["amount"], strict=True):
            n, trail = n + 1, (31 * trail + 7 * int(seq) + int(amount)) % (2**61 - 1)
    if state.hasTimedOut:
        trail = -trail
        state.remove()
    else:
        state.update((n, trail))
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 20_000)
    yield pd.DataFrame([(key[0], n, trail)], columns=["key", "n", "trail"])


def _watched(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds")


def _windows(events: DataFrame) -> DataFrame:
    grouped = _watched(events).groupBy(f.window("ts", "20 seconds", "10 seconds"), "key")
    return grouped.agg(f.count("*"), f.sum("amount"), f.avg("amount"), f.sum("x"), f.last("seq"), f.max("x"))


def _functions(events: DataFrame, mode: str) -> DataFrame:
    groups = _watched(events).groupBy("key")
    return groups.applyInPandasWithState(
        follow, "key LONG, n LONG, trail LONG", "n LONG, trail LONG", mode, "EventTimeTimeout"
    )


def _join(events: DataFrame) -> DataFrame:
    left = _watched(events).where("amount < 2").select("key", "seq", f.col("ts").alias("at"))
    right = events.where("amount > 2").select(f.col("key").alias("k"), f.col("seq").alias("s"), "ts")
    near = f.expr("key = k AND ts BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 5 SECONDS")
    return left.join(right.withWatermark("ts", "10 seconds"), near, "leftOuter")


def _chain(events: DataFrame) -> DataFrame:
    cells = _watched(events).groupBy(f.window("ts", "10 seconds"), "key").agg(f.count("*").alias("n"))
    # In which order windows close is up to the store, and differs between Spark's own: nothing here depends on it.
    return cells.groupBy(f.window(f.window_time("window"), "30 seconds")).agg(f.sum("n"), f.max("key"))


QUERIES: dict[str, tuple[Build, str]] = {
    "order-dependent aggregates": (
        lambda e: e.groupBy("key").agg(
            f.first("seq"), f.last("word"), f.collect_list("seq"), f.max_by("seq", "amount"), f.count("*")
        ),
        "update",
    ),
    "sums of doubles": (
        lambda e: e.groupBy("key").agg(f.sum("x"), f.avg("x"), f.stddev("x"), f.corr("x", "amount"), f.min("x")),
        "complete",
    ),
    "sorted totals": (lambda e: e.groupBy("key").agg(f.sum("amount").alias("n")).orderBy("n", "key"), "complete"),
    "windows, append": (_windows, "append"),
    "windows, update": (_windows, "update"),
    "windows, complete": (_windows, "complete"),
    "sessions": (
        lambda e: _watched(e).groupBy(f.session_window("ts", "4 seconds"), "key").agg(f.count("*"), f.last("seq")),
        "append",
    ),
    "first of duplicates": (lambda e: e.dropDuplicates(["key", "amount", "word"]), "append"),
    "duplicates by time": (lambda e: _watched(e).dropDuplicates(["key", "ts"]), "append"),
    "duplicates within": (lambda e: _watched(e).dropDuplicatesWithinWatermark(["key", "amount"]), "append"),
    "join": (_join, "append"),
    "limit": (lambda e: e.limit(200), "append"),
    "chain": (_chain, "append"),
    "function, update": (lambda e: _functions(e, "update"), "update"),
    "function, append": (lambda e: _functions(e, "append"), "append"),
    "count windows": (
        lambda e: spark_cec.count_window(e, "key", 5, [f.first("seq"), f.last("seq"), f.sum("x")], order_by="amount"),
        "append",
    ),
    "count windows as rows come": (
        lambda e: spark_cec.count_window(e, "key", 5, [f.first("seq"), f.last("seq"), f.sum("x")]),
        "append",
    ),
}


def place(root: Path, store: str, name: str) -> Path:
    """The checkpoint of a query."""
    return root / store / name.replace(" ", "-").replace(",", "")


def run(spark: SparkSession, root: Path, store: str, name: str, into: dict[int, list[str]]) -> StreamingQuery:
    """All files, one a batch, to the end."""
    build, mode = QUERIES[name]

    def keep(rows: DataFrame, batch: int) -> None:
        into[batch] = sorted(map(repr, rows.collect()))

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "events"))
    writer = build(stream).writeStream.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(place(root, store, name))).start()


def main(root: Path, master: str, confs: list[str]) -> None:
    builder = session_builder(root / "scratch", master).config("spark.sql.shuffle.partitions", "3")
    for conf in confs:
        builder = builder.config(*conf.split("=", 1))
    spark = builder.getOrCreate()
    found: dict[str, dict[str, dict[int, list[str]]]] = {}
    for store, provider in PROVIDERS.items():
        spark.conf.set(PROVIDER_KEY, provider)
        found[store] = {name: {} for name in QUERIES}
        running = [run(spark, root, store, name, found[store][name]) for name in QUERIES]
        for query in running:
            query.awaitTermination()
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
