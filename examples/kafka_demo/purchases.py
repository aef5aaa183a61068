"""The purchases as Kafka records, and what the query must make of them, in pandas."""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd

from kafka_demo.layout import PARTITIONS, WATERMARK_DELAY_MS, WINDOW_MS
from purchases_demo.events import Stream
from purchases_demo.reference import Comparison
from testbed.topics import Record

_CLOSING = {"item_id": -1, "item_price": 0, "item_time": "2030-01-01T00:00:00.000Z", "seq": -1}
Row = tuple[int, ...]
COLUMNS = ("window_start", "item_id", "purchases", "sum_cents")


def records(stream: Stream, step: int) -> list[tuple[int, bytes, bytes]]:
    """One step of the stream; an item is always in the same partition."""
    lines = stream.file(step).splitlines()
    items = [json.loads(line)["item_id"] for line in lines]
    return [(item % PARTITIONS, str(item).encode(), line) for item, line in zip(items, lines, strict=True)]


def closing_records(partitions: int) -> list[tuple[int, bytes, bytes]]:
    """A record for each partition that is so late that every window before it closes."""
    return [(partition, b"-1", json.dumps(_CLOSING).encode()) for partition in range(partitions)]


def expected(topic: list[Record]) -> list[Row]:
    """The windows that the last watermark has closed, from everything that the topic holds."""
    events = pd.DataFrame([json.loads(record.value or b"{}") for record in topic])
    times = pd.to_datetime(events["item_time"], utc=True, format="ISO8601").dt.as_unit("ms").astype("int64")
    events = events.assign(window_start=times // WINDOW_MS * WINDOW_MS)
    windows = events.groupby(["window_start", "item_id"], as_index=False).agg(
        purchases=("seq", "size"), sum_cents=("item_price", "sum")
    )
    closed = windows[windows["window_start"] + WINDOW_MS <= times.max() - WATERMARK_DELAY_MS]
    return list(zip(*(closed[name].tolist() for name in COLUMNS), strict=True))


def compare(wanted: list[Row], found: list[Row]) -> Comparison:
    """The sink's rows against the expected ones; a window and an item say which row it is."""
    right, times = {row[:2]: row for row in wanted}, Counter(row[:2] for row in found)
    return Comparison(
        rows=len(wanted),
        missing=sum(key not in times for key in right),
        duplicate=sum(count - 1 for count in times.values()),
        different=sum(right.get(row[:2]) != row for row in set(found)),
    )
