"""A storage that passes each call to another one; subclasses change some of the calls."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, Storage


class DelegatingStorage:
    """Passes each call to `inner`."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    @property
    def inner(self) -> Storage:
        """The storage that this one passes calls to."""
        return self._inner

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
        """At most `length` bytes from `offset`."""
        return self._inner.read(path, offset, length)

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
