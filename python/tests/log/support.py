"""What the log's tests share: fixed ids, small metas and records, and storages that fail on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import Buffer, CommitMeta, FrameKind, LoadedMeta, Location, Meta, OutputMeta, encode_frame
from spark_cec.log.meta import kind_of
from spark_cec.log.record import PLAIN_SCHEMA, RecordKind, encode_records
from spark_cec.log.segment import SegmentName, encode_segment_frame, segment_path
from spark_cec.log.storage import Appender, Listing, Storage, StoredFile
from spark_cec.log.writer import SegmentWriter

LOG_ID = "0123456789abcdef0123456789abcdef"
WRITER_ID = "0198c0ffee00-00112233445566ff"
STORE = StoreId(0, 3)
SEGMENT = str(SegmentName(WRITER_ID, 0))

WRITES = ("create", "replace", "append_to_new", "append")
"""The calls of a storage that need room. A full disk lets files be read and deleted."""

_memory_roots = count()


def memory_storage() -> Storage:
    """A fresh root in memory."""
    return open_storage(f"memory://log-tests-{next(_memory_roots)}")


def clear_memory() -> None:
    """Empties the memory file system: each listing looks at every file that any storage of the process has there."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def checkpoint_id(version: int, attempt: int = 0) -> bytes:
    """A fixed id for an attempt at a version."""
    return bytes([attempt]) * 8 + version.to_bytes(8, "big", signed=True)


def commit_meta(version: int = 1, **changes: Any) -> CommitMeta:
    """A commit of one opened window."""
    fields: dict[str, Any] = {
        "store": STORE,
        "version": version,
        "checkpoint_id": checkpoint_id(version),
        "base_checkpoint_id": checkpoint_id(version - 1) if version > 1 else NO_CHECKPOINT,
        "generation": 1,
        "open_windows": version,
        "dirty_from": version,
        "oldest_footprint": 1,
        "opened": 1,
        "checked": 0,
        "closed": 0,
        "records": 1,
        "inputs": 10,
        "dirty_windows": 0,
        "wall_ms": 1_000 * version,
        "watermark_ms": 900 * version,
    }
    return CommitMeta(**{**fields, **changes})


def output_meta(frame_id: int = 1, **changes: Any) -> OutputMeta:
    """Output of three rows."""
    fields: dict[str, Any] = {
        "frame_id": frame_id.to_bytes(16, "big"), "batch": 0, "partition": 0, "attempt": 0, "generation": 1, "rows": 3,
        "wall_ms": 1_000,
    }  # fmt: skip
    return OutputMeta(**{**fields, **changes})


def loaded_meta(**changes: Any) -> LoadedMeta:
    """A load of the store at version 1."""
    fields: dict[str, Any] = {"store": STORE, "version": 1, "generation": 1, "wall_ms": 1_000}
    return LoadedMeta(**{**fields, **changes})


def records(*windows: bytes, kind: RecordKind = RecordKind.OPEN) -> pa.Table:
    """One record per window; its value is the window doubled."""
    columns = {
        "kind": pa.array([kind] * len(windows), pa.int8()),
        "window": pa.array(windows, pa.binary()),
        "value": pa.array([None if kind is RecordKind.CLOSE else w * 2 for w in windows], pa.binary()),
    }
    return pa.table(columns, schema=PLAIN_SCHEMA)


def payload_of(version: int) -> bytes:
    """A payload that tells its version."""
    return bytes(encode_records(records(b"window-%d" % version), compression=None))


def frame_bytes(meta: Meta, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return b"".join(encode_frame(kind_of(meta), meta.encode(), payload))


def segment_bytes(frames: Sequence[bytes], name: SegmentName | None = None) -> bytes:
    """A segment: its first frame, then these."""
    return b"".join([*encode_segment_frame(LOG_ID, name or SegmentName(WRITER_ID, 0), 7), *frames])


def put_segment(storage: Storage, data: bytes, segment: str = SEGMENT) -> str:
    """Writes a segment as it is."""
    storage.replace(segment_path(segment), data)
    return segment


def make_writer(storage: Storage, segment_bytes: int = 1 << 20, writer_id: str = WRITER_ID) -> SegmentWriter:
    """A writer with a clock that stands still."""
    return SegmentWriter(storage, LOG_ID, writer_id, lambda: 7, segment_bytes)


def append_commits(writer: SegmentWriter, versions: Sequence[int]) -> list[Location]:
    """One commit per version."""
    return [writer.append(FrameKind.COMMIT, commit_meta(v), payload_of(v)).location for v in versions]


class Crash(BaseException):
    """The process ends here; only the test may catch it."""


@dataclass
class Fault:
    """Fails the `call`-th storage call (from 1), `before`, `during` or `after` it takes effect.

    `during` an append, half of the bytes are there, then the other half as zero bytes if `zeros`. The calls that are
    atomic by contract do not happen at all `during`. `error` is what is raised; `tripped` tells that it was.
    """

    call: int
    when: str = "before"
    zeros: bool = False
    error: Callable[[], BaseException] = Crash
    calls: int = 0
    tripped: bool = False
    seen: list[str] = field(default_factory=list)

    def run(self, name: str, whole: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """One call."""
        self.calls += 1
        self.seen.append(name)
        if self.calls != self.call:
            return whole()
        self.tripped = True
        if self.when == "during":
            half()
        if self.when == "after":
            with suppress(FileNotFoundError):  # that is an answer, too
                whole()
        raise self.error()


@dataclass
class Trouble(Fault):
    """Fails `lasts` calls from the `call`-th on. After a `Crash` the process is dead, and so are its other threads.

    `only`: calls of other names work, and do not count; None for all names.
    """

    lasts: int = 1
    only: Collection[str] | None = None
    dead: bool = False

    def run(self, name: str, whole: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """One call."""
        if self.dead:
            raise Crash
        if self.only is not None and name not in self.only:
            return whole()
        self.calls += 1
        self.seen.append(name)
        if not self.call <= self.calls < self.call + self.lasts:
            return whole()
        self.tripped = True
        error = self.error()
        self.dead = isinstance(error, Crash)
        if self.when == "after":
            with suppress(FileNotFoundError):  # that is an answer, too
                whole()
        raise error


class FaultyStorage:
    """A storage that fails as its fault says; what it wraps is what is found after the crash."""

    def __init__(self, inner: Storage, fault: Fault | None = None) -> None:
        self.inner = inner
        self.fault = fault or Fault(call=0)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def can_append(self) -> bool:
        return self.inner.can_append

    def create(self, path: str, data: Buffer) -> None:
        self.fault.run("create", lambda: self.inner.create(path, data))

    def replace(self, path: str, data: Buffer) -> None:
        self.fault.run("replace", lambda: self.inner.replace(path, data))

    def append_to_new(self, path: str) -> Appender:
        opened: Appender = self.fault.run("append_to_new", lambda: self.inner.append_to_new(path))
        return FaultyAppender(opened, self.fault)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        found: bytes = self.fault.run("read", lambda: self.inner.read(path, offset, length))
        return found

    def size(self, path: str) -> int:
        found: int = self.fault.run("size", lambda: self.inner.size(path))
        return found

    def list(self, directory: str) -> Listing:
        found: Listing = self.fault.run("list", lambda: self.inner.list(directory))
        return found

    def exists(self, path: str) -> bool:
        found: bool = self.fault.run("exists", lambda: self.inner.exists(path))
        return found

    def delete(self, path: str) -> None:
        self.fault.run("delete", lambda: self.inner.delete(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def sync(self, path: str) -> None:
        self.fault.run("sync", lambda: self.inner.sync(path))

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    def probe_writable(self) -> None:
        self.inner.probe_writable()


class FaultyAppender:
    """The appender of a `FaultyStorage`."""

    def __init__(self, inner: Appender, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault

    def append(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        half = data[: len(data) // 2]
        torn = half + bytes(len(data) - len(half)) if self._fault.zeros else half
        self._fault.run("append", lambda: self._inner.append(buffers), lambda: self._inner.append([torn]))

    def still_linked(self) -> bool:
        return self._inner.still_linked()

    def close(self) -> None:
        self._inner.close()


class OldSizes(DelegatingStorage):
    """As a mount of NFS: a listing shows the sizes of the listing before, until `now` moves; all else is true."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.now = self._listed_at = 0
        self._sizes: dict[tuple[str, str], int] = {}

    def list(self, directory: str) -> Listing:
        """The files, with old sizes."""
        if self._listed_at != self.now:
            self._sizes.clear()
            self._listed_at = self.now
        return [
            StoredFile(file.name, self._sizes.setdefault((directory, file.name), file.size))
            for file in super().list(directory)
        ]


class CannotAppend(FaultyStorage):
    """A storage of whole objects only."""

    @property
    def can_append(self) -> bool:
        return False

    def append_to_new(self, path: str) -> Appender:
        raise OSError(f"{path}: this storage cannot append")


class ObjectStore(MemoryFileSystem):  # type: ignore[misc]
    """Objects with conditional writes, as in S3; each instance has its own."""

    cachable = False
    conditional = True

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self._lock = threading.Lock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self._lock:
            if mode == "create" and self.conditional and self.isfile(path):
                raise FileExistsError(path)
            super().pipe_file(path, value)
