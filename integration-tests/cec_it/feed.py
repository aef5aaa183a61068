"""Rows for two sources, a file at a time, and the windows that a flow `totals` makes of them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import Row, SparkSession

NOON = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
WATERMARKS = {"web": ("time", "2 seconds"), "app": ("time", "2 seconds")}

Windows = Counter[tuple[int, str, int, float]]


class Feed:
    """Rows for the two sources, a file at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = 0
        for name in ("web", "app"):
            (root / name).mkdir(parents=True)

    def put(self, name: str, *rows: tuple[float, str, float]) -> None:
        """A file of rows: seconds after noon, page, price."""
        self._files += 1
        lines = [
            json.dumps({"time": (NOON + timedelta(seconds=s)).isoformat(), "page": page, "price": price})
            for s, page, price in rows
        ]
        made = self.root / f".{self._files}"
        made.write_text("\n".join(lines))
        made.rename(self.root / name / f"{self._files:04d}.json")


def rows_of(spark: SparkSession, root: Path, flow: str) -> list[Row]:
    """The rows of a channel; none if it has no batch yet."""
    checkpoint = root / "home/flows" / flow
    if not any((checkpoint / "cec/log/manifests").glob("*.json")):
        return []
    return spark.read.format("cec").load(str(checkpoint)).collect()


def windows(spark: SparkSession, root: Path) -> Windows:
    """The rows of the channel `totals`, by the second after noon at which a window begins."""
    begin, rows = int(NOON.timestamp()), rows_of(spark, root, "totals")
    return Counter((int(row.time.timestamp()) - begin, row.page, row.n, row.price) for row in rows)
