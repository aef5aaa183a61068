"""The same task at several sizes, and the runs as a table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.workloads import Workload

_FIELDS = {"keys": "keys", "updates": "updates", "partitions": "partitions", "value-bytes": "value_bytes"}
GROWS = ", ".join(_FIELDS)
"""What may grow."""

_FIRST_COLUMNS = ("task", "provider", "round", "keys", "updates", "partitions", "value_bytes")


@dataclass(frozen=True, slots=True)
class Growth:
    """`what` of a workload takes each of the `sizes`, ascending."""

    what: str
    sizes: tuple[int, ...]

    @property
    def field(self) -> str:
        """Its name in a run's line."""
        return _FIELDS[self.what]

    def over(self, workload: Workload) -> list[Workload]:
        """The workload at each size."""
        fields = asdict(workload)
        return [Workload(**{**fields, self.field: size}) for size in self.sizes]


def parse_growth(text: str) -> Growth:
    """`keys=100000,500000`. Raises `ValueError` that says what is wrong."""
    what, equals, sizes = text.partition("=")
    if not equals or what not in _FIELDS:
        raise ValueError(f"{text!r}: give WHAT=A,B,... where WHAT is {GROWS}")
    try:
        numbers = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise ValueError(f"{sizes!r}: give whole numbers, with commas between them") from None
    if min(numbers) < 1 or list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{sizes!r}: give ascending numbers above 0")
    return Growth(what, numbers)


def write_csv(lines: Sequence[dict[str, Any]], target: Path) -> None:
    """A row for each run among the lines, with a column for each plain value. Raises `OSError`."""
    runs = [line for line in lines if line["kind"] == "run"]
    rows = [{name: value for name, value in run.items() if isinstance(value, str | int | float)} for run in runs]
    names = {name: None for row in rows for name in row if name != "kind"}
    first = [name for name in _FIRST_COLUMNS if name in names]
    with target.open("w", newline="") as file:
        table = csv.DictWriter(file, [*first, *(n for n in names if n not in first)], extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
