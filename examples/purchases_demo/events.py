"""Purchase events: what the feeder writes, and nothing that depends on when it does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np

from purchases_demo.layout import FILE_SPAN_MS, WATERMARK_DELAY_MS

LINE_BYTES = 100
"""Length of one event, its newline included."""
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
"""Event time at which the first file begins."""
_OUT_OF_ORDER = 0.05


@dataclass(frozen=True, slots=True)
class Stream:
    """A reproducible stream of purchases: `lines` events a file, over `items` items with a Zipf skew (exponent 1)."""

    seed: int
    items: int
    lines: int

    def file(self, number: int) -> bytes:
        """File `number` (from 0): `lines` JSON events of 100 bytes.

        `seq` numbers the events over all files in the order in which they happened to be recorded. `item_price` is in
        whole cents, so that sums are exact in any order. One event in twenty is stamped up to the watermark's delay
        (less 1 ms) before its place, so no event is ever late. Raises `ValueError` if an event outgrows its 100 bytes.
        """
        rng = np.random.default_rng((self.seed, number))
        weights = 1.0 / np.arange(1, self.items + 1)
        items = rng.choice(self.items, size=self.lines, p=weights / weights.sum())
        prices = rng.integers(99, 50_000, size=self.lines)
        offsets = number * FILE_SPAN_MS + np.arange(self.lines) * FILE_SPAN_MS // self.lines
        lag = rng.integers(1, WATERMARK_DELAY_MS, size=self.lines)
        offsets = offsets - np.where(rng.random(self.lines) < _OUT_OF_ORDER, lag, 0)
        first = number * self.lines
        columns = zip(items.tolist(), prices.tolist(), offsets.tolist(), strict=True)
        return b"".join(_line(first + row, *event) for row, event in enumerate(columns))

    def file_time(self, number: int) -> float:
        """The modification time given to file `number`, in seconds since the epoch: the end of its span.

        The file source takes the oldest file first, by modification time: distinct times make that the files' order.
        """
        return START.timestamp() + (number + 1) * FILE_SPAN_MS / 1000


def _line(seq: int, item: int, price: int, offset_ms: int) -> bytes:
    time = (START + timedelta(milliseconds=offset_ms)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    text = f'{{"item_id":{item},"item_price":{price},"item_time":"{time}Z","seq":{seq}}}'
    if len(text) >= LINE_BYTES:
        raise ValueError(f"event {seq} takes {len(text) + 1} bytes, not {LINE_BYTES}: use fewer --items or --batches")
    return text.ljust(LINE_BYTES - 1).encode() + b"\n"
