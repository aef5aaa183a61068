"""The boundaries of a pipeline's channels: below one comes no later row, through all restarts and in each replica."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.boundary import Boundary, read_boundary
from spark_cec.log.manifest import batches, load


class Boundaries:
    """Every boundary that the channels were seen with, in the order of the looks."""

    def __init__(self, homes: Iterable[Path]) -> None:
        """`homes`: of the pipeline, or of its replicas."""
        self._homes = list(homes)
        self._seen: dict[Path, list[Boundary]] = {}

    def look(self) -> None:
        """Notes each channel's boundary, if it is another one than at the last look."""
        for log in [log for home in self._homes for log in home.glob("flows/*/cec/log")]:
            found, seen = read_boundary(open_storage(str(log))), self._seen.setdefault(log, [])
            if found is not None and found != next(iter(seen[-1:]), None):
                seen.append(found)

    def check(self) -> None:
        """No boundary went back, and no batch after it has a row below it. The flows must be over."""
        self.look()
        assert any(each.columns for seen in self._seen.values() for each in seen), "no channel has a boundary"
        for log, seen in self._seen.items():
            storage = open_storage(str(log))
            there = [load(storage, batch) for batch in batches(storage)]
            for i, each in enumerate(seen):
                later = [after.columns for after in seen[i + 1 :]]
                for column, ms in each.columns.items():
                    assert all(columns.get(column, ms) >= ms for columns in later), f"{log}: {column} went back: {seen}"
                    ranges = [one.times[column] for one in there if one.batch > each.batch and column in one.times]
                    times = [one.first_ms for one in ranges if one.first_ms is not None]
                    assert min(times, default=ms) >= ms, f"{log}: a row below {each}: {times}"
