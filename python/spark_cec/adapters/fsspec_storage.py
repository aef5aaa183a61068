"""Storage by URL: this machine's file system, memory, HDFS, and every other file system of fsspec.

fsspec promises neither durability nor create-if-absent nor atomic replacement. So local files and HDFS bypass fsspec
(`local_storage`, `hdfs_storage`), and memory has a lock. On any other file system a file is one object, written whole.
The store itself must refuse to create an object twice. fsspec's own check before a write would let two creators both
succeed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_cec.adapters.filesystems import ALIASES, EXCLUSIVE, await_filesystem, local_filesystem, renew_filesystem
from spark_cec.adapters.fsspec_base import FsspecStorage, is_pattern
from spark_cec.adapters.hadoop_settings import name_given_keys
from spark_cec.adapters.hdfs_storage import SCHEMES, HdfsStorage, open_hdfs
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.adapters.memory_storage import MemoryStorage
from spark_cec.adapters.object_storage import KeySource, ObjectStorage
from spark_cec.errors import LogLocationError
from spark_cec.log.storage import Storage

_HADOOP_ONLY = frozenset({"webhdfs", "swebhdfs", "har", "ofs", "o3fs"})
"""Protocols that Spark reaches through Hadoop, and that have no create-if-absent through fsspec."""


def open_storage(
    url: str, *, must_exist: bool = False, confirm: Callable[[], object] = lambda: None
) -> Storage:
    """The storage rooted at `url`: a path, `file:/x`, `file:///x`, `memory://x`, or another fsspec URL (s3a is s3).

    Creates nothing. With `must_exist`, a write does not make a root directory that is missing: `LogLocationError`.
    On an object store or HDFS `confirm` is called before a request is repeated; its error ends the repetition.
    Raises `LogLocationError` if the protocol is unknown, its package missing, or the URL malformed.
    """
    protocol, separator, rest = url.partition(":")
    if not url.strip():
        raise LogLocationError(url, "it is empty; give a directory")
    if not separator or "/" in protocol or not rest.startswith("/"):
        return LocalStorage(url, Path(url).absolute(), must_exist=must_exist)
    if protocol == "file":
        return LocalStorage(url, _file_path(url, rest), must_exist=must_exist)
    if protocol in SCHEMES:
        return open_hdfs(url, confirm)
    # Hadoop also writes a URL without a host as scheme:/path, which fsspec takes for a local path.
    location = rest if rest.startswith("//") else f"//{rest}"
    known = ALIASES.get(protocol, protocol)
    if known in _HADOOP_ONLY:
        raise LogLocationError(
            url,
            f"{known} is not supported, neither for a query's checkpoint nor for its log "
            f"(spark.sql.streaming.stateStore.cec.log.path): use a disk or mounted file system that all machines see, "
            f"HDFS (hdfs://), S3, Google Cloud Storage or Azure",
        )
    filesystem, root = await_filesystem(url, f"{known}:{location}", known)
    if protocol == "memory":
        return MemoryStorage(url, filesystem, root)

    def renew(failed: Any) -> Any:
        return renew_filesystem(url, f"{known}:{location}", known, failed)

    keys = KeySource(renew, lambda: name_given_keys(known, url))
    return ObjectStorage(
        url, filesystem, root, exclusive=known in EXCLUSIVE, marks=known == "s3", keys=keys, confirm=confirm
    )


def same_place(one: str, other: str) -> bool:
    """Whether two URLs name one place, in whatever spelling; on this machine, through any links.

    Raises `LogLocationError` as `open_storage`.
    """
    return one == other or _place_key(open_storage(one)) == _place_key(open_storage(other))


def local_names(url: str) -> tuple[str, ...]:
    """The absolute name of a place on this machine, and its name behind all links; none for another storage.

    Raises `LogLocationError` as `open_storage`.
    """
    path = open_storage(url).local_path("")
    return () if path is None else (os.path.abspath(path), os.path.realpath(path))  # noqa: PTH100 (resolves no links)


def _place_key(storage: Storage) -> tuple[str, str]:
    if isinstance(storage, HdfsStorage):
        return storage.place
    if isinstance(storage, FsspecStorage):
        filesystem, root = storage.place
        protocol = filesystem.protocol
        return (protocol if isinstance(protocol, str) else protocol[0]), str(root).rstrip("/")
    return "file", os.path.realpath(str(storage.local_path("")))


def is_taken(url: str) -> bool:
    """Whether `url` has a file or a directory, even an empty or hidden one."""
    storage = open_storage(url)
    if isinstance(storage, HdfsStorage):
        return storage.is_taken()
    filesystem, root = _locate(storage)
    filesystem.invalidate_cache()
    try:  # `exists` would hide errors of the store
        filesystem.info(root)
    except FileNotFoundError:
        return False
    return True


def remove_all(url: str) -> None:
    """Removes the file or directory at `url`, if it exists, with its content."""
    storage = open_storage(url)
    if isinstance(storage, HdfsStorage):
        storage.remove_all()
        return
    filesystem, root = _locate(storage)
    if isinstance(storage, FsspecStorage) and is_pattern(root):
        storage.delete_all([path.removeprefix(root).lstrip("/") for path in filesystem.find(root)])
        return
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(root, recursive=True)


def _locate(storage: Storage) -> tuple[Any, str]:
    """fsspec's file system, and the path there."""
    if isinstance(storage, FsspecStorage):
        return storage.place
    return local_filesystem(), str(storage.local_path(""))


def _file_path(url: str, rest: str) -> Path:
    if rest.startswith("//") and not rest.startswith("///"):
        raise LogLocationError(url, "a file URL has no host; write file:///directory")
    return Path("/" + rest.lstrip("/"))
