"""The cost-benefit policy: what is cheap to write is written; dirty is what would cost more than it saves.

The paper derives it as its first method (section III.A) and leaves its calibration open. A check takes time from the
query now, and takes input tuples from the replay of a recovery that may come. What one is worth in terms of the other
is one number, the *effort*: the share of the query's time that may go into shortening the replay. To write all that is
dirty takes c; done once in every T = c / effort it takes that share, and then no recovery replays more than the tuples
of T. Where T is shorter than a batch, every commit leaves the store clean.

So it does where leaving windows dirty saves next to nothing, because there are so many of them that few change twice
within U: of N windows E change in a batch. Written at once that is E records a batch. Left dirty for the K batches that
U allows, a window is written once in N/E + K batches (it stays clean until its next change): E / (1 + K E/N) records a
batch. With U = K E tuples, deferring divides the records by 1 + U/N.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate

from spark_cec.settings import ExtentBound

FIRST_US = 500.0
"""What the first record costs a commit that would have none: a spool file, a stream, a payload."""

RECORD_US = 2.0
BYTE_US = 0.02
"""What each further record costs, and each of its bytes in the log, as long as nothing was measured."""

_COMMIT_US = 5_000.0
"""What a commit takes whether it has records or not is no more than this."""

_LISTED_US = 20.0
"""How strongly these prices hold against what is measured: in each commit so much came out as listed."""

_REMEMBERED = 9
"""Commits with records that count: the newest ones."""

_TRUSTED, _TRUSTED_US = 5, 200.0
"""At the beginning, as many commits of that weight came out as listed: a process is slow at first, which tells nothing.
"""

LEAST_SAVED = 2.5
"""Records are left for later where that divides their number by so much, or more."""

_LEAST_FACTOR = 0.25
_MOST_REWRITES = 10.0


@dataclass(slots=True)
class WriteCost:
    """What it takes to write records of one store: a list of prices, and how far the truth was from it.

    Commits of equal size do not tell what comes of a record and what of the commit itself, so the prices are fixed, and
    only what a commit takes beyond its own time corrects them: by a factor, which expensive records soon show. It is
    the median of the last commits, each as heavy as its records are by the list: a pause of one tells nothing.
    """

    bytes_per_record: float = 0.0
    rows_per_window: float = 1.0
    _seen: deque[tuple[float, float]] = field(
        default_factory=lambda: deque([(1.0, _TRUSTED_US)] * _TRUSTED, maxlen=_REMEMBERED)
    )

    def add(self, *, us: float, records: int, bytes_: int, rows: int, windows: int) -> None:
        """Takes in one commit. `rows` of so many `windows` were opened or checked."""
        if not records:
            return
        self.bytes_per_record = bytes_ / records
        if windows:
            self.rows_per_window = max(rows / windows, 1.0)
        listed = self._listed(records) + _LISTED_US
        self._seen.append(((max(us - _COMMIT_US, 0.0) + _LISTED_US) / listed, listed))

    def of(self, records: float) -> float:
        """Microseconds for so many records, above 0."""
        return FIRST_US + self._listed(records) * max(self._factor, _LEAST_FACTOR)

    @property
    def _factor(self) -> float:
        """The weighted median of what commits took over what the list says."""
        seen = sorted(self._seen)
        sums = list(accumulate(weight for _, weight in seen))
        return seen[bisect_left(sums, sums[-1] / 2)][0]

    def _listed(self, records: float) -> float:
        return records * (RECORD_US + BYTE_US * self.bytes_per_record)


def rewrites_per_check(bound: ExtentBound, open_windows: int) -> float:
    """How many clean windows Q has written again for each record that a check adds to the extent, at most."""
    room = bound.limit(open_windows) / max(open_windows, 1) - 1.0
    return min(1.0 / room, _MOST_REWRITES) if room > 0 else _MOST_REWRITES


def saves_little(replay_bound: int, open_windows: int) -> bool:
    """Whether a store of so many windows would write nearly as much by leaving them dirty within U, in tuples."""
    return 1.0 + replay_bound / max(open_windows, 1) < LEAST_SAVED


def worthwhile_replay(
    cost: WriteCost, *, dirty_windows: int, checked_rows: int, rewrites: float, waves: float, effort: float,
    replay_us_per_tuple: float,
) -> int:  # fmt: skip
    """The most input tuples that a store should have to replay, at least 1: those of T.

    `checked_rows`: what the newest commit has made clean counts too: it will be dirty again, if it is the same windows
    that change. `waves`: stores that share a core, whose costs add up.
    """
    cost_us = cost.of((dirty_windows * cost.rows_per_window + checked_rows) * (1.0 + rewrites))
    return max(int(cost_us * max(waves, 1.0) / effort / replay_us_per_tuple), 1)
