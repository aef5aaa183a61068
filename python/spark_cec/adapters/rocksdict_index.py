"""The timestamp index on disk, in RocksDB. It is a cache: after any error it is cleared and filled again."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rocksdict

from spark_cec.ids import StoreId
from spark_cec.log import index_keys as keys
from spark_cec.log.index import (
    BrokenIndexError,
    CommitEntry,
    Covered,
    Index,
    LoadedEntry,
    MemoryIndex,
    OutputEntry,
)
from spark_cec.log.meta import CommitMeta, FrameKind, LoadedMeta, Meta, OutputMeta
from spark_cec.log.segment import Location

_ANY_VERSION = (1 << 63) - 1

_WRITE_BUFFER_BYTES = 8 << 20
"""Bytes of unsorted rows in memory; they bound an agent's memory, and the time to open an index."""

_CACHE_BYTES = 8 << 20
"""Bytes of blocks in memory. RocksDB's default of 32 MB fills over many hours, and looks like a leak; the page cache
has the blocks anyway.
"""


_PLACES = 8
"""Directories for the processes of one machine that have one log open at once. Without one of its own, a process reads
the whole log at each start.
"""

_HELD = re.compile(r"\block (file|hold)\b", re.IGNORECASE)
"""RocksDB's words if another process, or this one, has the files open. A message of damage may name a block."""


def open_index(path: str, log_id: str) -> Index:
    """The index of log `log_id` (32 hex digits) in directory `path`, or in `path-2` to `path-8`.

    If another process holds one, this process takes the next one, which it finds filled at its next start. If an index
    is of another log, or does not open, it is cleared. If no directory can be used, the index is in memory.
    """
    for place in (path, *(f"{path}-{number}" for number in range(2, _PLACES + 1))):
        found = _open_unless_held(place, log_id)
        if found is not None:
            return found
    return MemoryIndex(log_id)


def _open_unless_held(path: str, log_id: str) -> Index | None:
    """None if another process, or this one, has the index open."""
    try:
        return RocksDictIndex(path, log_id)
    except BrokenIndexError as error:
        if _HELD.search(str(error)):
            return None
    try:
        rocksdict.Rdict.destroy(path)
        return RocksDictIndex(path, log_id)
    except Exception:
        return MemoryIndex(log_id)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns any error into `BrokenIndexError`.

    rocksdict raises plain `Exception`, and undecodable rows are damage of the index, too.
    """
    try:
        yield
    except Exception as error:
        raise BrokenIndexError(f"timestamp index: {error}") from error


class RocksDictIndex(Index):
    """An `Index` in RocksDB, with the rows of `index_keys`; each `apply` writes one atomic batch."""

    def __init__(self, path: str, log_id: str) -> None:
        self._path = path
        self._log_id = log_id
        self._lock = threading.RLock()
        self._stores: set[StoreId] | None = None
        self._stores_outdated = False
        with _translate_errors():
            Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
            self._rows: Any = rocksdict.Rdict(path, _make_options())
        try:
            self._covered = self._read_covered()
        except BaseException:
            self.close()
            raise

    @property
    def log_id(self) -> str:
        """As in `Index`, like all methods here."""
        return self._log_id

    def covered(self) -> Mapping[str, Covered]:
        """The covered part of each segment."""
        with self._lock:
            return dict(self._covered)

    def covered_of(self, segment: str) -> Covered | None:
        """The covered part of a segment."""
        with self._lock:
            return self._covered.get(segment)

    def apply(self, segment: str, entries: Sequence[tuple[Meta, Location]], covered: Covered | None) -> None:
        """Adds frames of a segment."""
        with self._lock, _translate_errors():
            batch = rocksdict.WriteBatch(raw_mode=True)
            for meta, location in entries:
                batch.put(*keys.frame_row(meta, location))
                for key in keys.frame_pointers(meta, location):
                    batch.put(key, b"")
            if covered is not None:
                batch.put(*keys.covered_row(segment, covered))
            self._rows.write(batch)
            if covered is not None:
                self._covered[segment] = covered
            if self._stores is not None:
                self._stores.update(meta.store for meta, _ in entries if isinstance(meta, CommitMeta))

    def forget(self, segment: str) -> None:
        """Drops a segment and its entries."""
        with self._lock, _translate_errors():
            batch = rocksdict.WriteBatch(raw_mode=True)
            for meta, location in self.entries(segment):
                batch.delete(keys.frame_row(meta, location)[0])
                for key in keys.frame_pointers(meta, location):
                    batch.delete(key)
            batch.delete(keys.covered_key(segment))
            self._rows.write(batch)
            self._stores_outdated = True
            self._covered.pop(segment, None)

    def clear(self) -> None:
        """Drops all entries."""
        with self._lock, _translate_errors():
            batch = rocksdict.WriteBatch(raw_mode=True)
            batch.delete_range(b"", keys.LAST)
            batch.put(keys.HEADER, keys.header_value(self._log_id))
            self._rows.write(batch)
            self._covered = {}
            self._stores = None

    def entries(self, segment: str, start: int = 0) -> list[tuple[Meta, Location]]:
        """All entries of a segment from `start` on."""
        prefix = keys.frames_prefix(segment)
        with _translate_errors():
            return [keys.read_frame_row(key, value) for key, value in self._scan(prefix, prefix + keys.offset(start))]

    def stores(self) -> list[StoreId]:
        """The stores that have a commit or a flush, sorted. Kept in memory: a search would scan all deleted rows."""
        with self._lock, _translate_errors():
            if self._stores is None:
                self._stores = set(self._find_stores())
            if self._stores_outdated:
                self._stores = {store for store in self._stores if self._find_newest_key(store, _ANY_VERSION)}
                self._stores_outdated = False
            return sorted(self._stores)

    def _find_stores(self) -> list[StoreId]:
        found: list[StoreId] = []
        start = keys.COMMITS
        while (key := next((key for key, _ in self._scan(keys.COMMITS, start)), None)) is not None:
            found.append(keys.read_store(key))
            start = keys.store_prefix(found[-1]) + keys.LAST
        return found

    def frames(self, store: StoreId, first: int, last: int) -> list[CommitEntry]:
        """All attempts of versions first…last, and their flushes."""
        prefix = keys.store_prefix(store)
        with _translate_errors():
            frames = list(self._read_frames(prefix, prefix + keys.number(first), prefix + keys.number(last)))
        return [CommitEntry(meta, location) for meta, location in frames if isinstance(meta, CommitMeta)]

    def newest(self, store: StoreId, at_or_below: int) -> list[CommitEntry]:
        """All attempts at the highest version that is not above `at_or_below`."""
        key = self._find_newest_key(store, at_or_below)
        while key:
            version = keys.read_number(key[len(keys.store_prefix(store)) :])
            found = self.commits(store, version, version)
            if found or version == keys.LEAST_NUMBER:
                return found
            # The version has flushes alone, because its commit is lost, or it was forgotten meanwhile.
            key = self._find_newest_key(store, version - 1)
        return []

    def _find_newest_key(self, store: StoreId, at_or_below: int) -> bytes:
        prefix = keys.store_prefix(store)
        with _translate_errors():
            # Set no bound here: rocksdict 0.3.29 takes a lower bound for an upper one.
            back = self._rows.keys(from_key=prefix + keys.number(at_or_below) + keys.LAST, backwards=True)
            key: bytes = next(iter(back), b"")
        return key if key.startswith(prefix) else b""

    def output(self, frame_id: bytes) -> OutputEntry | None:
        """The output frame with that id."""
        return next(iter(self._find_outputs(keys.output_prefix(frame_id))), None)

    def outputs(self, batch: int) -> list[OutputEntry]:
        """All output frames of a batch by position."""
        return self._find_outputs(keys.batch_prefix(batch))

    def loaded(self, generation: int) -> list[LoadedEntry]:
        """The loads of stores in that run of the query."""
        with _translate_errors():
            frames = list(self._read_frames(keys.loaded_prefix(generation)))
        return [LoadedEntry(meta, location) for meta, location in frames if isinstance(meta, LoadedMeta)]

    def at(self, wall_ms: int) -> list[CommitEntry | OutputEntry]:
        """The first commit and the first output at or after a wall clock."""
        with _translate_errors():
            found = [self._find_first(FrameKind.COMMIT, wall_ms), self._find_first(FrameKind.OUTPUT, wall_ms)]
        entries: list[CommitEntry | OutputEntry] = []
        for meta, location in filter(None, found):
            if isinstance(meta, CommitMeta):
                entries.append(CommitEntry(meta, location))
            if isinstance(meta, OutputMeta):
                entries.append(OutputEntry(meta, location))
        return entries

    def close(self) -> None:
        """Releases the files and the lock."""
        with self._lock, contextlib.suppress(Exception):
            self._rows.close()

    def discard(self) -> None:
        """Closes the index and deletes its files. Files that another process has opened since then stay."""
        self.close()
        with contextlib.suppress(Exception):
            rocksdict.Rdict.destroy(self._path)

    def _find_outputs(self, prefix: bytes) -> list[OutputEntry]:
        with _translate_errors():
            frames = list(self._read_frames(prefix))
        return [OutputEntry(meta, location) for meta, location in frames if isinstance(meta, OutputMeta)]

    def _find_first(self, kind: FrameKind, wall_ms: int) -> tuple[Meta, Location] | None:
        prefix = keys.times_prefix(kind)
        return next(self._read_frames(prefix, prefix + keys.number(wall_ms)), None)

    def _read_frames(self, prefix: bytes, start: bytes = b"", last: bytes = b"") -> Iterator[tuple[Meta, Location]]:
        """The frames to which the rows of a scan point, without those that another thread forgets meanwhile."""
        for pointer, _ in self._scan(prefix, start, last):
            key = keys.frame_key(pointer)
            row = self._rows.get(key)
            if row is not None:
                yield keys.read_frame_row(key, row)
            elif self._rows.get(pointer) is not None:  # one write deletes both
                raise KeyError(pointer)

    def _scan(self, prefix: bytes, start: bytes = b"", last: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows with `prefix`, from `start` through every key that begins with `last`.

        RocksDB gets the bound, too. Deleted rows of the next store may follow a store's last row. Without the bound
        RocksDB would scan them all to find the end.
        """
        behind = (last or prefix) + keys.LAST
        within = rocksdict.ReadOptions()
        within.set_iterate_upper_bound(behind + b"\0")
        for key, value in self._rows.items(from_key=max(start, prefix), read_opt=within):
            if key > behind or not key.startswith(prefix):
                return
            yield key, value

    def _read_covered(self) -> dict[str, Covered]:
        with _translate_errors():
            if self._rows.get(keys.HEADER) != keys.header_value(self._log_id):
                self.clear()
            return dict(keys.read_covered(key, value) for key, value in self._scan(keys.COVERED))


def _make_options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(1)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return options
