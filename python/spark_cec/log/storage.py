"""Storage: the few things the log asks of a file system, and what it relies on."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_cec.errors import AlreadyExists, LogLocationError, mend_of
from spark_cec.log.frame import Buffer


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """A file in a directory. `name` has no directory; `size` is in bytes."""

    name: str
    size: int


Listing = list[StoredFile]


class Appender(Protocol):
    """An open file that only grows; made by `Storage.append_to_new`, used by one thread at a time."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers in order at the end; durable on return. If it raises, any part may have been written."""

    def still_linked(self) -> bool:
        """False if the file was deleted, replaced or moved, so that what is appended here can never be read."""

    def close(self) -> None:
        """Give the file back; more than once is harmless."""


class Storage(Protocol):
    """Files below one root. Paths are relative to it, with `/` between the parts. Safe for use by several threads.

    What the log relies on:

    1. `create` is atomic and create-if-absent: of several callers exactly one succeeds, and no reader, also after a
       crash, ever sees a part of the file.
    2. `replace` is atomic: a reader sees the old bytes or the new, never a mixture and never nothing.
    3. `create`, `replace` and `Appender.append` are durable on return, the file's name included.
    4. Appended bytes become visible in order, within one `append` too: a reader, also after a crash, sees a beginning
       of them, possibly followed by zero bytes. Bytes that were once durable do not change.
    5. `list` shows every file whose creation returned before it was called, and never a file in
       the making.
    6. `read` of a range of a file that is being appended to returns the bytes that are there.

    A missing file is a `FileNotFoundError`, any other failure an `OSError`.
    """

    @property
    def url(self) -> str:
        """The root, for messages."""

    @property
    def can_append(self) -> bool:
        """Whether `append_to_new` works; if not, every write is a `create`."""

    def create(self, path: str, data: Buffer) -> None:
        """A new file with these bytes; directories are made. `AlreadyExists` if there is one."""

    def replace(self, path: str, data: Buffer) -> None:
        """A file with these bytes, whether there was one or not."""

    def append_to_new(self, path: str) -> Appender:
        """A new, empty file to append to. `AlreadyExists` if there is one, `OSError` where `can_append` is false."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end of the file."""

    def size(self, path: str) -> int:
        """Bytes in the file."""

    def list(self, directory: str) -> Listing:
        """The files directly in it, sorted by name; empty if there is no such directory."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def delete(self, path: str) -> None:
        """Remove the file; missing is fine."""

    def sync(self, path: str) -> None:
        """Make durable what can be read of a file: who wrote it may have died before it was."""

    def local_path(self, path: str) -> str | None:
        """Where the file is on this machine's own file system, or None if it is not there."""

    def probe_writable(self) -> None:
        """Create, try to create again, and delete a small file. `LogLocationError` if that goes wrong."""


def probe(storage: Storage) -> None:
    """What `probe_writable` does, for any storage."""
    path = f"probe-{secrets.token_hex(8)}"
    try:
        storage.create(path, b"probe")
        twice = _can_create(storage, path)
        storage.delete(path)
    except LogLocationError:
        raise
    except Exception as error:
        mend = mend_of(error)
        if mend is not None:
            raise LogLocationError(storage.url, f"cannot be written: {mend}") from error
        mend = "make it a directory that this user may write to, or choose another location"
        raise LogLocationError(storage.url, f"cannot be written ({error}); {mend}") from error
    if twice:
        raise LogLocationError(storage.url, "it lets a file be created twice; use a store with conditional writes")


def _can_create(storage: Storage, path: str) -> bool:
    try:
        storage.create(path, b"probe")
    except AlreadyExists:
        return False
    return True
