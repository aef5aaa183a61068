"""Files of checkpoints, by Spark's own file systems: a checkpoint may be wherever Spark can read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class HadoopFiles:
    """Files below one directory, which need not be there."""

    def __init__(self, jvm: Any, conf: Any, root: str) -> None:
        self._jvm = jvm
        self._conf = conf
        self.root = root.rstrip("/")
        self._fs = jvm.org.apache.hadoop.fs.Path(self.root).getFileSystem(conf)

    @property
    def url(self) -> str:
        """The directory as Spark names that of a query."""
        return str(self._fs.makeQualified(self._path("")).toString())

    @property
    def is_readable(self) -> bool:
        """Whether Spark's reader of state finds the directory: it escapes the name once too often."""
        utils = self._jvm.org.apache.spark.sql.execution.streaming.utils.StreamingUtils
        resolved = str(utils.resolvedCheckpointLocation(self._conf, self.root))
        return resolved.replace("file:///", "file:/") == self.url

    def names(self, directory: str = "") -> list[str]:
        """What is directly in a directory, hidden files left out, sorted; empty if there is none."""
        return sorted(name for name, _ in self._list(directory))

    def newest_ms(self, directories: Iterable[str]) -> int:
        """When a file of these directories was last written, in ms since 1970; 0 if there is none."""
        return max((written for directory in directories for _, written in self._list(directory)), default=0)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> str:
        """A small file, whole."""
        stream = self._fs.open(self._path(path))
        try:
            return str(self._jvm.java.lang.String(stream.readAllBytes(), "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """A small file, whole, in place of what is there."""
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def copy(self, path: str, to: HadoopFiles) -> None:
        """A file, or a directory with all that is in it, to the same place below another directory."""
        if not self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            self._fs, self._path(path), to._fs, to._path(path), False, True, self._conf
        ):
            raise OSError(f"{self.root}/{path} was not copied to {to.root}")

    def make(self) -> None:
        """The directory itself."""
        self._fs.mkdirs(self._path(""))

    def remove(self) -> None:
        """The directory itself, with all that is in it."""
        self._fs.delete(self._path(""), True)

    def _list(self, directory: str) -> list[tuple[str, int]]:
        if not self.exists(directory):
            return []
        found = self._fs.listStatus(self._path(directory))
        every = [(str(file.getPath().getName()), int(file.getModificationTime())) for file in found]
        return [(name, written) for name, written in every if not name.startswith(".")]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)
