"""The common part of storages on a file system of fsspec."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Listing, StoredFile

_MAGIC = frozenset("*?[")


class FsspecStorage:
    """The common part of memory and object storages."""

    def __init__(self, url: str, filesystem: Any, root: str) -> None:
        self.url = url
        self._filesystem = filesystem
        self._root = root

    @property
    def place(self) -> tuple[Any, str]:
        """fsspec's file system, and the root there."""
        return self._filesystem, self._root

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the file."""
        if length == 0:
            return b""
        end = None if length is None else offset + length
        return bytes(self._filesystem.cat_file(self._full_path(path), start=offset, end=end))

    def size(self, path: str) -> int:
        """Bytes in the file."""
        self._forget_listing(path)
        return int(self._filesystem.info(self._full_path(path))["size"])

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        try:
            # A cached listing would break guarantee 5.
            self._filesystem.invalidate_cache(self._full_path(directory))
            found = self._filesystem.ls(self._full_path(directory), detail=True)
        except FileNotFoundError:
            return []
        files = [
            StoredFile(str(item["name"]).rsplit("/", 1)[-1], int(item["size"])) for item in found if _is_file(item)
        ]
        return sorted(file for file in files if file.name and not file.name.startswith("."))

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        self._forget_listing(path)
        try:  # `isfile` would hide errors of the store
            return bool(self._filesystem.info(self._full_path(path))["type"] == "file")
        except FileNotFoundError:
            return False

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._full_path(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist."""
        for path in paths:
            self.delete(path)

    def sync(self, path: str) -> None:
        """Checks that the object exists: a readable object is durable."""
        if not self.exists(path):
            raise FileNotFoundError(path)

    def local_path(self, path: str) -> str | None:
        """None: the file is not on this machine's file system."""
        return None

    def replace(self, path: str, data: Buffer) -> None:
        """Writes the object whole."""
        self._make_parent(path)
        self._filesystem.pipe_file(self._full_path(path), bytes(data))

    def _forget_listing(self, path: str) -> None:
        """Makes fsspec ask the store: it would answer from an old listing of the directory."""
        self._filesystem.invalidate_cache(self._full_path(path).rpartition("/")[0])

    def _full_path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _make_parent(self, path: str) -> None:
        self._filesystem.makedirs(self._full_path(path).rsplit("/", 1)[0], exist_ok=True)


def _is_file(item: dict[str, Any]) -> bool:
    return item.get("type") == "file"


def is_pattern(path: str) -> bool:
    """Whether fsspec would take the path for a pattern, and delete what matches it, and not the path itself."""
    return not _MAGIC.isdisjoint(path)
