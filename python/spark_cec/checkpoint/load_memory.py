"""Estimates what a rebuild takes of memory, before it begins."""

from __future__ import annotations

from spark_cec.checkpoint.eventual import chain_of
from spark_cec.log.index import CommitEntry, Index

LEAST_BYTES = 160
"""What a record of a short key and value takes."""

_TIMES = 3
"""A rebuild has this many times the bytes of its records at its peak: it filters them, and compares their windows."""

_FOOTPRINT_BYTES = 8

_UNKNOWN_RATIO = 4
"""The decoded bytes of a stored byte, in frames of releases that did not note them."""


def estimate_memory(index: Index, head: CommitEntry) -> int:
    """The bytes that a rebuild of EC at `head` takes, about. Raises `DamagedLog` as `chain_of` does."""
    frames = [entry for entry in chain_of(index, head) if entry.meta.records]
    if not frames:
        return 0
    size = sum(map(_find_bytes, frames)) / sum(each.meta.records for each in frames) + _FOOTPRINT_BYTES
    return max(head.meta.extent, head.meta.open_windows) * max(LEAST_BYTES, int(_TIMES * size))


def _find_bytes(frame: CommitEntry) -> int:
    return frame.meta.decoded_bytes or _UNKNOWN_RATIO * frame.location.length
