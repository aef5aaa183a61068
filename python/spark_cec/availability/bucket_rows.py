"""Takes the rows of a bucket range out of the rows of batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_cec.log.times import TimeRange

_BEFORE_ALL = -(1 << 63)

_TAKE_BYTES = 1 << 30
"""Rows of more bytes are taken in parts: `take` puts each column into one array, where text has no room for 2 GiB."""


def find_times(rows: pa.Table, column: str | None) -> TimeRange:
    """The range of the times in a column. `column`: None if the rows lack it."""
    if column is None or not rows.num_rows:
        return TimeRange(None, None, rows.num_rows)
    times = _ms(rows, column)
    ends = pc.min_max(times).as_py()
    return TimeRange(ends["min"], ends["max"], times.null_count)


def take_range(
    rows: pa.Table, column: str | None, after_ms: int, until_ms: int, *, fresh: bool, floor_ms: int | None = None,
    replicated: bool = False,
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """The rows that belong to the range, and the late ones. `column`: None if the rows lack it.

    Of rows that are `fresh`, those below `after_ms` are late, and those without a time belong to the range. Other rows
    below `after_ms`, and those without a time, were given out before.

    `replicated`: no bucket tells other replicas of a row without a time, so it is late. Rows below `floor_ms` are, too.
    """
    after_ms = after_ms if floor_ms is None else max(after_ms, floor_ms)
    nothing = rows.slice(0, 0)  # `empty_table` knows no INTERVAL YEAR TO MONTH
    if column is None:
        untimed = rows if fresh else nothing
        return (nothing, untimed) if replicated else (untimed, nothing)
    times = _ms(rows, column)
    is_due = pc.and_(pc.less(times, until_ms), pc.greater_equal(times, after_ms))
    late = rows.filter(pc.fill_null(pc.less(times, after_ms), replicated)) if fresh else nothing
    return rows.filter(pc.fill_null(is_due, fresh and not replicated)), late


def sort_by_time(rows: pa.Table, column: str) -> pa.Table:
    """The rows by their time, those without one first; rows of equal times keep their order."""
    if not rows.num_rows:
        return rows
    return take_rows(rows, pc.sort_indices(pc.fill_null(_ms(rows, column), _BEFORE_ALL)).to_numpy())


def take_rows(rows: pa.Table, places: np.ndarray) -> pa.Table:
    """The rows at these places, each of which is there once at most."""
    if rows.nbytes <= _TAKE_BYTES or rows.num_rows <= 1:
        return rows.take(pa.array(places))
    if len(places) == rows.num_rows:
        half = len(places) // 2
        return pa.concat_tables([take_rows(rows, places[:half]), take_rows(rows, places[half:])])
    is_taken = np.zeros(rows.num_rows, dtype=bool)
    is_taken[places] = True
    return take_rows(rows.filter(pa.array(is_taken)), np.searchsorted(np.sort(places), places))


def _ms(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """The times of a column in ms since the epoch, rounded down."""
    times = rows[column]
    if pa.types.is_null(times.type):
        return times.cast(pa.int64())
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    towards_zero = pc.divide(micros, 1000)
    is_above = pc.less(pc.subtract(micros, pc.multiply(towards_zero, 1000)), 0)
    return pc.subtract(towards_zero, is_above.cast(pa.int64()))
