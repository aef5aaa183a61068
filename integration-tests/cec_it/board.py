"""What tables of sinks show: of stable rows alone, and with tentative ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row

Rows = Counter[tuple[Any, ...]]


class Table:
    """Takes the batches of a sink in. A batch that comes again replaces the first one."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Row]] = {}

    def take(self, rows: DataFrame, batch: int) -> None:
        """For Spark's `foreachBatch`."""
        self._batches[batch] = rows.collect()

    def rows(self) -> list[Row]:
        """All rows, in the order of their batches."""
        return [row for _, rows in sorted(self._batches.items()) for row in rows]


class Board:
    """Takes the batches of a sink in. `of` makes a value of a row, by which rows are compared."""

    def __init__(self, of: Callable[[Row], tuple[Any, ...]]) -> None:
        self.stable: Rows = Counter()
        self.tentative: dict[str, Rows] = {}
        self.undone: list[str] = []
        self._of = of
        self._batch: int | None = None
        self._before = self._copy()

    def take(self, rows: DataFrame, batch: int) -> None:
        """For Spark's `foreachBatch`, which brings the newest batch again after a stop before its commit.

        Then the second time counts, and not the first.
        """
        if batch == self._batch:
            self.stable, self.tentative, self.undone = self._before
        self._batch, self._before = batch, self._copy()
        for row in rows.collect():
            if row["_kind"] == "undo":
                self.undone.append(row["_epoch"])
                self.tentative.pop(row["_epoch"], None)
                continue
            shown = self.stable if row["_kind"] == "stable" else self.tentative.setdefault(row["_epoch"], Counter())
            shown[self._of(row)] += 1

    def _copy(self) -> tuple[Rows, dict[str, Rows], list[str]]:
        return Counter(self.stable), {epoch: Counter(rows) for epoch, rows in self.tentative.items()}, list(self.undone)

    def shown(self) -> Rows:
        """The tentative rows."""
        return sum(self.tentative.values(), Counter())
