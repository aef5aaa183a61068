"""The queries that are killed on Kafka, each with the same in pandas over the whole topic.

Both give rows of plain values; `identity` names how many of the first columns say which row it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from cec_it.kafka_feed import DELAY
from cec_it.plans import COUNT_WINDOW

WINDOW_S = 20
Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class KafkaPlan:
    """A query: `build` from the stream of purchases, `rows` from the table of all of them, both with `columns`."""

    columns: tuple[str, ...]
    identity: int
    build: Callable[[DataFrame], DataFrame]
    rows: Callable[[pd.DataFrame], list[Row]]


def _windows(purchases: DataFrame) -> DataFrame:
    return (
        purchases.withWatermark("ts", DELAY)
        .groupBy(f.window("ts", f"{WINDOW_S} seconds"), "key")
        .agg(f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("offset").alias("last"))
        .select(f.unix_seconds("window.start").alias("start"), "key", "n", "total", "last")
    )


def _windows_in_pandas(table: pd.DataFrame) -> list[Row]:
    seconds = (table["ts"] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)
    starts = table.assign(start=seconds // WINDOW_S * WINDOW_S)
    by_window = starts.groupby(["start", "key"]).agg(n=("id", "count"), total=("amount", "sum"), last=("offset", "max"))
    closed = by_window.reset_index()
    # The watermark is behind the records at the topic's end, whose own windows stay open.
    return _rows(closed[closed["start"] + WINDOW_S <= seconds.max() - pd.Timedelta(DELAY).total_seconds()])


def _runs(purchases: DataFrame) -> DataFrame:
    wanted = purchases.select("key", "weight", "offset").groupBy("key")
    schema = "key LONG, first LONG, last LONG, weight DOUBLE"
    return wanted.applyInPandasWithState(
        _close_runs, schema, "n LONG, first LONG, weight DOUBLE", "append", "NoTimeout"
    )


def _close_runs(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Sum up the weights of every so many records of a key, in the order of their offsets."""
    n, first, weight = state.getOption or (0, 0, 0.0)
    full: list[Row] = []
    rows = [pair for chunk in chunks for pair in zip(chunk["offset"], chunk["weight"], strict=True)]
    for offset, more in sorted(rows):
        first, weight, n = (int(offset), 0.0, 0) if n == 0 else (first, weight, n)
        n, weight = n + 1, weight + float(more)
        if n == COUNT_WINDOW:
            full.append((key[0], first, int(offset), weight))
            n = 0
    if n:
        state.update((n, first, weight))
    elif state.exists:
        state.remove()
    if full:
        yield pd.DataFrame(full, columns=["key", "first", "last", "weight"])


def _runs_in_pandas(table: pd.DataFrame) -> list[Row]:
    found: list[Row] = []
    for key, group in table.sort_values("offset").groupby("key"):
        pairs = list(zip(group["offset"].tolist(), group["weight"].tolist(), strict=True))
        for at in range(0, len(pairs) - COUNT_WINDOW + 1, COUNT_WINDOW):
            run = pairs[at : at + COUNT_WINDOW]
            found.append((int(str(key)), run[0][0], run[-1][0], sum(weight for _, weight in run)))
    return found


def _distinct(purchases: DataFrame) -> DataFrame:
    return purchases.withWatermark("ts", DELAY).dropDuplicates(["id", "ts"]).select("id", "key", "amount")


def _distinct_in_pandas(table: pd.DataFrame) -> list[Row]:
    return _rows(table.drop_duplicates("id")[["id", "key", "amount"]])


def _rows(table: pd.DataFrame) -> list[Row]:
    return list(zip(*(table[name].tolist() for name in table.columns), strict=True))


PLANS = {
    "windows": KafkaPlan(("start", "key", "n", "total", "last"), 2, _windows, _windows_in_pandas),
    "runs": KafkaPlan(("key", "first", "last", "weight"), 2, _runs, _runs_in_pandas),
    "distinct": KafkaPlan(("id", "key", "amount"), 1, _distinct, _distinct_in_pandas),
}
