"""Storage in memory, which ends with the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from spark_cec.adapters.fsspec_base import FsspecStorage
from spark_cec.errors import AlreadyExists
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, probe

_LOCK = threading.RLock()


class MemoryStorage(FsspecStorage):
    """fsspec's memory file system, which this process shares and which ends with the process.

    Reads take the lock too: a file cannot grow while its bytes are in view.
    """

    can_append = True

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the file."""
        with _LOCK:
            return super().read(path, offset, length)

    def size(self, path: str) -> int:
        """Bytes in the file."""
        with _LOCK:
            return super().size(path)

    def exists(self, path: str) -> bool:
        """Whether the file exists. Memory has no errors, and its `info` of a missing file scans all files."""
        return bool(self._filesystem.isfile(self._full_path(path)))

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        with _LOCK:
            return super().list(directory)

    def create(self, path: str, data: Buffer) -> None:
        """Creates a file, under the lock."""
        with _LOCK:
            if self.exists(path):  # `exists` of the file system looks at every file
                raise AlreadyExists(path)
            self.replace(path, data)

    def append_to_new(self, path: str) -> Appender:
        """Creates an empty file to append to."""
        self.create(path, b"")
        return _MemoryAppender(self._filesystem, self._full_path(path))

    def probe_writable(self) -> None:
        """Creates and deletes a small file."""
        probe(self)


class _MemoryAppender:
    """Grows a file of the memory file system, under the lock."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._known = filesystem.store.get(filesystem._strip_protocol(path))

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Appends the buffers."""
        with _LOCK:
            file = self._current_file()
            if file is not None:
                file.seek(0, os.SEEK_END)
                file.write(b"".join(buffers))

    def still_linked(self) -> bool:
        """Whether the path still has the created file."""
        return self._current_file() is not None

    def close(self) -> None:
        """Does nothing: there is no resource."""

    def _current_file(self) -> Any:
        present = self._filesystem.store.get(self._filesystem._strip_protocol(self._path))
        return present if present is self._known else None
