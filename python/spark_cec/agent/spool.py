"""The spool: a private directory for rows that pass between the JVM and the agent.

It lies in /dev/shm if that has enough room, else in the temp directory, with mode 0700. A file lock marks it as used,
so that other agents can remove the spool of a dead process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from spark_cec.agent.private import is_private

ENOUGH_FREE_BYTES = 256 << 20
"""Without this much free space, /dev/shm is not used."""

ABANDONED_AFTER_S = 600.0
"""An unlocked spool is removed after this time without a change."""

SPOOL_ROWS = 1 << 16
"""Most rows per record batch of a spool file."""

SPOOL_BYTES = 64 << 20
"""Most bytes per record batch of a spool file, except for a batch of one row. The JVM reads a batch into one buffer,
whose size is an int, and allocates as much direct memory for it.
"""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_LOCK = "lock"

_MARK = ".load"


def _has_room(directory: Path, needed: int) -> bool:
    try:
        return os.access(directory, os.W_OK) and shutil.disk_usage(directory).free >= needed
    except OSError:
        return False


class Spool:
    """A private directory for files that live for one call, and one in the temp directory for files too large for it.

    `where` overrides the choice between shared memory and the temp directory. `inherited` are the two directories of an
    agent that died. Its JVM may have written files there for a call that this agent will answer. `cut_loads` counts the
    loads that were under way as it died.
    """

    def __init__(self, where: str | None = None, inherited: Sequence[str] = ()) -> None:
        fallback = Path(tempfile.gettempdir())
        shared = Path(where) if where else Path("/dev/shm")
        parent = shared if where or _has_room(shared, ENOUGH_FREE_BYTES) else fallback
        prefix = f"spark-cec-{os.getuid()}-"
        with ExitStack() as undo:
            taken_over = [_take_over(Path(directory), undo) for directory in inherited]
            for place in {parent, fallback}:
                _remove_abandoned(place, prefix)
            directory, overflow = (*taken_over, None, None)[:2]
            self.directory, self._lock = directory or _make_locked_directory(parent, prefix, undo)
            self.overflow, self._overflow_lock = overflow or _make_locked_directory(fallback, prefix, undo)
            self.cut_loads = _clear_marks(self.directory)
            undo.pop_all()

    def new_file(self, expected_bytes: int = 0) -> str:
        """A path for a file of about that size; the receiver deletes the file."""
        roomy = _has_room(self.directory, 2 * expected_bytes)
        return str((self.directory if roomy else self.overflow) / f"{uuid.uuid4().hex}.arrow")

    def write(self, rows: pa.Table) -> str:
        """Writes `rows` to a new file, and returns its path.

        Several calls may find the same room in the first directory. A file that finds no more goes to the overflow.
        """
        path = Path(self.new_file(rows.nbytes))
        try:
            return self._write(path, rows)
        except OSError as error:
            if error.errno not in _NO_ROOM or path.parent == self.overflow:
                raise
        return self._write(self.overflow / path.name, rows)

    def _write(self, path: Path, rows: pa.Table) -> str:
        try:
            write_rows(str(path), rows)
        except OSError as error:
            if error.errno in _NO_ROOM and error.filename is None:  # Arrow names no file
                error.filename = str(path)
            raise
        return str(path)

    @contextmanager
    def marking_load(self) -> Iterator[None]:
        """Marks a load that is under way: a successor sees the mark if this process dies in it."""
        mark = self.directory / f"{uuid.uuid4().hex}{_MARK}"
        with suppress(OSError):  # a full directory takes no mark
            mark.touch()
        try:
            yield
        finally:
            with suppress(OSError):
                mark.unlink(missing_ok=True)

    def touch(self) -> None:
        """Makes the directories look used, because systems delete old files from their temp directories."""
        for directory in (self.directory, self.overflow):
            for path in (directory / _LOCK, directory):
                with suppress(OSError):
                    os.utime(path)

    def close(self) -> None:
        """Removes the directories with all files."""
        for directory, lock in ((self.directory, self._lock), (self.overflow, self._overflow_lock)):
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _open_lock(directory: Path) -> int | None:
    """Opens the lock file of a spool of this user; None if the directory is no such spool.

    Another user may have made a directory of that name, with a link to one of our files as its lock.
    """
    if not is_private(directory):
        return None
    try:
        return os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None


def _take_over(directory: Path, undo: ExitStack) -> tuple[Path, int] | None:
    """Locks an existing directory, and returns it with its lock; None if it is gone or another process holds it."""
    lock = _open_lock(directory)
    if lock is None:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    undo.callback(os.close, lock)
    return directory, lock


def _make_locked_directory(parent: Path, prefix: str, undo: ExitStack) -> tuple[Path, int]:
    """A new directory with mode 0700, and the descriptor of the lock that marks it as used.

    It gets its final name after it is locked. Until then its name is not one that other agents remove.
    """
    unnamed = Path(tempfile.mkdtemp(prefix="." + prefix, dir=parent))
    undo.callback(shutil.rmtree, unnamed, ignore_errors=True)
    lock = os.open(unnamed / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    undo.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory = parent / unnamed.name[1:]
    unnamed.rename(directory)
    undo.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory, lock


def _clear_marks(directory: Path) -> int:
    """Deletes the marks of loads, and returns their number."""
    marks = list(directory.glob(f"*{_MARK}"))
    for mark in marks:
        mark.unlink(missing_ok=True)
    return len(marks)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Removes spools that are unlocked and unchanged for a while; a successor may take over a recent one."""
    for directory in parent.glob(prefix + "*"):
        try:
            if time.time() - directory.stat().st_mtime < ABANDONED_AFTER_S:
                continue
        except OSError:
            continue
        lock = _open_lock(directory)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def write_rows(path: str, rows: pa.Table) -> None:
    """Writes a spool file: `rows` as an Arrow IPC stream. If it fails, the file is deleted."""
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
            for batch in record_batches(rows):
                stream.write_batch(batch)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def record_batches(
    rows: pa.Table, most_rows: int = SPOOL_ROWS, most_bytes: int = SPOOL_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows in batches as large as the limits allow; a single row may exceed `most_bytes`."""
    pile: list[pa.RecordBatch] = []
    count = size = 0
    for piece in (each for batch in rows.to_batches(max_chunksize=most_rows) for each in _split(batch, most_bytes)):
        if pile and (count + piece.num_rows > most_rows or size + piece.nbytes > most_bytes):
            yield pa.concat_batches(pile)
            pile, count, size = [], 0, 0
        pile.append(piece)
        count, size = count + piece.num_rows, size + piece.nbytes
    if pile:
        yield pa.concat_batches(pile)


def _split(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= most_bytes or batch.num_rows <= 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half), most_bytes)
        yield from _split(batch.slice(half), most_bytes)
