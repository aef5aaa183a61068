"""Storage by URL: this machine's file system, memory, HDFS, and every other file system of fsspec.

fsspec promises neither durability nor create-if-absent nor atomic replacement. So local files and HDFS bypass fsspec
(`local_storage`, `hdfs_storage`), and memory has a lock. On any other file system a file is one object, written whole.
The store itself must refuse to create an object twice. fsspec's own check before a write would let two creators both
succeed.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, NoReturn, TypeVar

import fsspec

from spark_cec.adapters.hadoop_settings import find_options, find_retry_s, name_given_keys
from spark_cec.adapters.hdfs_storage import SCHEMES, HdfsStorage, open_hdfs
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.adapters.retries import (
    KeyRefusal,
    has_lost_upload,
    lender_of,
    may_pass,
    pauses,
    refusal_of,
    repeat,
    status_of,
)
from spark_cec.adapters.s3_keys import forget_sessions
from spark_cec.errors import AlreadyExists, CecError, KeysRefused, LogLocationError, NoAnswer
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, Storage, StoredFile, probe

_EXCLUSIVE = frozenset({"s3", "gs", "gcs", "abfs", "az"})
"""Protocols whose `pipe_file(mode="create")` is a conditional write of the store (s3fs, gcsfs, adlfs)."""

_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "azure", "az": "azure"}
"""The extra that brings the package for a protocol."""

_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs"}
_GOOGLE = frozenset({"gs", "gcs"})
_HADOOP_ONLY = frozenset({"webhdfs", "swebhdfs", "har", "ofs", "o3fs"})
"""Protocols that Spark reaches through Hadoop, and that have no create-if-absent through fsspec."""

_PRECONDITION_FAILED = 412
_RANGE_NOT_SATISFIABLE = 416

_ONE_ATTEMPT = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
"""Turns botocore's own retries off: `retries` repeats a request, for as long as the setting says."""

_GOOGLE_LIMITS = {"sock_connect": 20.0, "sock_read": 60.0}
"""The seconds that gcsfs waits for a connection, and for the next bytes of an answer: by itself it waits for ever.

They are those of Azure's client. s3fs has shorter ones.
"""

_SAY_KEYS = frozenset({"key", "anon", "session"})
_KEYS = frozenset({"key", "secret", "token", "anon", "profile", "session", "username", "password"})
"""Options of s3fs that say where keys come from: those that Hadoop's settings lead to, and all."""

_MAGIC = frozenset("*?[")

_MARK = "cec-write"
"""The name in an object's metadata of a random text, by which its writer knows the object again."""

_NUMBERS = ((FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES), (TimeoutError, errno.ETIMEDOUT))
"""The error numbers of classes that fsspec raises without a number."""

_DELETED_AT_ONCE = 8
"""The requests that delete objects at the same time, in a store without bulk deletion."""

_NUMBERS_BY_STATUS = {404: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES}
"""The error numbers of answers that gcsfs and adlfs raise as errors of other classes."""

_GCSFS_FORBIDDEN = "Forbidden:"
"""The begin of gcsfs's error for the status 403, which has neither a number nor a status."""

_MEMORY_LOCK = threading.RLock()

_Answer = TypeVar("_Answer")


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
    known = _ALIASES.get(protocol, protocol)
    if known in _HADOOP_ONLY:
        raise LogLocationError(
            url,
            f"{known} is not supported, neither for a query's checkpoint nor for its log "
            f"(spark.sql.streaming.stateStore.cec.log.path): use a disk or mounted file system that all machines see, "
            f"HDFS (hdfs://), S3, Google Cloud Storage or Azure",
        )
    filesystem, root = _await_filesystem(url, f"{known}:{location}", known)
    if protocol == "memory":
        return MemoryStorage(url, filesystem, root)

    def renew(failed: Any) -> Any:
        return _renew_filesystem(url, f"{known}:{location}", known, failed)

    keys = KeySource(renew, lambda: name_given_keys(known, url))
    return ObjectStorage(
        url, filesystem, root, exclusive=known in _EXCLUSIVE, marks=known == "s3", keys=keys, confirm=confirm
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
    if isinstance(storage, _FsspecStorage):
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
    if isinstance(storage, _FsspecStorage) and _is_pattern(root):
        storage.delete_all([path.removeprefix(root).lstrip("/") for path in filesystem.find(root)])
        return
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(root, recursive=True)


def _is_pattern(path: str) -> bool:
    """Whether fsspec would take the path for a pattern, and delete what matches it, and not the path itself."""
    return not _MAGIC.isdisjoint(path)


def _locate(storage: Storage) -> tuple[Any, str]:
    """fsspec's file system, and the path there."""
    if isinstance(storage, _FsspecStorage):
        return storage.place
    return fsspec.filesystem("file"), str(storage.local_path(""))


def _file_path(url: str, rest: str) -> Path:
    if rest.startswith("//") and not rest.startswith("///"):
        raise LogLocationError(url, "a file URL has no host; write file:///directory")
    return Path("/" + rest.lstrip("/"))


def _filesystem(url: str, known_url: str, protocol: str) -> tuple[Any, str]:
    try:
        options = find_options(protocol, url)
        if protocol == "s3":
            configured = fsspec.config.conf.get("s3", {})
            if options.keys() & _SAY_KEYS:  # fsspec's own configuration has keys for queries that have none
                configured = {name: value for name, value in configured.items() if name not in _KEYS}
            options = _merge(_ONE_ATTEMPT, configured, options)
        if protocol in _EXCLUSIVE:
            # A cached listing would break guarantee 5: another thread may have begun it before this one asked.
            options = {**options, "use_listings_cache": False}
        if protocol in _GOOGLE:
            filesystem, root = _google_filesystem(known_url, options)
        else:
            filesystem, root = fsspec.core.url_to_fs(known_url, **options)
    except LogLocationError:
        raise
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        mend = f"pip install 'spark-cec[{extra}]'" if extra is not None else "install it"
        raise LogLocationError(url, f"a package is missing on this machine ({error}); {mend}") from error
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise LogLocationError(url, f"{reason}; use a directory, or a protocol that fsspec knows") from error
    return filesystem, str(root).rstrip("/")


def _await_filesystem(url: str, known_url: str, protocol: str) -> tuple[Any, str]:
    """As `_filesystem`. If keys were good there, it waits for a key file that is being written.

    It waits for as long as a request is repeated.
    """
    waits = pauses(find_retry_s())
    while True:
        try:
            return _filesystem(url, known_url, protocol)
        except LogLocationError as error:
            is_awaited = _bucket_of(url) in _good_keys and _is_of_keys(error)
            wait = next(waits, None) if is_awaited else None
            if wait is None:
                raise
        time.sleep(wait)


def _is_of_keys(error: LogLocationError) -> bool:
    """Whether it may be about keys that are being written: it is the failure of the store's own package."""
    return error.__cause__ is not None and not isinstance(error.__cause__, ImportError)


_good_keys: set[tuple[str, str]] = set()
"""The buckets whose stores have taken keys of this process. Each request may come from a storage of its own.

Several threads may add to it, and look into it.
"""


def forget_good_keys() -> None:
    """Forgets which stores have taken keys of this process."""
    _good_keys.clear()


def _bucket_of(url: str) -> tuple[str, str]:
    """The kind of store of a URL, and its bucket, or its container and account."""
    protocol, _, rest = url.partition(":")
    known = _ALIASES.get(protocol, protocol)
    return _EXTRAS.get(known, known), rest.lstrip("/").partition("/")[0]


_renewing = threading.Lock()


def _renew_filesystem(url: str, known_url: str, protocol: str, failed: Any) -> Any:
    """A file system whose keys were read after those of `failed`: another storage may have made it already."""
    with _renewing:
        filesystem, _ = _filesystem(url, known_url, protocol)
        if filesystem is not failed:
            return filesystem
        type(failed).clear_instance_cache()
        forget_sessions()
        return _filesystem(url, known_url, protocol)[0]


def _google_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """gcsfs's class for plain buckets.

    Its class for other kinds asks a second service before each request, which emulators do not have. It would then wait
    for a minute each time. In a zonal bucket it overwrites an object that it must only create.
    """
    plain = importlib.import_module("gcsfs.core").GCSFileSystem
    return plain(**{**_google_limits(), **options}), str(plain._strip_protocol(url))


def _google_limits() -> dict[str, Any]:
    """The option of gcsfs for its limits, unless fsspec's own configuration has it. A whole request has no limit."""
    if any("requests_timeout" in fsspec.config.conf.get(each, {}) for each in _GOOGLE):
        return {}
    return {"requests_timeout": importlib.import_module("aiohttp").ClientTimeout(total=None, **_GOOGLE_LIMITS)}


def _merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The options of all layers; a later one wins, and options that are mappings are merged in the same way."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            merged[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


class _FsspecStorage:
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


class MemoryStorage(_FsspecStorage):
    """fsspec's memory file system, which this process shares and which ends with the process.

    Reads take the lock too: a file cannot grow while its bytes are in view.
    """

    can_append = True

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the file."""
        with _MEMORY_LOCK:
            return super().read(path, offset, length)

    def size(self, path: str) -> int:
        """Bytes in the file."""
        with _MEMORY_LOCK:
            return super().size(path)

    def exists(self, path: str) -> bool:
        """Whether the file exists. Memory has no errors, and its `info` of a missing file scans all files."""
        return bool(self._filesystem.isfile(self._full_path(path)))

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        with _MEMORY_LOCK:
            return super().list(directory)

    def create(self, path: str, data: Buffer) -> None:
        """Creates a file, under the lock."""
        with _MEMORY_LOCK:
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
        with _MEMORY_LOCK:
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


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the keys of an object store come from.

    `renew` takes the file system whose keys were refused, and gives one that has read them later. `given_by` names the
    setting that has the keys, if nothing renews them.
    """

    renew: Callable[[Any], Any]
    given_by: Callable[[], str | None]


class ObjectStorage(_FsspecStorage):
    """Any other fsspec file system: whole objects only.

    `exclusive`: the store itself refuses to create an object twice. Without it the log is read-only. `marks`: a created
    object has a mark of its writer. Every error is an `OSError` that names the object. A request whose failure may pass
    is repeated (`retries`), after a call of `confirm`. If the store refuses its `keys`, they are read again.
    """

    can_append = False

    def __init__(
        self,
        url: str,
        filesystem: Any,
        root: str,
        *,
        exclusive: bool,
        marks: bool = False,
        keys: KeySource | None = None,
        confirm: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(url, filesystem, root)
        self._exclusive = exclusive
        self._marks = marks
        self._keys = keys
        self._confirm = confirm
        self._bucket = _bucket_of(url)
        self._unread: LogLocationError | None = None
        self._end_retries()

    def _end_retries(self) -> None:
        if self._marks:
            self._filesystem.retries = 1  # s3fs has a loop of its own around botocore's
        _end_azure_retries(self._filesystem)
        _end_google_retries(self._filesystem)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the object."""
        return self._repeat(path, lambda: self._read_once(path, offset, length))

    def _read_once(self, path: str, offset: int, length: int | None) -> bytes:
        try:
            return super().read(path, offset, length)
        except Exception as error:
            # A range that begins at the end or behind it is an error of the store.
            if status_of(error) == _RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def size(self, path: str) -> int:
        """Bytes in the object."""
        return self._repeat(path, lambda: super(ObjectStorage, self).size(path))

    def list(self, directory: str) -> Listing:
        """The objects directly below a prefix."""
        return self._repeat(directory, lambda: super(ObjectStorage, self).list(directory))

    def exists(self, path: str) -> bool:
        """Whether the object exists. Reads a byte: fsspec's `info` would also list what may lie below the path."""
        try:
            self.read(path, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Deletes the object, if it exists."""
        self._repeat(path, lambda: super(ObjectStorage, self).delete(path), conflicts=True)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the objects that exist: on S3 all but the first in bulk, unless a path looks like a pattern.

        s3fs reports no error of a bulk deletion, so the first object tells whether this user may delete.
        """
        if not self._marks or any(map(_is_pattern, [self._root, *paths])):
            with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
                list(pool.map(self.delete, paths))
        elif paths:
            first, *others = paths
            self.delete(first)
            if others:
                full = [self._full_path(path) for path in others]
                self._repeat(first, lambda: self._filesystem.rm(full), conflicts=True)

    def replace(self, path: str, data: Buffer) -> None:
        """Writes the object whole."""
        self._repeat(path, lambda: super(ObjectStorage, self).replace(path, data), conflicts=True)

    def create(self, path: str, data: Buffer) -> None:
        """Creates an object, by the store's own conditional write. `LogLocationError` if the store has none.

        The answer to a request may get lost, and any layer below may repeat it then without a word. So if the object
        exists, its mark decides whether this call wrote it; in a store without marks, equal bytes do. There two callers
        write bytes that differ, or do not mind which of them succeeds.
        """
        if not self._exclusive:
            raise LogLocationError(
                self.url,
                "this file system cannot create a file only if it is absent, and then two runs of a query could both "
                "commit; put the log on a disk, HDFS, S3, Google Cloud Storage or Azure (cec.log.path)",
            )
        content, mark = bytes(data), secrets.token_hex(16)
        more = {"Metadata": {_MARK: mark}} if self._marks else {}

        def is_ours() -> bool:
            if self._marks:
                return bool(self._filesystem.metadata(self._full_path(path)).get(_MARK) == mark)
            return self.read(path) == content

        def attempt() -> None:
            try:
                self._filesystem.pipe_file(self._full_path(path), content, mode="create", **more)
            except Exception as error:
                is_refused = isinstance(error, FileExistsError) or status_of(error) == _PRECONDITION_FAILED
                if not is_refused and not (has_lost_upload(error) and self.exists(path)):
                    raise
                if not is_ours():
                    raise AlreadyExists(path) from error

        self._repeat(path, attempt, conflicts=True)

    def _repeat(self, path: str, action: Callable[[], _Answer], *, conflicts: bool = False) -> _Answer:
        """Does the action, again and again while its failure may pass, for at most `cec.storage.retry`."""
        renewed = False

        def passes(error: Exception) -> bool:
            nonlocal renewed
            refusal = None if self._keys is None else refusal_of(error)
            if self._keys is None or refusal is None:
                return may_pass(error, conflicts=conflicts)
            if renewed and (not self._were_good(refusal) or self._keys.given_by() is not None):
                return False
            renewed = self._renew(self._keys, refusal)
            return True

        with self._naming(path):
            answer = repeat(action, passes, find_retry_s(), self._confirm)
        _good_keys.add(self._bucket)
        return answer

    def _renew(self, keys: KeySource, refusal: KeyRefusal) -> bool:
        """Reads the keys again; false if they cannot be read now, as while their file is being written.

        Raises `LogLocationError` if it is about something else, or if the keys were never good.
        """
        try:
            self._filesystem, self._unread = keys.renew(self._filesystem), None
        except LogLocationError as error:
            if not self._were_good(refusal) or not _is_of_keys(error):
                raise
            self._unread = error
            return False
        self._end_retries()
        return True

    def _were_good(self, refusal: KeyRefusal) -> bool:
        """Whether the store took the refused keys before. So others may come: it is worth to wait for them."""
        return refusal.has_expired or self._bucket in _good_keys

    def append_to_new(self, path: str) -> NoReturn:
        """Raises `OSError`: objects cannot grow."""
        raise OSError(errno.ENOTSUP, f"{self.url} cannot append; write whole objects", path)

    def probe_writable(self) -> None:
        """Creates and deletes a small object."""
        probe(self)

    def _make_parent(self, path: str) -> None:
        """Object stores have no directories. fsspec's `makedirs` would ask for the bucket, and create a missing one."""
        if not self._exclusive:
            super()._make_parent(path)

    @contextlib.contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Gives each error of the store the object's URL, and turns errors of other classes into `OSError`."""
        place = f"{self.url.rstrip('/')}/{path}"
        try:
            yield
        except CecError:
            raise
        except OSError as error:
            self._raise_refusal(error, place)
            if error.filename is not None and error.errno is not None:
                raise
            said = str(error.strerror or error).partition("\n")[0][:200]
            default = errno.EACCES if said.startswith(_GCSFS_FORBIDDEN) else errno.EIO
            number = error.errno or next((each for known, each in _NUMBERS if isinstance(error, known)), default)
            raise _class_of(error)(number, said or os.strerror(number), place) from error
        except Exception as error:
            self._raise_refusal(error, place)
            said = str(error).partition("\n")[0][:200]
            if "credential" in type(error).__name__.lower():
                mend = "give them in the environment, in the store's own files, or by the machine's role"
                raise PermissionError(errno.EACCES, f"no credentials ({said}): {mend}", place) from error
            number = _NUMBERS_BY_STATUS.get(status_of(error) or 0, errno.EIO)
            raise _class_of(error)(number, f"{type(error).__name__}: {said}", place) from error


    def _raise_refusal(self, error: Exception, place: str) -> None:
        """Raises `KeysRefused` if the store refuses keys that were good before, or if STS lends none."""
        refusal = refusal_of(error)
        again = "and start the query again"
        if self._keys is not None and refusal is not None and self._were_good(refusal):
            setting, word = self._keys.given_by(), refusal.word
            if setting is None:
                how = "although they were read again"
                if self._unread is not None:
                    why = str(self._unread.__cause__).partition("\n")[0][:200]
                    how = f"and new ones cannot be read ({why})"
                mend = f"the store takes the keys no more ({word}), {how}: see to their source"
                raise KeysRefused(f"{mend}, {again}", place) from error
            raise KeysRefused(
                f"the store takes the keys of {setting} no more ({word}), and nothing renews them: give new ones, or a "
                f"source that renews them, {again}",
                place,
            ) from error
        if (said := lender_of(error)) is not None:
            mend = f"STS lends no keys ({said}): see to the role, and to who may assume it"
            raise KeysRefused(f"{mend}, {again}", place) from error


def _end_azure_retries(filesystem: Any) -> None:
    """Turns the retries of Azure's client off, whose first pause is 15 seconds. adlfs has no option for that."""
    pipeline = getattr(getattr(filesystem, "service_client", None), "_pipeline", None)
    for policy in getattr(pipeline, "_impl_policies", ()):
        if hasattr(policy, "total_retries"):
            policy.total_retries = 0


def _end_google_retries(filesystem: Any) -> None:
    """Turns gcsfs's own retries off: it would wait for a silent server six times, whatever `storage.retry` says.

    gcsfs has no option for that. Its method for a request is one that repeats another one.
    """
    once = getattr(getattr(type(filesystem), "_request", None), "__wrapped__", None)
    if once is not None and type(filesystem).__module__.startswith("gcsfs."):
        filesystem._request = MethodType(once, filesystem)


def _class_of(error: Exception) -> type[OSError]:
    return NoAnswer if may_pass(error) else OSError


def _is_file(item: dict[str, Any]) -> bool:
    return item.get("type") == "file"
