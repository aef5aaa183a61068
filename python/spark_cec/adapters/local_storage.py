"""Storage on this machine's file system, by the operating system's own calls."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from spark_cec.errors import GONE, AlreadyExists, LogLocationError
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Appender, Listing, StoredFile, probe

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_SYNC_OF_DIRECTORIES = {errno.EINVAL, errno.EBADF}
"""The errors by which a file system refuses to sync a directory; then its names are as durable as it makes them."""
_MAX_BUFFERS = 512


class LocalStorage:
    """This machine's file system: atomic by links and renames, durable by fsync of files and directories."""

    can_append = True

    def __init__(self, url: str, root: Path, *, must_exist: bool = False) -> None:
        """With `must_exist`, a write does not make a missing root again: it may have been unmounted or moved."""
        self.url = url
        self._root = root
        self._must_exist = must_exist

    def create(self, path: str, data: Buffer) -> None:
        """Writes a temporary file, then links it: the name appears with the whole file or not at all."""
        target = self._prepare_target(path)
        beside = self._write_beside(target, data)
        try:
            target.hardlink_to(beside)
        except FileExistsError as error:
            raise AlreadyExists(path) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._create_without_links(path, target, data)
        finally:
            beside.unlink(missing_ok=True)  # its directory may have been moved meanwhile
        _sync_directory(target.parent)

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a temporary file, then renames it over the path."""
        target = self._prepare_target(path)
        beside = self._write_beside(target, data)
        try:
            beside.replace(target)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)

    def append_to_new(self, path: str) -> Appender:
        """Creates a file exclusively."""
        target = self._prepare_target(path)
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise AlreadyExists(path) from error
        try:
            _sync_directory(target.parent)
        except OSError:
            os.close(descriptor)
            target.unlink(missing_ok=True)
            raise
        return _LocalAppender(descriptor, target)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the file."""
        with self._full_path(path).open("rb", buffering=0) as file:
            wanted = max(0, os.fstat(file.fileno()).st_size - offset) if length is None else length
            parts: list[bytes] = []
            while wanted > 0 and (part := os.pread(file.fileno(), wanted, offset)):
                parts.append(part)
                offset, wanted = offset + len(part), wanted - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, path: str) -> int:
        """Bytes in the file. It is opened: a client of NFS asks the server then, and else may know an older size."""
        with self._full_path(path).open("rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        files: Listing = []
        try:
            with os.scandir(self._full_path(directory)) as entries:
                for entry in entries:
                    # A file may disappear between the listing and the call for its size.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file() and not entry.name.startswith("."):
                            files.append(StoredFile(entry.name, entry.stat().st_size))
        except FileNotFoundError:
            return []
        return sorted(files)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self._full_path(path).is_file()

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""
        self._full_path(path).unlink(missing_ok=True)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist."""
        for path in paths:
            self.delete(path)

    def sync(self, path: str) -> None:
        """Syncs the file and its name."""
        target = self._full_path(path)
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_directory(target.parent)

    def local_path(self, path: str) -> str | None:
        """The file's absolute path."""
        return str(self._full_path(path))

    def probe_writable(self) -> None:
        """Creates and deletes a small file."""
        probe(self)

    def _full_path(self, path: str) -> Path:
        return self._root / path

    def _prepare_target(self, path: str) -> Path:
        target = self._full_path(path)
        try:
            _make_directories(target.parent, self._root if self._must_exist else None)
        except FileNotFoundError as error:
            raise LogLocationError(self.url, GONE) from error
        return target

    def _write_beside(self, target: Path, data: Buffer) -> Path:
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _write_all(descriptor, [data])
            os.fsync(descriptor)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise _with_path(error, target) from error
        finally:
            os.close(descriptor)
        return beside

    def _create_without_links(self, path: str, target: Path, data: Buffer) -> None:
        """Creates a file without links: create-if-absent still holds, but a crash may leave a part of the file."""
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise AlreadyExists(path) from error
        try:
            _write_all(descriptor, [data])
            os.fsync(descriptor)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise _with_path(error, target) from error
        finally:
            os.close(descriptor)


class _LocalAppender:
    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers, then syncs the file."""
        _write_all(self._descriptor, buffers)
        getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def still_linked(self) -> bool:
        """Whether the path still names this file: a copy may have replaced a moved directory."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    views = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    while views:
        written = os.writev(descriptor, views[:_MAX_BUFFERS])
        while views and written >= views[0].nbytes:
            written -= views.pop(0).nbytes
        if written:
            views[0] = views[0][written:]


def _with_path(error: OSError, path: Path) -> OSError:
    """The error with its path, which an error of a write to a descriptor lacks."""
    return OSError(error.errno, error.strerror, str(path))


def _make_directories(directory: Path, root: Path | None = None) -> None:
    """Creates the directory, if it is missing, and makes its name durable. `FileNotFoundError` if `root` is missing."""
    if directory.is_dir():
        return
    if directory == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
    _make_directories(directory.parent, root)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_DIRECTORIES:
            raise
    finally:
        os.close(descriptor)
