"""Keeps small segments and blocks of bundles that were read lately, so that the stores of an executor read them once.

On a storage that cannot append, a segment has the commits of many stores, and each of them reads its own part at a
restart. Such a segment never changes. If `cec repair` has replaced it, a listing shows another size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.segment import SEGMENTS, is_bundle
from spark_cec.log.storage import Listing, Storage

LARGEST_BYTES = 512 << 10
"""A request for a larger object takes longer than its round trip."""

BLOCK_BYTES = 1 << 20
"""Of a bundle: its segments are small, and the stores of an executor need most of them."""

MOST_BYTES = 64 << 20
KEPT_S = 30.0


class _Piece(NamedTuple):
    """A whole segment, or a block of a bundle: `offset` and `length` in bytes."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """A piece under way, or there since then. `size` is the object's, as the listing has it."""

    content: Future[bytes]
    size: int
    since: float


class RecentObjects(DelegatingStorage):
    """Keeps segments of at most `LARGEST_BYTES`, and bundles in blocks of `BLOCK_BYTES`, for `KEPT_S` seconds.

    It keeps `MOST_BYTES` in all. Safe for several threads.
    """

    def __init__(self, inner: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._kept: dict[_Piece, _Kept] = {}

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        found = super().list(directory)
        if directory == SEGMENTS:
            sizes = {f"{SEGMENTS}/{file.name}": file.size for file in found}
            with self._lock:
                self._sizes = sizes
                self._kept = {piece: kept for piece, kept in self._kept.items() if sizes.get(piece.path) == kept.size}
                self._forget_old()
        return found

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`. Objects that no listing showed are not kept."""
        with self._lock:
            size = self._sizes.get(path)
        end = None if size is None else size if length is None else min(offset + length, size)
        if size is None or end is None or not (size <= LARGEST_BYTES or is_bundle(path.removeprefix(f"{SEGMENTS}/"))):
            return super().read(path, offset, length)
        step = BLOCK_BYTES if size > LARGEST_BYTES else max(size, 1)
        first = offset // step * step
        data = b"".join(self._get(_Piece(path, at, min(step, size - at)), size) for at in range(first, end, step))
        return data[offset - first : max(end, offset) - first]

    def _get(self, piece: _Piece, size: int) -> bytes:
        """The bytes of a piece. One thread fetches it, others wait."""
        with self._lock:
            kept = self._kept.get(piece)
            is_mine = kept is None
            if kept is None:
                self._forget_old(room_for=piece.length)
                kept = self._kept[piece] = _Kept(Future(), size, self._clock())
        if is_mine:
            self._fetch(piece, kept)
        return kept.content.result()

    def _fetch(self, piece: _Piece, kept: _Kept) -> None:
        try:
            is_whole = piece.length == kept.size
            kept.content.set_result(super().read(*(piece[:1] if is_whole else piece)))
        except BaseException as error:
            with self._lock:
                if self._kept.get(piece) is kept:
                    del self._kept[piece]
            kept.content.set_exception(error)

    def _forget_old(self, room_for: int = 0) -> None:
        """Forgets objects that are old, and the oldest ones if there is no room. The caller has the lock."""
        now = self._clock()
        most, total = MOST_BYTES - room_for, sum(piece.length for piece in self._kept)
        for piece, kept in list(self._kept.items()):  # the oldest first
            if total <= most and now - kept.since <= KEPT_S:
                break
            total -= piece.length
            del self._kept[piece]
