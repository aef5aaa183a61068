"""What a table of stable and tentative rows shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row

Rows = Counter[tuple[Any, ...]]


class Board:
    """Takes the batches of a sink in. `of` makes a value of a row, by which rows are compared."""

    def __init__(self, of: Callable[[Row], tuple[Any, ...]]) -> None:
        self.stable: Rows = Counter()
        self.tentative: dict[str, Rows] = {}
        self.undone: list[str] = []
        self._of = of

    def take(self, rows: DataFrame, _: int) -> None:
        """For Spark's `foreachBatch`."""
        for row in rows.collect():
            if row["_kind"] == "undo":
                self.undone.append(row["_epoch"])
                self.tentative.pop(row["_epoch"], None)
                continue
            shown = self.stable if row["_kind"] == "stable" else self.tentative.setdefault(row["_epoch"], Counter())
            shown[self._of(row)] += 1

    def shown(self) -> Rows:
        """The tentative rows."""
        return sum(self.tentative.values(), Counter())
