"""Count windows: the average price over every ten purchases of an item, as a state function for Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pandas as pd

OUTPUT_SCHEMA = "item_id LONG, first_seq LONG, last_seq LONG, sum_cents LONG, average_price DOUBLE"
STATE_SCHEMA = "purchases LONG, sum_cents LONG, first_seq LONG"
_COLUMNS = [column.split()[0] for column in OUTPUT_SCHEMA.split(", ")]


class WindowState(Protocol):
    """What `close_windows` needs of `pyspark.sql.streaming.state.GroupState`."""

    @property
    def getOption(self) -> tuple[int, ...] | None: ...  # noqa: N802

    def update(self, newValue: tuple[int, ...]) -> None: ...  # noqa: N803

    def remove(self) -> None: ...


def close_windows(
    item_id: int, chunks: Iterable[pd.DataFrame], state: WindowState, size: int
) -> Iterator[pd.DataFrame]:
    """Add one micro-batch of purchases of `item_id` to its open window; yield the windows that this fills, if any.

    `chunks` have the columns `seq` and `item_price` (cents), in any order: rows are taken in the order of `seq`. The
    state is removed when a window closes with nothing after it, so that a closed window is forgotten.
    """
    opened = state.getOption
    count, total, first = opened if opened is not None else (0, 0, 0)
    rows: list[tuple[int, int, int, int, float]] = []
    for seq, price in _in_order(chunks):
        first = seq if count == 0 else first
        count, total = count + 1, total + price
        if count == size:
            rows.append((item_id, first, seq, total, total / size))
            count, total = 0, 0
    if count:
        state.update((count, total, first))
    elif opened is not None:
        state.remove()
    if rows:
        yield pd.DataFrame(rows, columns=_COLUMNS)


def _in_order(chunks: Iterable[pd.DataFrame]) -> list[tuple[int, int]]:
    return sorted(
        pair for chunk in chunks for pair in zip(chunk["seq"].tolist(), chunk["item_price"].tolist(), strict=True)
    )
