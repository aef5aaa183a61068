"""Table 2 of Balazinska et al.: how long two ways to go back take, by formulas, and two of the constants, measured.

The product has neither way. A flow waits, and a fork of it answers. So when the input is back, the flow catches up.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

INTERVAL_S = 0.2
"""l: between two checkpoints, or between two markers."""

Row = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Constants:
    """Microseconds to copy a row, to compare it, and to process it in an operator."""

    copy_us: float
    compare_us: float
    process_us: float


@dataclass(frozen=True, slots=True)
class Load:
    """`state`: S, in rows. `cut_s`: D. `rows_per_s`: lambda, on all streams. `usual_s`: P, the usual time of an answer.
    """

    state: int
    cut_s: float
    rows_per_s: float
    usual_s: float = 0.0
    interval_s: float = INTERVAL_S

    @property
    def redone(self) -> float:
        """The rows since the last checkpoint, on average."""
        return (self.cut_s + self.interval_s / 2) * self.rows_per_s


def checkpoint_redo_s(load: Load, each: Constants) -> float:
    """Delay_new: the state is copied back, and all rows since are processed again."""
    return load.usual_s + (load.state * each.copy_us + load.redone * each.process_us) / 1e6


def undo_redo_s(load: Load, each: Constants) -> float:
    """Delay_new: the rows of the state, too, are compared and processed again."""
    return load.usual_s + (load.state + load.redone) * (each.compare_us + each.process_us) / 1e6


def measure_rows(rows: int = 200_000, rounds: int = 5) -> tuple[float, float]:
    """Microseconds to copy a row of four numbers to another table in memory, and to compare it with that. Medians."""
    table: dict[int, Row] = {i: (i, i % 100, 1, i * 7 % 1000) for i in range(rows)}
    copies, compares = list[float](), list[float]()
    for _ in range(rounds):
        begin = time.perf_counter()
        other: dict[int, Row] = {key: (row[0], row[1], row[2], row[3]) for key, row in table.items()}
        middle = time.perf_counter()
        equal = sum(other[key] == row for key, row in table.items())
        end = time.perf_counter()
        if equal != rows:
            raise AssertionError("a copy differs")
        copies.append((middle - begin) / rows * 1e6)
        compares.append((end - middle) / rows * 1e6)
    return statistics.median(copies), statistics.median(compares)
