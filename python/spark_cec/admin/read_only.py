"""Storages for onlookers: one that tells how much was read, and one that cannot write."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NoReturn

from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, Storage


def _ignore(_: int) -> None:
    """What is told to nobody."""


class WatchedStorage:
    """A storage that calls `on_read` with the bytes of each read, in the thread that reads; all else is `inner`'s."""

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
        """A new file with these bytes."""
        self._inner.create(path, data)

    def replace(self, path: str, data: Buffer) -> None:
        """A file with these bytes, whether there was one or not."""
        self._inner.replace(path, data)

    def append_to_new(self, path: str) -> Appender:
        """A new, empty file to append to."""
        return self._inner.append_to_new(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`, told to the watcher."""
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
        """Whether there is such a file."""
        return self._inner.exists(path)

    def delete(self, path: str) -> None:
        """Remove the file; missing is fine."""
        self._inner.delete(path)

    def sync(self, path: str) -> None:
        """Make durable what is there."""
        self._inner.sync(path)

    def local_path(self, path: str) -> str | None:
        """Where the file is on this machine's own file system, or None."""
        return self._inner.local_path(path)

    def probe_writable(self) -> None:
        """Create and delete a small file."""
        self._inner.probe_writable()


class ReadOnlyStorage(WatchedStorage):
    """A storage that refuses to write, with `OSError` (EROFS): what looks at a live query must leave no trace."""

    @property
    def can_append(self) -> bool:
        """Never."""
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

    def probe_writable(self) -> NoReturn:
        """Refused."""
        self._refuse("")

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, f"{self.url} was opened for reading only", path)
