"""The undisturbed computation in pandas, and the comparison with what the queries wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from purchases_demo.layout import BY_MINUTE, BY_TEN, COUNT_WINDOW, WATERMARK_DELAY_MS, WINDOW_MS, Layout


@dataclass(frozen=True, slots=True)
class Comparison:
    """Output rows against expected rows. `different` counts wrong values and rows that should not be there at all."""

    rows: int = 0
    missing: int = 0
    duplicate: int = 0
    different: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.rows + other.rows,
            self.missing + other.missing,
            self.duplicate + other.duplicate,
            self.different + other.different,
        )

    @property
    def exact(self) -> bool:
        """Whether every expected row is there once, and nothing else."""
        return not (self.missing or self.duplicate or self.different)


def load_events(layout: Layout) -> pd.DataFrame:
    """Every event that the feeder published, in the order of `seq`; `item_time` in ms since the epoch."""
    lines = (line for file in sorted(layout.events.glob("*.json")) for line in file.read_text().splitlines())
    events = pd.DataFrame([json.loads(line) for line in lines]).sort_values("seq", ignore_index=True)
    times = pd.to_datetime(events["item_time"], utc=True, format="ISO8601")
    return events.assign(item_time=times.dt.as_unit("ms").astype("int64"))


def expected(events: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows that each query must have written once it has seen all of `events`, by the query's name."""
    return {BY_MINUTE.name: minute_averages(events), BY_TEN.name: ten_averages(events)}


def minute_averages(events: pd.DataFrame) -> pd.DataFrame:
    """Average prices of the one-minute windows that the last watermark has closed.

    Append mode writes a window when its end is at or before the watermark: the newest event time less the delay.
    """
    watermark = int(events["item_time"].max()) - WATERMARK_DELAY_MS
    start = events["item_time"] // WINDOW_MS * WINDOW_MS
    windows = (
        events.assign(window_start=start)
        .groupby(["window_start", "item_id"], as_index=False)
        .agg(purchases=("seq", "size"), sum_cents=("item_price", "sum"))
    )
    closed = windows[windows["window_start"] + WINDOW_MS <= watermark]
    return closed.assign(average_price=closed["sum_cents"] / closed["purchases"])


def ten_averages(events: pd.DataFrame) -> pd.DataFrame:
    """Average prices of every ten purchases of an item, in the order of `seq`; windows not yet full are left out."""
    number = events.groupby("item_id").cumcount() // COUNT_WINDOW
    windows = (
        events.assign(number=number)
        .groupby(["item_id", "number"], as_index=False)
        .agg(
            first_seq=("seq", "min"),
            last_seq=("seq", "max"),
            sum_cents=("item_price", "sum"),
            purchases=("seq", "size"),
        )
    )
    full = windows[windows["purchases"] == COUNT_WINDOW].drop(columns=["number", "purchases"])
    return full.assign(average_price=full["sum_cents"] / COUNT_WINDOW)


def compare(expected_rows: pd.DataFrame, actual: pd.DataFrame, key: tuple[str, ...]) -> Comparison:
    """Compare row by row; `key` names the columns that identify a row, every other expected column is a value.

    Values are compared exactly: prices are whole cents and one division, so no rounding depends on the order of sums.
    Raises `KeyError` if `actual` lacks a column.
    """
    columns = list(key)
    values = [column for column in expected_rows.columns if column not in columns]
    repeated = actual.duplicated(columns)
    both = expected_rows.merge(
        actual.loc[~repeated, columns + values], on=columns, how="outer", indicator=True, suffixes=("", "_actual")
    )
    matched = both[both["_merge"] == "both"]
    wrong = pd.Series(False, index=matched.index)
    for value in values:
        wrong |= matched[value] != matched[f"{value}_actual"]
    return Comparison(
        rows=len(actual),
        missing=int((both["_merge"] == "left_only").sum()),
        duplicate=int(repeated.sum()),
        different=int(wrong.sum() + (both["_merge"] == "right_only").sum()),
    )
