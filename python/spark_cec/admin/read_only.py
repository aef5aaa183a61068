"""Wrappers of storages for observers: one reports the bytes read, the other refuses to write."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NoReturn

from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, Storage


def _ignore(_: int) -> None:
    """Ignores the report."""


class WatchedStorage:
    """A storage that calls `on_read` with the bytes of each read, in the reading thread; `inner` does the work."""

    def __init__(self, inner: Storage, on_read: Callable[[int], None] = _ignore) -> None:
        self._inner = inner
        self._on_read = on_read

    @property
    def url(self) -> str:
        """The root, for messages."""
        return self._inner.url

    @property
    def can_append(self) -> bool:
        """Whether `append_to_new` works."""
        return self._inner.can_append

    def create(self, path: str, data: Buffer) -> None:
        """Creates a file with these bytes."""
        self._inner.create(path, data)

    def replace(self, path: str, data: Buffer) -> None:
        """Creates or replaces a file with these bytes."""
        self._inner.replace(path, data)

    def append_to_new(self, path: str) -> Appender:
        """Creates an empty file to append to."""
        return self._inner.append_to_new(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`; reports their number."""
        data = self._inner.read(path, offset, length)
        self._on_read(len(data))
        return data

    def size(self, path: str) -> int:
        """Bytes in the file."""
        return self._inner.size(path)

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        return self._inner.list(directory)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self._inner.exists(path)

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""
        self._inner.delete(path)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist."""
        self._inner.delete_all(paths)

    def sync(self, path: str) -> None:
        """Makes the file durable."""
        self._inner.sync(path)

    def local_path(self, path: str) -> str | None:
        """The file's path on this machine's own file system, or None."""
        return self._inner.local_path(path)

    def probe_writable(self) -> None:
        """Creates and deletes a small file."""
        self._inner.probe_writable()


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
