"""The cost-benefit policy: write a dirty window if that costs less than it saves.

The paper derives this policy as its first method (section III.A) and leaves its calibration open. A check takes time
from the query now, and removes input tuples from the replay of a possible recovery. The *effort* relates the two: it is
the share of the query's time that may go into a shorter replay. Let c be the time to write all dirty windows. Written
once in every T = c / effort, they take that share, and a recovery replays at most the tuples of T. If T is shorter than
a batch, every commit leaves the store clean.

A commit also leaves the store clean if deferral saves almost nothing: few of the many windows change twice within U. Of
N windows, E change in a batch. Immediate writes cost E records a batch. Suppose U allows K batches of deferral. A
window stays clean until its next change, so it is written once in N/E + K batches: E / (1 + K E/N) records a batch.
With U = K E tuples, deferral divides the records by 1 + U/N.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate

from spark_cec.settings import ExtentBound

FIRST_US = 500.0
"""The price of a commit's first record in µs: a spool file, a stream, a payload."""

RECORD_US = 2.0
BYTE_US = 0.02
"""The price in µs of each further record, and of each of its bytes in the log, before any measurement."""

_COMMIT_US = 5_000.0
"""An upper bound in µs on the time of a commit apart from its records."""

_LISTED_US = 20.0
"""The weight in µs of the listed prices in each measurement."""

_REMEMBERED = 9
"""The number of newest commits with records that count."""

_TRUSTED, _TRUSTED_US = 5, 200.0
"""At the beginning this many imaginary commits, each of this weight in µs, match the list: a new process is slow."""

LEAST_SAVED = 2.5
"""Windows are deferred only if that divides the number of records by at least this factor."""

_LEAST_FACTOR = 0.25
_MOST_REWRITES = 10.0


@dataclass(slots=True)
class WriteCost:
    """The cost of writing a store's records: a list of prices, and a measured correction factor.

    Commits of equal size cannot tell the cost of a record from the cost of a commit. So the prices are fixed, and a
    factor corrects them by the time that a commit takes beyond its fixed part. The factor is the median over the newest
    commits, weighted by the listed price of their records. A single pause does not move the median.
    """

    bytes_per_record: float = 0.0
    rows_per_window: float = 1.0
    _seen: deque[tuple[float, float]] = field(
        default_factory=lambda: deque([(1.0, _TRUSTED_US)] * _TRUSTED, maxlen=_REMEMBERED)
    )

    def add(self, *, us: float, records: int, bytes_: int, rows: int, windows: int) -> None:
        """Measures one commit of `us` microseconds; it wrote `rows` rows for the `windows` that it opened or checked.
        """
        if not records:
            return
        self.bytes_per_record = bytes_ / records
        if windows:
            self.rows_per_window = max(rows / windows, 1.0)
        listed = self._listed_us(records) + _LISTED_US
        self._seen.append(((max(us - _COMMIT_US, 0.0) + _LISTED_US) / listed, listed))

    def of(self, records: float) -> float:
        """The microseconds to write `records` records, above 0."""
        return FIRST_US + self._listed_us(records) * max(self._factor, _LEAST_FACTOR)

    @property
    def _factor(self) -> float:
        """The weighted median of measured time over listed time."""
        seen = sorted(self._seen)
        sums = list(accumulate(weight for _, weight in seen))
        return seen[bisect_left(sums, sums[-1] / 2)][0]

    def _listed_us(self, records: float) -> float:
        return records * (RECORD_US + BYTE_US * self.bytes_per_record)


def rewrites_per_check(bound: ExtentBound, open_windows: int) -> float:
    """How many clean windows, at most, Q makes the store rewrite for each record that a check adds to the extent."""
    room = bound.limit(open_windows) / max(open_windows, 1) - 1.0
    return min(1.0 / room, _MOST_REWRITES) if room > 0 else _MOST_REWRITES


def saves_little(replay_bound: int, open_windows: int) -> bool:
    """Whether deferral within U (`replay_bound`, in tuples) saves few records in a store of `open_windows` windows."""
    return 1.0 + replay_bound / max(open_windows, 1) < LEAST_SAVED


def worthwhile_replay(
    cost: WriteCost, *, dirty_windows: int, checked_rows: int, rewrites: float, waves: float, effort: float,
    replay_us_per_tuple: float,
) -> int:  # fmt: skip
    """The number of input tuples, at least 1, to which the effort limits a replay: the tuples of T.

    `checked_rows` are the rows that the newest commit checked: if the same windows change again, they are dirty again.
    `waves` is the number of stores that share a core; their costs add up.
    """
    cost_us = cost.of((dirty_windows * cost.rows_per_window + checked_rows) * (1.0 + rewrites))
    return max(int(cost_us * max(waves, 1.0) / effort / replay_us_per_tuple), 1)
