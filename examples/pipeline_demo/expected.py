"""What must come out, in pandas; and what came out, as Spark's file sink has published it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from pipeline_demo.purchases import COLUMNS, EXPENSIVE, LONG_MS
from purchases_demo.layout import WATERMARK_DELAY_MS, WINDOW_MS
from purchases_demo.reference import Comparison, compare

KEYS = {
    "by_minute": ("window_start", "item_id"),
    "by_five_minutes": ("window_start", "item_id"),
    "expensive": ("seq",),
}


def expected(events: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each sink once the pipeline has seen all of `events` (`purchases_demo.reference.load_events`)."""
    minutes = _closed(events, "item_time", WINDOW_MS, WATERMARK_DELAY_MS, {"seq": "size", "item_price": "sum"})
    sums = {"purchases": "sum", "sum_cents": "sum"}
    long = _closed(minutes, "window_start", LONG_MS, WINDOW_MS, sums)
    dear = events[events["item_price"] >= EXPENSIVE][["seq", "item_id", "item_price"]]
    return {"by_minute": minutes, "by_five_minutes": long, "expensive": dear}


def found(out: Path, name: str) -> pd.DataFrame:
    """The rows that a sink has published; none before its first batch."""
    lines = [line for path in _log(out / name / "_spark_metadata") for line in path.read_text().splitlines()[1:]]
    frames = [pd.read_parquet(json.loads(line)["path"].removeprefix("file:")) for line in lines]
    return pd.concat(frames) if frames else pd.DataFrame(columns=list(COLUMNS[name]))


def _log(directory: Path) -> list[Path]:
    """What counts of the sink's log: now and then it has one file for all batches up to there."""
    batches = {path: path.name.removesuffix(".compact") for path in directory.glob("*")}
    numbered = {path: int(number) for path, number in batches.items() if number.isdigit()}
    whole = max((number for path, number in numbered.items() if path.suffix), default=-1)
    return [path for path, number in numbered.items() if number > whole or (number == whole and path.suffix)]


def comparison(events: pd.DataFrame, out: Path) -> Comparison:
    """All sinks together."""
    wanted = expected(events)
    return sum((compare(wanted[name], found(out, name), KEYS[name]) for name in wanted), Comparison())


def _closed(rows: pd.DataFrame, time: str, window_ms: int, late_ms: int, sums: dict[str, str]) -> pd.DataFrame:
    """Sums by window and item, of the windows that end at or before the newest time less the delay."""
    start = rows[time] // window_ms * window_ms
    first, second = sums
    grouped = rows.assign(_start=start).groupby(["_start", "item_id"], as_index=False)
    windows = grouped.agg(purchases=(first, sums[first]), sum_cents=(second, sums[second]))
    windows = windows.rename(columns={"_start": "window_start"})
    return windows[windows["window_start"] + window_ms <= int(rows[time].max()) - late_ms]
