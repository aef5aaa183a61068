"""The spool: a private directory through which rows pass between the JVM and the agent.

It lies in /dev/shm where that is present and large enough, else in the temp directory, with mode 0700. It is held by a
file lock, so that the directory of a process that died can be told from a living one's, and removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from spark_cec.agent.private import is_private

ENOUGH_FREE_BYTES = 256 << 20
"""Free space below which /dev/shm is passed over."""

ABANDONED_AFTER_S = 600.0
"""How long a directory that nobody holds must have been left alone before it is removed."""

SPOOL_ROWS = 1 << 16
"""Most rows per record batch of a spool file."""

SPOOL_BYTES = 64 << 20
"""Most bytes per record batch of a spool file, but for a batch of one row: the JVM reads a batch into one buffer, whose
size is an int, and takes as much of its direct memory for it."""

_LOCK = "lock"


def _roomy(directory: Path, needed: int) -> bool:
    try:
        return os.access(directory, os.W_OK) and shutil.disk_usage(directory).free >= needed
    except OSError:
        return False


class Spool:
    """A private directory for files that live for one call, and one in the temp directory for those too large for it.

    `where` overrides the choice between shared memory and the temp directory. `inherited` are the two directories of a
    predecessor that died: its JVM may have named files there in a call that this process will be asked to answer.
    """

    def __init__(self, where: str | None = None, inherited: Sequence[str] = ()) -> None:
        fallback = Path(tempfile.gettempdir())
        shared = Path(where) if where else Path("/dev/shm")
        parent = shared if where or _roomy(shared, ENOUGH_FREE_BYTES) else fallback
        prefix = f"spark-cec-{os.getuid()}-"
        with ExitStack() as undo:
            taken_over = [_taken_over(Path(directory), undo) for directory in inherited]
            for place in {parent, fallback}:
                _remove_abandoned(place, prefix)
            directory, overflow = (*taken_over, None, None)[:2]
            self.directory, self._lock = directory or _locked_directory(parent, prefix, undo)
            self.overflow, self._overflow_lock = overflow or _locked_directory(fallback, prefix, undo)
            undo.pop_all()

    def new_file(self, expected_bytes: int = 0) -> str:
        """A path for a file of about that size, which the receiver removes."""
        roomy = _roomy(self.directory, 2 * expected_bytes)
        return str((self.directory if roomy else self.overflow) / f"{uuid.uuid4().hex}.arrow")

    def close(self) -> None:
        """Removes the directories and all that is in them."""
        for directory, lock in ((self.directory, self._lock), (self.overflow, self._overflow_lock)):
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _lock_of(directory: Path) -> int | None:
    """A descriptor of the lock in a spool of this user's; None if it is not one, whatever its name says.

    Another user may have given the name to a directory, with a link to a file of ours as its lock.
    """
    if not is_private(directory):
        return None
    try:
        return os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None


def _taken_over(directory: Path, undo: ExitStack) -> tuple[Path, int] | None:
    """A directory that is there, with its lock; None if it is gone or another process has it."""
    lock = _lock_of(directory)
    if lock is None:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    undo.callback(os.close, lock)
    return directory, lock


def _locked_directory(parent: Path, prefix: str, undo: ExitStack) -> tuple[Path, int]:
    """A new directory with mode 0700, and the descriptor whose lock says that it is in use.

    It gets its name when it is locked: under that name nobody ever sees it without. Until then nobody would sweep it.
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


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Removes what nobody holds and nobody has touched for a while: a successor may be about to take it over."""
    for directory in parent.glob(prefix + "*"):
        try:
            if time.time() - directory.stat().st_mtime < ABANDONED_AFTER_S:
                continue
        except OSError:
            continue
        lock = _lock_of(directory)
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
    """Writes a spool file: `rows` as an Arrow IPC stream. One that cannot be finished is removed."""
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
    """The rows in batches as large as they may be; one that has too many bytes has one row."""
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
