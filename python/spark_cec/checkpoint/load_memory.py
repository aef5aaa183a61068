"""Estimates what a rebuild takes of memory, before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cec.checkpoint.eventual import chain_of
from spark_cec.errors import DamagedLog
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.row_size import read_row_bytes
from spark_cec.log.storage import Storage

LEAST_BYTES = 160
"""What a record of a short key and value takes."""

_TIMES = 3
"""A rebuild has this many times the bytes of its records at its peak: it filters them, and compares their windows."""

_FOOTPRINT_BYTES = 8

_TELLING_RECORDS = 256
"""So many records with values, if a frame has them, tell the size of the store's rows."""

_UNKNOWN_RATIO = 16
"""The decoded bytes of a stored byte, if no frame tells."""

_MOST_RATIO = 256
"""The same for rows that are nearly all zeros."""


def estimate_memory(storage: Storage, index: Index, head: CommitEntry, negligible: int) -> int:
    """The bytes that a rebuild of EC at `head` takes, about.

    It reads the beginning of a frame, unless the store certainly takes less than `negligible` bytes. Raises
    `DamagedLog` as `chain_of` does.
    """
    records = max(head.meta.extent, head.meta.open_windows)
    frames = [entry for entry in chain_of(index, head) if entry.meta.records]
    if not frames:
        return records * LEAST_BYTES
    stored = sum(each.location.length for each in frames) / sum(each.meta.records for each in frames)
    most = _bytes_of_record(stored * _MOST_RATIO)
    if records * most <= negligible:
        return records * most
    return records * _bytes_of_record(_estimate_row(storage, frames, stored))


def _bytes_of_record(size: float) -> int:
    return max(LEAST_BYTES, int(_TIMES * (size + _FOOTPRINT_BYTES)))


def _estimate_row(storage: Storage, frames: Sequence[CommitEntry], stored: float) -> float:
    """The decoded bytes of a row by the newest frame that tells; `stored` is what a row takes in all frames."""
    least = max(min(_count_values(each), _TELLING_RECORDS) for each in frames)
    telling = next(each for each in frames if _count_values(each) >= least)
    try:
        size = read_row_bytes(storage, telling.location)
    except DamagedLog:  # the rebuild says so, if it needs that frame
        return stored * _UNKNOWN_RATIO
    # Rows of the other frames may be longer, and compress as well.
    return max(size, size * stored * telling.meta.records / telling.location.length)


def _count_values(entry: CommitEntry) -> int:
    return entry.meta.opened + entry.meta.checked
