"""The index as all but the catalog see it: a cache that heals when it is found broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Covered, Index, LoadedEntry, OutputEntry
from spark_cec.log.meta import Meta
from spark_cec.log.segment import Location

_Answer = TypeVar("_Answer")


class Ask(Protocol):
    """Puts a question to an index."""

    def __call__(self, question: Callable[[Index], _Answer]) -> _Answer:
        """The answer."""


class HealedIndex(Index):
    """A log's index that raises no `BrokenIndexError` until it is closed. Its parts are for `log.catalog` to keep.

    `ask` puts a question to the index; if that is broken, it fills another one from the log and asks again.
    """

    def __init__(self, ask: Ask, close: Callable[[], None]) -> None:
        self._ask = ask
        self._close = close

    @property
    def log_id(self) -> str:
        """As in `Index`, like all methods here."""
        return self._ask(lambda index: index.log_id)

    def covered(self) -> Mapping[str, Covered]:
        """The covered part of each segment."""
        return self._ask(lambda index: index.covered())

    def covered_of(self, segment: str) -> Covered | None:
        """The covered part of a segment."""
        return self._ask(lambda index: index.covered_of(segment))

    def apply(self, segment: str, entries: Sequence[tuple[Meta, Location]], covered: Covered | None) -> None:
        """Adds frames of a segment."""
        self._ask(lambda index: index.apply(segment, entries, covered))

    def forget(self, segment: str) -> None:
        """Drops a segment and its entries."""
        self._ask(lambda index: index.forget(segment))

    def clear(self) -> None:
        """Drops all entries."""
        self._ask(lambda index: index.clear())

    def entries(self, segment: str, start: int = 0) -> list[tuple[Meta, Location]]:
        """All entries of a segment from `start` on."""
        return self._ask(lambda index: index.entries(segment, start))

    def stores(self) -> list[StoreId]:
        """The stores that have a commit or a flush, sorted."""
        return self._ask(lambda index: index.stores())

    def frames(self, store: StoreId, first: int, last: int) -> list[CommitEntry]:
        """All attempts of versions first…last, and their flushes."""
        return self._ask(lambda index: index.frames(store, first, last))

    def newest(self, store: StoreId, at_or_below: int) -> list[CommitEntry]:
        """All attempts at the highest version that is not above `at_or_below`."""
        return self._ask(lambda index: index.newest(store, at_or_below))

    def output(self, frame_id: bytes) -> OutputEntry | None:
        """The output frame with that id."""
        return self._ask(lambda index: index.output(frame_id))

    def outputs(self, batch: int) -> list[OutputEntry]:
        """All output frames of a batch by position."""
        return self._ask(lambda index: index.outputs(batch))

    def loaded(self, generation: int) -> list[LoadedEntry]:
        """The loads of stores in that run of the query."""
        return self._ask(lambda index: index.loaded(generation))

    def at(self, wall_ms: int) -> list[CommitEntry | OutputEntry]:
        """The first commit and the first output at or after a wall clock."""
        return self._ask(lambda index: index.at(wall_ms))

    def close(self) -> None:
        """Releases files and locks."""
        self._close()
