"""Identifiers: stores, checkpoints, writers, logs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

NO_CHECKPOINT = bytes(16)
"""Checkpoint id of the empty state, on which version 1 of every store is based."""


@dataclass(frozen=True, slots=True, order=True)
class StoreId:
    """One state store: the paper's operator. `operator` and `partition` are Spark's ids, `name` the store's name."""

    operator: int
    partition: int
    name: str = "default"

    def __str__(self) -> str:
        return f"{self.operator}/{self.partition}/{self.name}"


def new_id() -> bytes:
    """A fresh 16-byte id for a checkpoint, an output frame or a log."""
    return secrets.token_bytes(16)


def new_writer_id(wall_ms: int) -> str:
    """A fresh writer id; ids sort by the wall clock (ms since the epoch) at which their writer began."""
    return f"{wall_ms:012x}-{secrets.token_hex(8)}"
