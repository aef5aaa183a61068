"""Wrappers of storages for observers: one reports the bytes read, the other refuses to write."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NoReturn

from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Storage


def _ignore(_: int) -> None:
    """Ignores the report."""


class WatchedStorage(DelegatingStorage):
    """A storage that calls `on_read` with the bytes of each read, in the reading thread; `inner` does the work."""

    def __init__(self, inner: Storage, on_read: Callable[[int], None] = _ignore) -> None:
        super().__init__(inner)
        self._on_read = on_read

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`; reports their number."""
        data = super().read(path, offset, length)
        self._on_read(len(data))
        return data


class ReadOnlyStorage(WatchedStorage):
    """A storage that refuses to write, with `OSError` (EROFS): an observer of a running query must leave no trace."""

    @property
    def can_append(self) -> bool:
        """False."""
        return False

    def create(self, path: str, data: Buffer) -> NoReturn:
        """Refused."""
        self._refuse(path)

    def replace(self, path: str, data: Buffer) -> NoReturn:
        """Refused."""
        self._refuse(path)

    def append_to_new(self, path: str) -> NoReturn:
        """Refused."""
        self._refuse(path)

    def delete(self, path: str) -> NoReturn:
        """Refused."""
        self._refuse(path)

    def delete_all(self, paths: Sequence[str]) -> NoReturn:
        """Refused."""
        self._refuse(next(iter(paths), ""))

    def probe_writable(self) -> NoReturn:
        """Refused."""
        self._refuse("")

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, f"{self.url} was opened for reading only", path)
