"""Storage: the operations that the log needs from a file system, and their guarantees."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Protocol

from spark_cec.errors import AlreadyExists, LogLocationError, mend_of
from spark_cec.log.frame import Buffer


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """A file in a directory. `name` has no directory; `size` is in bytes."""

    name: str
    size: int


Listing = list[StoredFile]

_READS_OF_FILES, _READS_OF_OBJECTS = 4, 16
"""Reads at the same time. A read of an object mostly waits for the network."""

_DELETED_AT_ONCE = 1_000
"""One request on S3; some seconds on HDFS."""

RACERS = 8
"""The concurrent creators of a probe of an object store. Some stores refuse a second creation only in sequence."""


class Appender(Protocol):
    """An open file that only grows; made by `Storage.append_to_new`, used by one thread at a time."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers in order at the end; durable on return. If it raises, any part may have been written."""

    def still_linked(self) -> bool:
        """False if the file was deleted, replaced or moved, so that no reader can find later bytes."""

    def close(self) -> None:
        """Closes the file; may be called again."""


class Storage(Protocol):
    """Files below one root. Paths are relative to it, with `/` between the parts. Safe for several threads.

    The log relies on these guarantees:

    1. `create` is atomic and create-if-absent: of several callers with different bytes exactly one succeeds. No
       reader, also after a crash, ever sees a part of the file. On a storage without marks of writers (HDFS, and all
       object stores but S3) a second call with equal bytes may succeed, because the answer to the first one may have
       been lost.
    2. `replace` is atomic: a reader sees the old bytes or the new, never a mixture and never nothing.
    3. `create`, `replace` and `Appender.append` are durable on return, the file's name included.
    4. Appended bytes become visible in order, within one `append` too. A reader, also after a crash, sees a prefix of
       them, possibly followed by zero bytes. Durable bytes do not change.
    5. `list` shows every file whose creation returned before the call, and never an unfinished file.
    6. `read` of a range of a growing file returns the bytes that are there.

    A missing file is a `FileNotFoundError`, any other failure an `OSError` that names the file. A read past the end
    gives no bytes.
    """

    @property
    def url(self) -> str:
        """The root, for messages."""

    @property
    def can_append(self) -> bool:
        """Whether `append_to_new` works; if not, every write is a `create`."""

    def create(self, path: str, data: Buffer) -> None:
        """Creates a file with these bytes, and its directories. `AlreadyExists` if the file exists."""

    def replace(self, path: str, data: Buffer) -> None:
        """Creates or replaces a file with these bytes."""

    def append_to_new(self, path: str) -> Appender:
        """Creates an empty file to append to. `AlreadyExists` if it exists, `OSError` if `can_append` is false."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end of the file."""

    def size(self, path: str) -> int:
        """Bytes in the file now. The size in a listing may be up to a minute old if another machine appends."""

    def list(self, directory: str) -> Listing:
        """The files directly in the directory, sorted by name; empty if the directory is missing."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist, in any order. If it raises, any of them may be deleted."""

    def sync(self, path: str) -> None:
        """Makes the readable bytes of a file durable: its writer may have died before."""

    def local_path(self, path: str) -> str | None:
        """The file's path on this machine's own file system, or None for another kind of storage."""

    def probe_writable(self) -> None:
        """Creates a small file, tries to create it again, and deletes it. `LogLocationError` if a step fails.

        On an object store several creators race for the file.
        """


def reads_at_once(storage: Storage) -> int:
    """How many reads of this storage should be under way at the same time."""
    return _READS_OF_FILES if storage.can_append else _READS_OF_OBJECTS


def probe(storage: Storage) -> None:
    """Implements `probe_writable` for any storage."""
    path = f"probe-{secrets.token_hex(8)}"
    try:
        winners = _race(storage, path) if not storage.can_append else int(_can_create(storage, path, b"probe"))
        twice = _can_create(storage, path, b"another probe")
        storage.delete(path)
    except LogLocationError:
        raise
    except FileNotFoundError as error:
        raise LogLocationError(
            storage.url,
            "its bucket or container does not exist, or this user may not see it: create it, or correct the URL",
        ) from error
    except Exception as error:
        mend = mend_of(error)
        if mend is not None:
            raise LogLocationError(storage.url, f"cannot be written: {mend}") from error
        mend = "make it a directory that this user may write to, or choose another location"
        raise LogLocationError(storage.url, f"cannot be written ({error}); {mend}") from error
    if twice:
        raise LogLocationError(storage.url, "it lets a file be created twice; use a store with conditional writes")
    if winners > 1:
        raise LogLocationError(
            storage.url,
            f"it let {winners} of {RACERS} writers create one object at the same moment, so two runs of a query could "
            f"both commit; use a store whose conditional writes hold among concurrent writers",
        )


def delete_until(storage: Storage, paths: Sequence[str], end: float) -> Sequence[str]:
    """Deletes files in this order, a thousand at a time, until `end` by `time.monotonic`. Answers the deleted ones.

    The first thousand go in any case. A million deletions may take an hour, and nobody waits so long for an answer.
    """
    done = 0
    while done < len(paths) and (done == 0 or time.monotonic() < end):
        storage.delete_all(paths[done : done + _DELETED_AT_ONCE])
        done += _DELETED_AT_ONCE
    return paths[:done]


def _race(storage: Storage, path: str) -> int:
    """How many of several concurrent creators of one object succeed."""
    together = Barrier(RACERS)

    def attempt(number: int) -> bool:
        together.wait()
        return _can_create(storage, path, b"probe %d" % number)

    with ThreadPoolExecutor(RACERS) as pool:
        return sum(pool.map(attempt, range(RACERS)))


def _can_create(storage: Storage, path: str, content: bytes) -> bool:
    try:
        storage.create(path, content)
    except AlreadyExists:
        return False
    return True
