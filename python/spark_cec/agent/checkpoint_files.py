"""Calls of the checkpoint file manager: entries of Spark's offset and commit logs on an object store."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.messages import (
    CreateFileRequest,
    DeleteFilesRequest,
    Done,
    ListFilesAnswer,
    ListFilesRequest,
    ReadFileAnswer,
    ReadFileRequest,
)
from spark_cec.errors import AlreadyExists
from spark_cec.log.storage import Storage


class NewestEntries:
    """The entry that this agent wrote last in the offset log of each checkpoint: others need not read it."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, bytes]] = {}

    def note(self, checkpoint: str, path: str, content: bytes) -> None:
        """Notes an entry that is durable."""
        if path.startswith("offsets/"):
            self._entries[checkpoint.rstrip("/")] = (path, content)

    def find(self, checkpoint: str, path: str) -> bytes | None:
        """The bytes of the entry, if it is the newest one."""
        known, content = self._entries.get(checkpoint.rstrip("/"), ("", b""))
        return content if known == path else None


class CheckpointFileCalls:
    """The file manager's calls. Each is one request to the store.

    `confirm_lease` raises `Fenced` if this process had the lease of a checkpoint and has lost it. A change is confirmed
    before each of its attempts: a request may be repeated for longer than a lease that is silent lasts.
    """

    def __init__(self, confirm_lease: Callable[[str], None], newest: NewestEntries) -> None:
        self._confirm_lease = confirm_lease
        self._newest = newest

    def create(self, request: CreateFileRequest) -> Done:
        """Creates a file of a checkpoint, whole. Raises `AlreadyExists`, unless it may overwrite the file."""
        storage, content = self._open_confirmed(request.checkpoint), base64.b64decode(request.content)
        if request.overwrites:
            storage.replace(request.path, content)
        else:
            try:
                storage.create(request.path, content)
            except AlreadyExists:
                # The agent of the first call may have died after it wrote the file.
                if not request.retry or storage.read(request.path) != content:
                    raise
        self._newest.note(request.checkpoint, request.path, content)
        return Done()

    def read(self, request: ReadFileRequest) -> ReadFileAnswer:
        """Answers the bytes of a file of a checkpoint."""
        try:
            content = open_storage(request.checkpoint).read(request.path)
        except FileNotFoundError:
            return ReadFileAnswer(content=None)
        return ReadFileAnswer(content=base64.b64encode(content).decode())

    def list(self, request: ListFilesRequest) -> ListFilesAnswer:
        """Answers the names in a directory of a checkpoint."""
        names = [file.name for file in open_storage(request.checkpoint).list(request.directory)]
        return ListFilesAnswer(names=tuple(names))

    def delete(self, request: DeleteFilesRequest) -> Done:
        """Deletes the files of a checkpoint that exist."""
        self._open_confirmed(request.checkpoint).delete_all(request.paths)
        return Done()

    def _open_confirmed(self, checkpoint: str) -> Storage:
        self._confirm_lease(checkpoint)
        return open_storage(checkpoint, confirm=partial(self._confirm_lease, checkpoint))
