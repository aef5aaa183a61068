"""Ranges of the times that a batch of output has in a column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times in a column of a batch, in ms since the epoch, rounded down. `nulls`: the rows without a time.

    `first_ms` and `last_ms` are None if no row has a time.
    """

    first_ms: int | None
    last_ms: int | None
    nulls: int = 0


def merge_ranges(ranges: Iterable[TimeRange]) -> TimeRange:
    """The range of all rows together."""
    known = list(ranges)
    first = min((each.first_ms for each in known if each.first_ms is not None), default=None)
    last = max((each.last_ms for each in known if each.last_ms is not None), default=None)
    return TimeRange(first, last, sum(each.nulls for each in known))
