"""The streaming queries under test, each from a pair of feeds to a result that is the same in every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

import spark_cec

Feed = Callable[[str], DataFrame]
"""One side of the input, `left` or `right`."""

COUNT_WINDOW = 7
_COUNTED = "key LONG, first LONG, last LONG, total LONG"


@dataclass(frozen=True, slots=True)
class Plan:
    """A query. `key` names the columns that identify a row of an update-mode result, of which the last one counts."""

    build: Callable[[Feed], DataFrame]
    mode: str = "append"
    key: tuple[str, ...] = ()


def _per_window(feed: Feed, length: str = "20 seconds") -> DataFrame:
    return (
        feed("left")
        .withWatermark("ts", "10 seconds")
        .groupBy(f.window("ts", length), "key")
        .agg(f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("seq").alias("last"))
        .select(f.col("window.start").alias("start"), "key", "n", "total", "last")
    )


def _doubles(feed: Feed) -> DataFrame:
    """Sums of eighths, which are exact: Spark adds the rows of several tasks in any order."""
    eighths = f.col("amount").cast("double") / 8
    return (
        feed("left")
        .withWatermark("ts", "10 seconds")
        .groupBy(f.window("ts", "20 seconds"), "key")
        .agg(f.count("*").alias("n"), f.sum(eighths).alias("total"), f.avg(eighths).alias("mean"))
        .select(f.col("window.start").alias("start"), "key", "n", "total", "mean")
    )


def _stumbling(feed: Feed) -> DataFrame:
    """As update-mode windows, but the first task to put out a window fails; `TMPDIR` says where that is noted."""
    notes = os.environ["TMPDIR"]

    @f.udf("long")
    def stumble(start: datetime, n: int) -> int:
        try:
            (Path(notes) / f"stumbled-{start:%H%M%S}").touch(exist_ok=False)
        except FileExistsError:
            return n
        raise OSError("this task fails once")

    return _per_window(feed).withColumn("n", stumble("start", "n"))


def _rows(feed: Feed) -> DataFrame:
    return feed("left").select("key", "amount", "seq")


def _totals(feed: Feed) -> DataFrame:
    return feed("left").groupBy("key").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))


def _grand_total(feed: Feed) -> DataFrame:
    return feed("left").agg(f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("seq").alias("last"))


def _distinct(feed: Feed) -> DataFrame:
    return feed("left").select("key", f.pmod("amount", f.lit(40)).alias("bucket")).dropDuplicates()


def _distinct_within(feed: Feed) -> DataFrame:
    # All rows of a batch have one `at`: which of several duplicates comes first makes no difference.
    buckets = feed("left").select(f.pmod("amount", f.lit(150)).alias("bucket"), "at")
    return buckets.withWatermark("at", "15 seconds").dropDuplicatesWithinWatermark(["bucket"])


def _sessions(feed: Feed) -> DataFrame:
    return (
        feed("left")
        .withWatermark("ts", "10 seconds")
        .groupBy(f.session_window("ts", "2 seconds"), "key")
        .agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
        .select(
            f.col("session_window.start").alias("start"), f.col("session_window.end").alias("end"), "key", "n", "total"
        )
    )


def _join(feed: Feed) -> DataFrame:
    left = feed("left").where("amount < 300").select("key", "seq", f.col("ts").alias("left_ts"))
    right = (
        feed("right")
        .where("amount < 300")
        .select(f.col("key").alias("right_key"), f.col("seq").alias("right_seq"), f.col("ts").alias("right_ts"))
    )
    near = f.expr("key = right_key AND right_ts BETWEEN left_ts - INTERVAL 5 SECONDS AND left_ts + INTERVAL 5 SECONDS")
    joined = left.withWatermark("left_ts", "10 seconds").join(
        right.withWatermark("right_ts", "10 seconds"), near, "leftOuter"
    )
    return joined.select("key", "seq", "left_ts", "right_seq", "right_ts")


def _chain(feed: Feed) -> DataFrame:
    return (
        feed("left")
        .withWatermark("ts", "10 seconds")
        .groupBy(f.window("ts", "10 seconds"), "key")
        .agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
        .groupBy(f.window(f.window_time("window"), "20 seconds"), f.pmod("key", f.lit(5)).alias("group"))
        .agg(f.count("*").alias("cells"), f.sum("n").alias("n"), f.max("total").alias("most"))
        .select(f.col("window.start").alias("start"), "group", "cells", "n", "most")
    )


def _common_table(feed: Feed) -> DataFrame:
    rows = feed("left").withWatermark("ts", "10 seconds")
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.sql("""
        WITH cells AS (
            SELECT window(ts, '10 seconds') AS cell, key, count(*) AS n, sum(amount) AS total
            FROM rows GROUP BY window(ts, '10 seconds'), key)
        SELECT window(window_time(cell), '20 seconds') AS w, key % 5 AS group,
               count(*) AS cells, sum(n) AS n, max(total) AS most
        FROM cells GROUP BY window(window_time(cell), '20 seconds'), key % 5""").selectExpr(
        "w.start AS start", "group", "cells", "n", "most"
    )


def _count_windows(feed: Feed) -> DataFrame:
    events = feed("left").select("key", "amount", "seq").groupBy("key")
    return events.applyInPandasWithState(close_full, _COUNTED, "n LONG, total LONG, first LONG", "append", "NoTimeout")


def _native_count_windows(feed: Feed) -> DataFrame:
    """The same without Python."""
    columns = [f.first("seq").alias("first"), f.last("seq").alias("last"), f.sum("amount").alias("total")]
    return spark_cec.count_window(feed("left"), "key", COUNT_WINDOW, columns, order_by=["seq", "amount"])


def close_full(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Add rows to the open count window of `key`, in the order of `seq`; yield those that this fills.

    A window that is full is forgotten; a key whose rows fill it exactly has no window until its next row.
    """
    n, total, first = state.getOption or (0, 0, 0)
    full: list[tuple[int, int, int, int]] = []
    for seq, amount in sorted(pair for rows in chunks for pair in zip(rows["seq"], rows["amount"], strict=True)):
        first = int(seq) if n == 0 else first
        n, total = n + 1, total + int(amount)
        if n == COUNT_WINDOW:
            full.append((key[0], first, int(seq), total))
            n, total = 0, 0
    if n:
        state.update((n, total, first))
    elif state.exists:
        state.remove()
    if full:
        yield pd.DataFrame(full, columns=["key", "first", "last", "total"])


def _last_value(feed: Feed, in_order: bool = False) -> DataFrame:
    """Arbitrary state that depends on the order of rows, which come from many tasks."""
    rows = feed("left").select(f.pmod("key", f.lit(5)).alias("key"), "amount", "seq").repartition(6).groupBy("key")
    function = keep_last_of_sorted if in_order else keep_last
    return rows.applyInPandasWithState(function, _LAST, "n LONG, last LONG, trail LONG", "update", "NoTimeout")


_LAST = "key LONG, n LONG, last LONG, trail LONG"


def keep_last_of_sorted(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """As `keep_last`, but of rows in the order of their columns."""
    rows = pd.concat(list(chunks)).sort_values(["key", "amount", "seq"])
    yield from keep_last(key, [rows], state)


def keep_last(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Keep the last amount seen, and a trail of all rows in the order in which they were seen."""
    n, last, trail = state.getOption or (0, 0, 0)
    for rows in chunks:
        for amount, seq in zip(rows["amount"], rows["seq"], strict=True):
            n, last, trail = n + 1, int(amount), (31 * trail + 7 * int(amount) + int(seq)) % (2**61 - 1)
    state.update((n, last, trail))
    yield pd.DataFrame([(key[0], n, last, trail)], columns=["key", "n", "last", "trail"])


PLANS = {
    "rows": Plan(_rows),
    "window-append": Plan(_per_window),
    "stumbling": Plan(_stumbling, "update", ("start", "key")),
    "window-update": Plan(_per_window, "update", ("start", "key")),
    "long-windows": Plan(partial(_per_window, length="100 seconds")),
    "long-window-updates": Plan(partial(_per_window, length="100 seconds"), "update", ("start", "key")),
    "doubles": Plan(_doubles, "update", ("start", "key")),
    "totals": Plan(_totals, "complete"),
    "grand-total": Plan(_grand_total, "complete"),
    "distinct": Plan(_distinct),
    "distinct-within": Plan(_distinct_within),
    "sessions": Plan(_sessions),
    "count-windows": Plan(_count_windows),
    "native-count-windows": Plan(_native_count_windows),
    "last-value": Plan(_last_value, "update", ("key",)),
    "last-value-sorted": Plan(partial(_last_value, in_order=True), "update", ("key",)),
    "join": Plan(_join),
    "chain": Plan(_chain),
    "common-table": Plan(_common_table),
}
