"""Pipelines for tests: what they are fed, how they are declared, and what must come out, worked out without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_cec.pipeline import Pipeline, apply_changes
from spark_cec_lab.nexmark.reachability import changes, reachability, rows_of
from testbed.changelog import fold_changes

KEPT = 4_096
"""The stored bytes that may wait in the pipeline `kept`: some batches of a branch."""

EPOCH = 1_700_000_000
DAY = 86_400
FILES, PER_FILE = 12, 60
WINDOW_S, LATE_S, LONG_S = 10, 30, 60
VERTICES = 18
EVENT = "n BIGINT, k BIGINT, v BIGINT, t TIMESTAMP"
EDGE = "a BIGINT, b BIGINT"

NODES, CHANGES, LONGEST = 9, 48, 4

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline on files below `root`; `expected` are the rows in `out`, and how often each is there.

    `declare` takes the root, and what else a `Pipeline` is told of its checkpoints.

    `go_on` is what comes in after each start. Without it a window may stay open for ever: when a query starts, Spark
    runs no batch that has no rows, even if the run that was killed had yet to run one.
    """

    declare: Callable[..., Pipeline]
    feed: Callable[[Path, int], None]
    go_on: Callable[[Path], None]
    expected: Callable[[Path], Rows]


def feed_events(directory: Path, seed: int) -> None:
    """Files of events, and two that are far ahead of all, which close the windows of the others."""
    chance = random.Random(seed)
    for number in range(FILES):
        rows = []
        for n in range(number * PER_FILE, (number + 1) * PER_FILE):
            time_s = EPOCH + n + chance.randrange(5)
            rows.append({"n": n, "k": chance.randrange(11), "v": chance.randrange(100), "t": time_s})
        _write(directory / f"{number:03d}.json", rows)
    for _ in range(2):
        another_day(directory)


def another_day(directory: Path) -> None:
    """A file with one event, a day behind all that are there."""
    number = len(list(directory.glob("*.json")))
    days = number - FILES + 1
    _write(directory / f"{number:03d}.json", [{"n": -days, "k": -1, "v": 0, "t": EPOCH + days * DAY}])


def nothing(directory: Path) -> None:
    """Nothing comes in."""


def feed_edges(directory: Path, seed: int) -> None:
    """Files of edges of a random graph."""
    chance = random.Random(seed)
    edges = [(chance.randrange(VERTICES), chance.randrange(VERTICES)) for _ in range(VERTICES + 4)]
    for number, (a, b) in enumerate(edges):
        _write(directory / f"{number:03d}.json", [{"a": a, "b": b}])


def diamond(root: str, **how: Any) -> Pipeline:
    """A source, two branches, one of them in two instances, a sink of both, and one for which nobody looks."""
    made = Pipeline("diamond", f"{root}/home", **how)

    @made.flow
    def events(spark: SparkSession) -> DataFrame:
        return _events(spark, root)

    @made.flow
    def even(events: DataFrame) -> DataFrame:
        return events.where("n % 2 = 0").withColumn("v", _touchy(root, "even", F.col("v")))

    @made.flow(instances=2, key="n", partitions=2)
    def odd(events: DataFrame) -> DataFrame:
        return events.where("n % 2 = 1").dropDuplicates(["n"])

    @made.sink(priority=2)
    def out(even: DataFrame, odd: DataFrame) -> DataStreamWriter:
        return _out(even.union(odd).select("n", "k", "v"), root, how)

    @made.sink
    def unseen(odd: DataFrame) -> DataStreamWriter:
        return odd.writeStream.format("noop")

    return made


def diamond_rows(events: Path) -> Rows:
    """Each event once: those that are far ahead have odd and even numbers below 0."""
    return Counter((e["n"], e["k"], e["v"]) for e in _read(events) if e["n"] >= 0 or e["n"] % 2 == 0)


def chain(root: str, **how: Any) -> Pipeline:
    """Four flows one behind the other, two of them with windows."""
    made = Pipeline("chain", f"{root}/home", **how)

    @made.flow
    def events(spark: SparkSession) -> DataFrame:
        return _events(spark, root)

    @made.flow(partitions=2)
    def short(events: DataFrame) -> DataFrame:
        return _windows(events, WINDOW_S, F.count("*").alias("n"), F.sum("v").alias("v"))

    @made.flow
    def named(short: DataFrame) -> DataFrame:
        return short.withColumn("v", _touchy(root, "named", F.col("v")))

    @made.flow(partitions=2)
    def long(named: DataFrame) -> DataFrame:
        return _windows(named, LONG_S, F.sum("n").alias("n"), F.sum("v").alias("v"))

    @made.sink
    def out(long: DataFrame) -> DataStreamWriter:
        rows = long.where("k >= 0").select(F.unix_timestamp("t").alias("t"), "k", "n", "v")
        return _out(rows, root, how)

    return made


def chain_rows(events: Path) -> Rows:
    """(second at which a long window begins, key, count, sum), without the events that are there to close windows."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for e in _read(events):
        if e["n"] >= 0:
            window = sums[e["t"] // LONG_S * LONG_S, e["k"]]
            window[0] += 1
            window[1] += e["v"]
    return Counter((begin, key, count, total) for (begin, key), (count, total) in sums.items())


def buckets(root: str, **how: Any) -> Pipeline:
    """Two branches, one of which lags behind the other, and windows over both, read by buckets of a second."""
    made = Pipeline("buckets", f"{root}/home", **how)

    @made.flow
    def events(spark: SparkSession) -> DataFrame:
        return _events(spark, root)

    @made.flow
    def even(events: DataFrame) -> DataFrame:
        return events.where("pmod(n, 2) = 0")

    @made.flow(partitions=2)
    def odd(events: DataFrame) -> DataFrame:
        return events.where("pmod(n, 2) = 1").dropDuplicates(["n"])

    late = f"{LATE_S} seconds"

    @made.flow(partitions=2, bucket="1s", watermarks={"even": ("t", late), "odd": ("t", late)})
    def short(even: DataFrame, odd: DataFrame) -> DataFrame:
        return _shares(even, odd)

    @made.sink
    def out(short: DataFrame) -> DataStreamWriter:
        return _out(_right(short), root, how)

    return made


def kept(root: str, **how: Any) -> Pipeline:
    """As `buckets`, where each branch has a source of its own. One stands still for four seconds now and then, and few
    bytes of the other one may wait for it.
    """
    made = Pipeline("kept", f"{root}/home", **how)

    @made.flow
    def even(spark: SparkSession) -> DataFrame:
        return _events(spark, root).where("pmod(n, 2) = 0")

    @made.flow
    def odd(spark: SparkSession) -> DataFrame:
        return _events(spark, root).where("pmod(n, 2) = 1").withColumn("v", _slow(F.col("n"), F.col("v")))

    late = f"{LATE_S} seconds"

    @made.flow(partitions=2, bucket="1s", watermarks={"even": ("t", late), "odd": ("t", late)}, keep=KEPT)
    def short(even: DataFrame, odd: DataFrame) -> DataFrame:
        return _shares(even, odd)

    @made.sink
    def out(short: DataFrame) -> DataStreamWriter:
        return _out(_right(short), root, how)

    return made


PACES = [
    ("process", "suspend"), ("process", "process"), ("delay", "delay"), ("process", "delay"), ("delay", "process"),
    ("delay", "suspend"),
]  # fmt: skip
"""Of an epoch: while an input is away, and while the flow catches up."""


def feed_away(directory: Path, seed: int) -> None:
    """As `feed_events`, with the paces of this seed beside the files."""
    feed_events(directory, seed)
    (directory.parent / "paces.json").write_text(json.dumps(PACES[seed % len(PACES)]))


def away(root: str, rows: int = 0, **how: Any) -> Pipeline:
    """As `buckets`, within a second, where one branch stands still for four seconds now and then.

    `rows` bounds a batch of the flow; so few make a correction that takes many batches. 0: no bound.
    """
    made = Pipeline("away", how.pop("home", f"{root}/home"), **how)
    _answer_without(made, root, rows)

    @made.sink
    def out(short: DataFrame) -> DataStreamWriter:
        return _out(_right(short), root, how)

    @made.sink(tentative=True)
    def board(short: DataFrame) -> DataStreamWriter:
        return _board(short, root)

    return made


def away_chain(root: str, **how: Any) -> Pipeline:
    """As `away`, and one more flow answers within a second, from the answers of the first one."""
    made = Pipeline("away-chain", how.pop("home", f"{root}/home"), **how)
    _answer_without(made, root)
    within: dict[str, Any] = {"within": "1s", **_paces(root), "watermarks": {"short": ("t", "0 seconds")}}

    @made.flow(partitions=2, **within)
    def long(short: DataFrame) -> DataFrame:
        grouped = short.groupBy(F.window("t", f"{LONG_S} seconds").alias("w"), "k")
        sums = grouped.agg(*(F.sum(each).alias(each) for each in ("n", "v", "share")))
        return sums.select(F.window_time("w").alias("t"), "k", "n", "v", "share")

    @made.sink
    def out(long: DataFrame) -> DataStreamWriter:
        return _out(_right(long), root, how)

    @made.sink(tentative=True)
    def board(long: DataFrame) -> DataStreamWriter:
        return _board(long, root)

    return made


def _paces(root: str) -> dict[str, str]:
    pace, pace_after = json.loads((Path(root) / "paces.json").read_text())
    return {"while_away": pace, "while_correcting": pace_after}


def _answer_without(made: Pipeline, root: str, rows: int = 0) -> None:
    """The flows of `away`."""

    @made.flow
    def events(spark: SparkSession) -> DataFrame:
        return _events(spark, root)

    @made.flow
    def even(events: DataFrame) -> DataFrame:
        return events.where("pmod(n, 2) = 0")

    @made.flow
    def odd(events: DataFrame) -> DataFrame:
        return events.where("pmod(n, 2) = 1").withColumn("v", _slow(F.col("n"), F.col("v")))

    late = f"{LATE_S} seconds"
    within: dict[str, Any] = {"within": "1s", **_paces(root), "watermarks": dict.fromkeys(("even", "odd"), ("t", late))}
    reads = {"reads": {"maxRowsPerTrigger": str(rows)}} if rows else {}

    @made.flow(partitions=2, **within, **reads)
    def short(even: DataFrame, odd: DataFrame) -> DataFrame:
        return _shares(even, odd)


def _board(rows: DataFrame, root: str) -> DataStreamWriter:
    """A table of all answers, the tentative ones among them."""
    shown = _right(rows, "_kind", "_epoch")
    return shown.writeStream.foreachBatch(apply_changes(f"{root}/board.db", "board", ["t", "k"], changes=True))


def read_board(root: Path) -> tuple[Rows, Rows]:
    """The stable rows on the board of a pipeline, and the tentative ones. Its changelog, folded, must be the board."""
    columns = ["t", "k", "n", "v", "tentative"]
    with contextlib.closing(sqlite3.connect(root / "board.db")) as board:
        rows = board.execute("SELECT t, k, n, v, _epoch FROM board_rows").fetchall()
        shown = board.execute(f"SELECT {', '.join(columns)} FROM board").fetchall()
        assert fold_changes(board, "board", columns) == Counter(shown), root
    return Counter(row[:4] for row in rows if not row[4]), Counter(row[:4] for row in rows if row[4])


def closure(root: str, **how: Any) -> Pipeline:
    """The pairs of vertices that a path joins: a flow that reads its own channel."""
    made = Pipeline("closure", f"{root}/home", **how)

    @made.flow
    def edges(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(EDGE).option("maxFilesPerTrigger", "1").json(f"{root}/in")

    @made.flow(schema=EDGE, partitions=2)
    def paths(edges: DataFrame, paths: DataFrame) -> DataFrame:
        longer = paths.alias("p").join(edges.alias("e"), F.expr("p.b = e.a")).select("p.a", "e.b")
        return edges.union(longer).dropDuplicates(["a", "b"])

    @made.sink
    def out(paths: DataFrame) -> DataStreamWriter:
        return _out(paths, root, how)

    return made


def closure_rows(edges: Path) -> Rows:
    """Warshall's algorithm."""
    joined = {(e["a"], e["b"]) for e in _read(edges)}
    for middle in range(VERTICES):
        joined |= {(a, d) for a, b in joined if b == middle for c, d in joined if c == middle}
    return Counter(dict.fromkeys(joined, 1))


def feed_changes(directory: Path, seed: int) -> None:
    """Files of two changes each to a graph."""
    all_of_them = list(changes(seed, CHANGES, NODES))
    for number in range(0, CHANGES, 2):
        rows = [dict(zip(("kind", "a", "b", "weight"), each, strict=True)) for each in all_of_them[number : number + 2]]
        _write(directory / f"{number:03d}.json", rows)


def reachable_rows(directory: Path) -> Rows:
    """What comes and goes, row by row: `python/tests/lab/nexmark` compares what is left of it with another program."""
    return Counter(rows_of(((e["kind"], e["a"], e["b"], e["weight"]) for e in _read(directory)), LONGEST))


CASES = {
    "diamond": Case(diamond, feed_events, nothing, diamond_rows),
    "chain": Case(chain, feed_events, another_day, chain_rows),
    "buckets": Case(buckets, feed_events, another_day, chain_rows),
    "kept": Case(kept, feed_events, another_day, chain_rows),
    "away": Case(away, feed_away, another_day, chain_rows),
    "corrected": Case(partial(away, rows=40), feed_away, another_day, chain_rows),
    "away-chain": Case(away_chain, feed_away, another_day, chain_rows),
    "closure": Case(closure, feed_edges, nothing, closure_rows),
    "reachability": Case(
        lambda root, **how: reachability(f"{root}/home", root, LONGEST, **how), feed_changes, nothing, reachable_rows
    ),
}


def fail_once(root: Path, flow: str) -> None:
    """The next row that the flow's function looks at makes it fail."""
    (root / f"fail-{flow}").touch()


def _touchy(root: str, flow: str, column: Column) -> Column:
    """The column; looking at it fails once where a file says so."""
    marker = f"{root}/fail-{flow}"

    def look(value: int) -> int:
        found = Path(marker)
        if found.exists():
            found.unlink()
            raise RuntimeError(f"flow {flow} was told to fail")
        return value

    return F.udf(look, "bigint")(column)


def _shares(even: DataFrame, odd: DataFrame) -> DataFrame:
    """Sums of both branches by key and long window, of integers and of doubles; `t` is the last moment of a window.

    For such a column a channel has a boundary.
    """
    rows = even.select("t", "k", "v").unionByName(odd.select("t", "k", "v"))
    grouped = rows.groupBy(F.window("t", f"{LONG_S} seconds").alias("w"), "k")
    found = grouped.agg(F.count("*").alias("n"), F.sum("v").alias("v"), F.sum(F.col("v") / 4).alias("share"))
    return found.select(F.window_time("w").alias("t"), "k", "n", "v", "share")


def _right(short: DataFrame, *more: str) -> DataFrame:
    """The rows whose two sums agree, without the events that are there to close windows. Rows of kind undo stay.

    `t` is the second at which a window begins.
    """
    is_right = F.expr("k >= 0 AND share = v / 4")
    kept = is_right | F.expr("_kind = 'undo'") if more else is_right
    begin = (F.unix_timestamp("t") - (LONG_S - 1)).alias("t")
    return short.where(kept).select(begin, "k", "n", "v", *more)


def _slow(n: Column, v: Column) -> Column:
    """The values `v`. Some rows take four seconds."""

    def look(number: int, value: int) -> int:
        if number % (3 * PER_FILE) == PER_FILE + 1:
            time.sleep(4)
        return value

    return F.udf(look, "bigint")(n, v)


def _events(spark: SparkSession, root: str) -> DataFrame:
    stream = spark.readStream.schema("n BIGINT, k BIGINT, v BIGINT, t BIGINT").option("maxFilesPerTrigger", "1")
    return stream.json(f"{root}/in").withColumn("t", F.timestamp_seconds("t"))


def _windows(rows: DataFrame, seconds: int, *sums: Column) -> DataFrame:
    """Sums by key and window of so many seconds; `t` is where a window begins."""
    late = rows.withWatermark("t", f"{LATE_S} seconds")
    grouped = late.groupBy(F.window("t", f"{seconds} seconds").alias("w"), "k").agg(*sums)
    return grouped.select(F.col("w.start").alias("t"), "k", "n", "v")


def _out(rows: DataFrame, root: str, how: Mapping[str, Any]) -> DataStreamWriter:
    """Files: of batches that are taken back and come again with other rows, where they leave the pipeline at once."""
    if how.get("release") != "at-once":
        return rows.writeStream.format("parquet").option("path", f"{root}/out")
    return rows.writeStream.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(f"{root}/out"))


def _write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (EPOCH + int(path.stem),) * 2)  # Spark reads files in the order of their times


def _read(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.json")) for line in path.read_text().splitlines()]
