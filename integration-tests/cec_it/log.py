"""What the log under a checkpoint holds."""

from __future__ import annotations

from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import CommitEntry, MemoryIndex
from spark_cec.log.segment import segment_path

_ANY_VERSION = 1 << 40


def commits(checkpoint: Path) -> list[CommitEntry]:
    """The commits of all stores, every attempt, in the order of stores and versions."""
    return [entry for entry in frames(checkpoint) if not entry.meta.is_flush]


def frames(checkpoint: Path) -> list[CommitEntry]:
    """The commits of all stores and their flushes."""
    storage = open_storage(f"{checkpoint}/cec/log")
    index = MemoryIndex(str(read_log_id(storage)))
    Catalog(storage, index).refresh()
    return [entry for store in index.stores() for entry in index.frames(store, 0, _ANY_VERSION)]


def flip(checkpoint: Path, entry: CommitEntry, where: int) -> None:
    """Changes a bit of a frame: `where` bytes behind its begin, or, below 0, before its end."""
    path = checkpoint / "cec" / "log" / segment_path(entry.location.segment)
    data = bytearray(path.read_bytes())
    data[entry.location.offset + where if where >= 0 else entry.location.end + where] ^= 0x40
    path.write_bytes(data)
