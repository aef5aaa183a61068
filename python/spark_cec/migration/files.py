"""Files of checkpoints, through Spark's own file systems: a checkpoint may be anywhere that Spark can read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


class HadoopFiles:
    """Files below one directory, which may be missing."""

    def __init__(self, jvm: Any, conf: Any, root: str) -> None:
        self._jvm = jvm
        self._conf = conf
        self.root = root.rstrip("/") or "/"
        self._fs = jvm.org.apache.hadoop.fs.Path(self.root).getFileSystem(conf)

    @property
    def url(self) -> str:
        """The directory in Spark's form of a query's URL."""
        return str(self._fs.makeQualified(self._hadoop_path("")).toString())

    @property
    def is_readable(self) -> bool:
        """Whether Spark's state reader finds the directory: it escapes the name once too often."""
        utils = self._jvm.org.apache.spark.sql.execution.streaming.utils.StreamingUtils
        resolved = str(utils.resolvedCheckpointLocation(self._conf, self.root))
        return resolved.replace("file:///", "file:/") == self.url

    def names(self, directory: str = "") -> list[str]:
        """The names directly in a directory, without hidden files, sorted; empty if the directory is missing."""
        return sorted(name for name, _ in self._list_files(directory))

    def newest_ms(self, directories: Iterable[str]) -> int:
        """The time of the newest file in these directories, in ms since 1970; 0 without files."""
        return max((written for directory in directories for _, written in self._list_files(directory)), default=0)

    def exists(self, path: str) -> bool:
        """Whether the file or directory exists."""
        return bool(self._fs.exists(self._hadoop_path(path)))

    def read(self, path: str) -> str:
        """Reads a small file."""
        stream = self._fs.open(self._hadoop_path(path))
        try:
            return str(self._jvm.java.lang.String(stream.readAllBytes(), "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Creates or replaces a small file."""
        stream = self._fs.create(self._hadoop_path(path), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def copy(self, path: str, to: HadoopFiles) -> None:
        """Copies a file, or a directory with its content, to the same path below another directory."""
        if not self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            self._fs, self._hadoop_path(path), to._fs, to._hadoop_path(path), False, True, self._conf
        ):
            raise OSError(f"{self.root}/{path} was not copied to {to.root}")

    @property
    def real(self) -> str:
        """The directory's URL without symbolic links, if this process can see them."""
        return f"file:{Path(self.url[len('file:') :]).resolve()}" if self.url.startswith("file:") else self.url

    def claim(self, path: str, text: str) -> bool:
        """Creates the directory, with one file in it; returns False, and changes nothing, if that file exists."""
        self._fs.mkdirs(self._hadoop_path(""))
        try:
            stream = self._fs.create(self._hadoop_path(path), False)
        except Exception:
            if self.exists(path):
                return False
            raise
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        return True

    def remove(self, last: str) -> None:
        """Deletes the directory with its content; the file `last` after all others."""
        for status in self._fs.listStatus(self._hadoop_path("")):
            if str(status.getPath().getName()) != last:
                self._fs.delete(status.getPath(), True)
        self._fs.delete(self._hadoop_path(""), True)

    def _list_files(self, directory: str) -> list[tuple[str, int]]:
        if not self.exists(directory):
            return []
        found = self._fs.listStatus(self._hadoop_path(directory))
        every = [(str(file.getPath().getName()), int(file.getModificationTime())) for file in found]
        return [(name, written) for name, written in every if not name.startswith(".")]

    def _hadoop_path(self, path: str) -> Any:
        root = self._jvm.org.apache.hadoop.fs.Path(self.root)
        return self._jvm.org.apache.hadoop.fs.Path(root, path) if path else root
