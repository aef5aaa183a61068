"""Storage on an object store: a file is one object, written whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MethodType
from typing import Any, NoReturn, TypeVar

from spark_cec.adapters.filesystems import bucket_of, had_good_keys, is_of_keys, note_good_keys
from spark_cec.adapters.fsspec_base import FsspecStorage, is_pattern
from spark_cec.adapters.hadoop_settings import find_retry_s
from spark_cec.adapters.retries import (
    KeyRefusal,
    has_lost_upload,
    lender_of,
    may_pass,
    refusal_of,
    repeat,
    status_of,
)
from spark_cec.errors import AlreadyExists, CecError, KeysRefused, LogLocationError, NoAnswer
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Listing, probe

_PRECONDITION_FAILED = 412
_RANGE_NOT_SATISFIABLE = 416

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

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the keys of an object store come from.

    `renew` takes the file system whose keys were refused, and gives one that has read them later. `given_by` names the
    setting that has the keys, if nothing renews them.
    """

    renew: Callable[[Any], Any]
    given_by: Callable[[], str | None]


class ObjectStorage(FsspecStorage):
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
        self._bucket = bucket_of(url)
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
        if not self._marks or any(map(is_pattern, [self._root, *paths])):
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
        note_good_keys(self._bucket)
        return answer

    def _renew(self, keys: KeySource, refusal: KeyRefusal) -> bool:
        """Reads the keys again; false if they cannot be read now, as while their file is being written.

        Raises `LogLocationError` if it is about something else, or if the keys were never good.
        """
        try:
            self._filesystem, self._unread = keys.renew(self._filesystem), None
        except LogLocationError as error:
            if not self._were_good(refusal) or not is_of_keys(error):
                raise
            self._unread = error
            return False
        self._end_retries()
        return True

    def _were_good(self, refusal: KeyRefusal) -> bool:
        """Whether the store took the refused keys before. So others may come: it is worth to wait for them."""
        return refusal.has_expired or had_good_keys(self._bucket)

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
