"""An S3 in this process's memory, as fsspec's file system of the protocol `s3`.

Its objects have marks of their writers and older versions; requests may fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object. `clock`: the number of the write."""

    data: bytes
    mark: str
    clock: int


@dataclass(slots=True)
class Objects:
    """The objects of all buckets, by `bucket/key`, and the older versions of those that were replaced."""

    now: dict[str, Stored] = field(default_factory=dict)
    older: dict[str, list[Stored]] = field(default_factory=dict)
    clock: int = 0

    def copy(self) -> Objects:
        """Other objects with the same content."""
        return Objects(dict(self.now), {path: list(known) for path, known in self.older.items()}, self.clock)

    def put(self, path: str, data: bytes, mark: str) -> None:
        """Writes an object, and keeps its older version."""
        known = self.now.get(path)
        if known is not None:
            self.older.setdefault(path, []).append(known)
        self.clock += 1
        self.now[path] = Stored(data, mark, self.clock)


Fault = Callable[[str, str], "Outcome | None"]
"""What befalls a request, by its kind (`put`, `get`, `list`, `delete`) and path; None: nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The request fails with `error`: after it was carried out if `is_done`, else before."""

    error: Exception
    is_done: bool = False


class Answer(Exception):
    """An answer of the store with an error, as botocore's `ClientError`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered with {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class IncompleteRead(Exception):
    """A body that was cut short, as of `http.client`."""


class InMemoryS3(AbstractFileSystem):  # type: ignore[misc]
    """The file system. `world` and `fault` may be replaced between requests."""

    protocol = "s3"
    cachable = False
    world: ClassVar[Objects] = Objects()
    fault: ClassVar[Fault] = staticmethod(lambda _kind, _path: None)
    hidden_since: ClassVar[int | None] = None
    """If given, a listing shows no object that was written later: it is stale."""
    _lock: ClassVar[threading.RLock] = threading.RLock()

    @classmethod
    def reset(cls, world: Objects) -> None:
        """Has these objects from now on, and no faults."""
        cls.world, cls.hidden_since = world, None
        cls.fault = staticmethod(lambda _kind, _path: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("s3://").rstrip("/")

    def _do(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        outcome = type(self).fault(kind, path)
        if outcome is None:
            with self._lock:
                return action()
        if outcome.is_done:
            with self._lock:
                action()
        raise outcome.error

    def pipe_file(
        self,
        path: str,
        value: bytes,
        mode: str = "overwrite",
        Metadata: Mapping[str, str] | None = None,  # noqa: N803
    ) -> None:
        """Writes an object; with `create`, only if it is absent."""
        place = self._strip_protocol(path)

        def put() -> None:
            if mode == "create" and place in self.world.now:
                raise FileExistsError(place)
            self.world.put(place, bytes(value), (Metadata or {}).get("cec-write", ""))

        self._do("put", place, put)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Reads a range of an object."""
        place = self._strip_protocol(path)

        def get() -> bytes:
            data = self._get(place).data
            if (start or 0) >= len(data):
                raise Answer(416)
            return data[start or 0 : end]

        return bytes(self._do("get", place, get))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The size of an object."""
        place = self._strip_protocol(path)
        return {"name": place, "size": len(self._do("get", place, lambda: self._get(place)).data), "type": "file"}

    def metadata(self, path: str) -> dict[str, str]:
        """The mark of an object."""
        place = self._strip_protocol(path)
        return {"cec-write": self._do("get", place, lambda: self._get(place)).mark}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        """The objects directly below a prefix."""
        place = self._strip_protocol(path) + "/"

        def find() -> list[dict[str, Any]]:
            since = self.hidden_since
            return [
                {"name": name, "size": len(stored.data), "type": "file"}
                for name, stored in self.world.now.items()
                if name.startswith(place) and "/" not in name[len(place) :] and (since is None or stored.clock <= since)
            ]

        found: list[dict[str, Any]] = self._do("list", place, find)
        return found

    def rm_file(self, path: str) -> None:
        """Deletes an object."""
        place = self._strip_protocol(path)
        self._do("delete", place, lambda: self.world.now.pop(place, None))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes objects."""
        for each in [path] if isinstance(path, str) else path:
            self.rm_file(each)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Does nothing: there is no cache."""

    def _get(self, place: str) -> Stored:
        try:
            return self.world.now[place]
        except KeyError:
            raise FileNotFoundError(place) from None


@contextmanager
def in_memory() -> Iterator[type[InMemoryS3]]:
    """Makes `s3a://` this process's memory."""
    known = fsspec.get_filesystem_class("s3")
    fsspec.register_implementation("s3", InMemoryS3, clobber=True)
    InMemoryS3.reset(Objects())
    try:
        yield InMemoryS3
    finally:
        fsspec.register_implementation("s3", known, clobber=True)
