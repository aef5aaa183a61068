"""Keeps small segments that were read lately, so that the stores of an executor read an object once.

On a storage that cannot append, a segment has the commits of many stores, and each of them reads its own part at a
restart. Such a segment never changes. If `cec repair` has replaced it, a listing shows another size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.segment import SEGMENTS
from spark_cec.log.storage import Listing, Storage

LARGEST_BYTES = 512 << 10
"""A request for a larger object takes longer than its round trip."""

MOST_BYTES = 64 << 20
KEPT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object under way, or there since then. `size` as the listing has it."""

    content: Future[bytes]
    size: int
    since: float


class RecentObjects(DelegatingStorage):
    """Keeps segments of at most `LARGEST_BYTES` for `KEPT_S` seconds, `MOST_BYTES` in all. Safe for several threads."""

    def __init__(self, inner: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._kept: dict[str, _Kept] = {}

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        found = super().list(directory)
        if directory == SEGMENTS:
            sizes = {f"{SEGMENTS}/{file.name}": file.size for file in found}
            with self._lock:
                self._sizes = sizes
                self._kept = {path: kept for path, kept in self._kept.items() if sizes.get(path) == kept.size}
                self._forget_old()
        return found

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`. Objects that no listing showed are not kept."""
        with self._lock:
            size = self._sizes.get(path)
            kept = self._kept.get(path)
            is_mine = kept is None and size is not None and size <= LARGEST_BYTES
            if is_mine and size is not None:
                self._forget_old(room_for=size)
                kept = self._kept[path] = _Kept(Future(), size, self._clock())
        if kept is None:
            return super().read(path, offset, length)
        if is_mine:
            self._fetch(path, kept)
        whole = kept.content.result()
        return whole[offset:] if length is None else whole[offset : offset + length]

    def _fetch(self, path: str, kept: _Kept) -> None:
        try:
            kept.content.set_result(super().read(path))
        except BaseException as error:
            with self._lock:
                if self._kept.get(path) is kept:
                    del self._kept[path]
            kept.content.set_exception(error)

    def _forget_old(self, room_for: int = 0) -> None:
        """Forgets objects that are old, and the oldest ones if there is no room. The caller has the lock."""
        now = self._clock()
        most, total = MOST_BYTES - room_for, sum(kept.size for kept in self._kept.values())
        for path, kept in list(self._kept.items()):  # the oldest first
            if total <= most and now - kept.since <= KEPT_S:
                break
            total -= kept.size
            del self._kept[path]
