"""The timestamp index: the places of the log's frames, by store and version, by output id, and by wall clock.

An index is a cache, which may be deleted at any moment; `log.catalog` checks it against the log and fills it again.
This module has the contract and the implementation in memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spark_cec.errors import CecError
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitMeta, LoadedMeta, Meta, OutputMeta
from spark_cec.log.segment import Location


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """A commit frame's meta and place."""

    meta: CommitMeta
    location: Location


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """An output frame's meta and place."""

    meta: OutputMeta
    location: Location


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """A LOADED frame's meta and place."""

    meta: LoadedMeta
    location: Location


@dataclass(frozen=True, slots=True)
class Covered:
    """The part of a segment that the index has: all bytes before `end`.

    `last_offset` and `last_crc` (the prelude checksum) belong to the last frame before `end`. They tell whether the
    segment was replaced.
    """

    end: int
    last_offset: int
    last_crc: int


class BrokenIndexError(CecError):
    """The index is unreadable or unwritable: delete it, and fill a new one from the log."""


class Index(Protocol):
    """Contract of an index of one log; safe for several threads. Any method may raise `BrokenIndexError`.

    A repeated entry changes nothing. Positions order by segment name, then offset.
    """

    @property
    def log_id(self) -> str:
        """The id of the indexed log, 32 hex digits."""

    def covered(self) -> Mapping[str, Covered]:
        """The covered part of each segment."""

    def covered_of(self, segment: str) -> Covered | None:
        """The covered part of a segment; None if the index has nothing of it. It costs no more if there are many."""

    def apply(self, segment: str, entries: Sequence[tuple[Meta, Location]], covered: Covered | None) -> None:
        """Adds frames of `segment`, all or none, and the new covered part; None leaves the covered part."""

    def forget(self, segment: str) -> None:
        """Drops a segment and its entries."""

    def clear(self) -> None:
        """Drops all entries."""

    def entries(self, segment: str, start: int = 0) -> list[tuple[Meta, Location]]:
        """All entries of a segment from byte `start` on, by offset."""

    def stores(self) -> list[StoreId]:
        """The stores that have a commit or a flush, sorted."""

    def frames(self, store: StoreId, first: int, last: int) -> list[CommitEntry]:
        """All attempts of versions first…last, ordered by version, generation, wall clock, position; flushes too."""

    def newest(self, store: StoreId, at_or_below: int) -> list[CommitEntry]:
        """All attempts at the highest version that is not above `at_or_below`, ordered as `frames`; no flushes."""

    def commits(self, store: StoreId, first: int, last: int) -> list[CommitEntry]:
        """As `frames`, without flushes."""
        return [entry for entry in self.frames(store, first, last) if not entry.meta.is_flush]

    def commit(self, store: StoreId, version: int, checkpoint_id: bytes) -> CommitEntry | None:
        """The commit with that checkpoint id, by the newest run; the first by position if it wrote the frame twice."""
        return first_of(self.frames(store, version, version), checkpoint_id, flush=False)

    def flush(self, store: StoreId, version: int, checkpoint_id: bytes) -> CommitEntry | None:
        """The flush of the commit with that checkpoint id, by the newest run; the first by position of several."""
        return first_of(self.frames(store, version, version), checkpoint_id, flush=True)

    def output(self, frame_id: bytes) -> OutputEntry | None:
        """The output frame with that id; the first by position if it was written twice."""

    def outputs(self, batch: int) -> list[OutputEntry]:
        """All output frames of a batch by position, with or without a manifest."""

    def loaded(self, generation: int) -> list[LoadedEntry]:
        """The loads of stores in that run of the query, by wall clock and position."""

    def at(self, wall_ms: int) -> list[CommitEntry | OutputEntry]:
        """The first commit and the first output at or after a wall clock (ms since the epoch), if they exist."""

    def close(self) -> None:
        """Releases files and locks; may be called again."""

    def discard(self) -> None:
        """Closes the index, and deletes what it keeps, because it is broken."""
        self.close()


def first_of(frames: Sequence[CommitEntry], checkpoint_id: bytes, *, flush: bool) -> CommitEntry | None:
    """The answer of `Index.commit`, or with `flush` of `Index.flush`, from the frames of one version."""
    found = [e for e in frames if e.meta.checkpoint_id == checkpoint_id and e.meta.is_flush == flush]
    return min(found, key=lambda entry: (-entry.meta.generation, entry.location), default=None)


_Key: TypeAlias = "tuple[Any, ...]"


class MemoryIndex(Index):
    """An `Index` in memory, for processes without one on disk. Every key ends in (segment, offset)."""

    def __init__(self, log_id: str) -> None:
        self._log_id = log_id
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._covered: dict[str, Covered] = {}
        self._frames: dict[str, dict[int, tuple[Meta, Location]]] = {}
        self._commits: dict[StoreId, list[_Key]] = {}
        self._outputs: dict[bytes, list[_Key]] = {}
        self._batches: dict[int, list[_Key]] = {}
        self._loaded: dict[int, list[_Key]] = {}
        self._commit_times: list[_Key] = []
        self._output_times: list[_Key] = []

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
        with self._lock:
            frames = self._frames.setdefault(segment, {})
            for meta, location in entries:
                self._drop(frames.get(location.offset))
                frames[location.offset] = (meta, location)
                for keys, key in self._index_rows(meta, location):
                    insort(keys, key)
            if covered is not None:
                self._covered[segment] = covered

    def forget(self, segment: str) -> None:
        """Drops a segment and its entries."""
        with self._lock:
            self._covered.pop(segment, None)
            for frame in self._frames.pop(segment, {}).values():
                self._drop(frame)

    def clear(self) -> None:
        """Drops all entries."""
        with self._lock:
            self._reset()

    def entries(self, segment: str, start: int = 0) -> list[tuple[Meta, Location]]:
        """All entries of a segment from `start` on."""
        with self._lock:
            return [frame for offset, frame in sorted(self._frames.get(segment, {}).items()) if offset >= start]

    def stores(self) -> list[StoreId]:
        """The stores that have a commit or a flush, sorted."""
        with self._lock:
            return sorted(store for store, keys in self._commits.items() if keys)

    def frames(self, store: StoreId, first: int, last: int) -> list[CommitEntry]:
        """All attempts of versions first…last, and their flushes."""
        with self._lock:
            keys = self._commits.get(store, [])
            return [self._commit(key) for key in keys[bisect_left(keys, (first,)) : bisect_left(keys, (last + 1,))]]

    def newest(self, store: StoreId, at_or_below: int) -> list[CommitEntry]:
        """All attempts at the highest version that is not above `at_or_below`."""
        with self._lock:
            keys = self._commits.get(store, [])
            behind = bisect_left(keys, (at_or_below + 1,))
            while behind:
                version = keys[behind - 1][0]
                found = self.commits(store, version, version)
                if found:
                    return found
                behind = bisect_left(keys, (version,))  # flushes alone: their commit is lost
            return []

    def output(self, frame_id: bytes) -> OutputEntry | None:
        """The output frame with that id."""
        with self._lock:
            return next(self._output_entries(self._outputs.get(frame_id, [])), None)

    def outputs(self, batch: int) -> list[OutputEntry]:
        """All output frames of a batch by position."""
        with self._lock:
            return list(self._output_entries(self._batches.get(batch, [])))

    def loaded(self, generation: int) -> list[LoadedEntry]:
        """The loads of stores in that run of the query."""
        with self._lock:
            frames = [self._frames[key[-2]][key[-1]] for key in self._loaded.get(generation, [])]
        return [LoadedEntry(meta, location) for meta, location in frames if isinstance(meta, LoadedMeta)]

    def at(self, wall_ms: int) -> list[CommitEntry | OutputEntry]:
        """The first commit and the first output at or after a wall clock."""
        with self._lock:
            commits = [self._commit(key) for key in _slice_first(self._commit_times, wall_ms)]
            return [*commits, *self._output_entries(_slice_first(self._output_times, wall_ms))]

    def close(self) -> None:
        """Does nothing: there is no resource."""

    def _commit(self, key: _Key) -> CommitEntry:
        meta, location = self._frames[key[-2]][key[-1]]
        assert isinstance(meta, CommitMeta)
        return CommitEntry(meta, location)

    def _output_entries(self, keys: Sequence[_Key]) -> Iterator[OutputEntry]:
        for key in keys:
            meta, location = self._frames[key[-2]][key[-1]]
            assert isinstance(meta, OutputMeta)
            yield OutputEntry(meta, location)

    def _index_rows(self, meta: Meta, location: Location) -> list[tuple[list[_Key], _Key]]:
        place = (location.segment, location.offset)
        if isinstance(meta, CommitMeta):
            key = (meta.version, meta.generation, meta.wall_ms, *place)
            return [(self._commits.setdefault(meta.store, []), key), (self._commit_times, (meta.wall_ms, *place))]
        if isinstance(meta, OutputMeta):
            return [
                (self._outputs.setdefault(meta.frame_id, []), place),
                (self._batches.setdefault(meta.batch, []), place),
                (self._output_times, (meta.wall_ms, *place)),
            ]
        if isinstance(meta, LoadedMeta):
            return [(self._loaded.setdefault(meta.generation, []), (meta.wall_ms, *place))]
        return []

    def _drop(self, frame: tuple[Meta, Location] | None) -> None:
        if frame is not None:
            for keys, key in self._index_rows(*frame):
                del keys[bisect_left(keys, key)]


def _slice_first(keys: list[_Key], wall_ms: int) -> list[_Key]:
    start = bisect_left(keys, (wall_ms,))
    return keys[start : start + 1]
