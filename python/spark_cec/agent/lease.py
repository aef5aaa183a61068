"""Leases: at most one living run of a query per checkpoint, and per log.

Two runs of one query would write one log and one output, and `cec rollback` deletes entries of Spark's logs. On a local
or mounted file system a file lock refuses the second run. The lock ends with its process. On an object store
and on HDFS an object with a heartbeat does (`object_lease`). Which of several starts goes on is decided with the lease
in hand: `recovery.query_runs`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spark_cec.agent.object_lease import TIMING, ObjectLease, is_taken
from spark_cec.errors import Fenced, LogLocationError
from spark_cec.log.storage import Storage

LOCK_FILE = "lock"

WAIT_S = 15.0
"""The longest time that a start waits for a file lock: for the agent of a killed run to end."""

_JUST_STOPPED_S = 2.0
_POLL_S = 0.05

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""The errors by which a file system says that it has no file locks."""


class CheckpointLeases:
    """The leases of this process, by checkpoint.

    Each has a lock file in the `cec` directory, and one beside an external log. Runs of one process may share a lease:
    Spark begins a run when the run before has stopped, which may give the lease back a little later. A start has the
    lease alone, for one call.
    """

    def __init__(self) -> None:
        self._held: dict[str, ExitStack] = {}
        self._alone: set[str] = set()
        self._runs: dict[str, int] = {}
        self._objects: dict[str, list[ObjectLease]] = {}
        self._locks: dict[str, list[_FileLock]] = {}

    def hold(
        self, checkpoint: str, own: Storage, wait_s: float | None = None, log: Storage | None = None,
        *, alone: bool = False,
    ) -> bool:  # fmt: skip
        """Takes the lease, and answers whether this call took it; `Fenced` if another process has it.

        Takes none if this process shares the lease already, or the storage has no leases. `alone`: shares it with no
        other caller of this process. `log` is the home of a log outside the checkpoint, which has its own lease. For
        each of the two it waits at most `wait_s`, and no longer than a lease can need (`longest_wait_s`). Raises
        `LogLocationError` if the file system cannot lock files.
        """
        places = [each for each in (own, log) if each is not None and has_leases(each)]
        deadline = _find_deadline(own, wait_s)
        while checkpoint in self._held and (alone or checkpoint in self._alone):
            _wait(deadline, f"the query with checkpoint {checkpoint}", str(os.getpid()))
        if checkpoint in self._held or not places:
            return False
        objects, locks = list[ObjectLease](), list[_FileLock]()
        with ExitStack() as taken:
            for place in places:
                whose = f"the query with checkpoint {checkpoint}" if place is own else f"a query with log {place.url}"
                deadline = _find_deadline(place, wait_s)
                if _has_locks(place):
                    locks.append(taken.enter_context(_hold_lock(place, whose, deadline)))
                else:
                    objects.append(_take_object(taken, place, whose, deadline))
            if alone:
                self._alone.add(checkpoint)
            self._objects[checkpoint], self._locks[checkpoint] = objects, locks
            self._held[checkpoint] = taken.pop_all()
        return True

    def confirm(self, checkpoint: str) -> None:
        """Raises `Fenced` if this process cannot be sure of a lease any more, or another one has its file lock.

        A server of NFS gives the lock of a client away that was cut off for long, and that one does not notice.
        """
        for lease in self._objects.get(checkpoint, ()):
            lease.confirm()
        for lock in self._locks.get(checkpoint, ()):
            lock.confirm()

    def is_lost(self, checkpoint: str) -> bool:
        """Whether another process is known to have taken a lease of this one. Asks object stores nothing."""
        objects, locks = self._objects.get(checkpoint, ()), self._locks.get(checkpoint, ())
        return any(each.is_lost for each in objects) or any(each.find_other() for each in locks)

    def is_sure(self, checkpoint: str) -> bool:
        """Whether this process can be sure of its leases on object stores. Answers at once."""
        return all(lease.is_sure for lease in self._objects.get(checkpoint, ()))

    def has(self, checkpoint: str) -> bool:
        """Whether this process holds the lease."""
        return checkpoint in self._held

    def note_run(self, checkpoint: str, generation: int) -> None:
        """Notes the run for which this process holds the lease."""
        self._runs[checkpoint] = generation

    def run_of(self, checkpoint: str) -> int | None:
        """The newest run for which this process holds the lease; None for no run."""
        return self._runs.get(checkpoint)

    def release(self, checkpoint: str) -> None:
        """Releases the lease, if this process holds it."""
        self._runs.pop(checkpoint, None)
        self._objects.pop(checkpoint, None)
        self._locks.pop(checkpoint, None)
        taken = self._held.pop(checkpoint, None)
        self._alone.discard(checkpoint)  # later, so that nobody shares the lease meanwhile
        if taken is not None:
            taken.close()

    def close(self) -> None:
        """Releases all leases."""
        for checkpoint in list(self._held):
            self.release(checkpoint)


def has_leases(place: Storage) -> bool:
    """Whether a lease can be had there. Memory has none: it ends with its process."""
    return _has_locks(place) or not place.can_append


def longest_wait_s(place: Storage) -> float:
    """How long a start waits there, at most, for the end of a run that was killed."""
    return WAIT_S if _has_locks(place) else TIMING.take_over_s


def _find_deadline(place: Storage, wait_s: float | None) -> float:
    longest_s = longest_wait_s(place)
    return time.monotonic() + (longest_s if wait_s is None else min(wait_s, longest_s))


def command_wait_s(place: Storage) -> float:
    """How long a command waits there for a run that has just stopped, and gives its lease back a moment later.

    An object store cannot tell a killed run from a living one any sooner.
    """
    return _JUST_STOPPED_S if _has_locks(place) else TIMING.take_over_s


def _has_locks(place: Storage) -> bool:
    return place.local_path(LOCK_FILE) is not None


def _take_object(taken: ExitStack, place: Storage, whose: str, deadline: float) -> ObjectLease:
    lease = ObjectLease(place, whose)
    taken.callback(lease.release)
    lease.take(deadline)
    return lease


def is_held(own: Storage) -> bool | None:
    """Whether a process holds the lease of a checkpoint; None if the storage has no leases.

    `own` is rooted at the checkpoint's `cec` directory. On an object store this may take as long as a holder may be
    silent.
    """
    place = own.local_path(LOCK_FILE)
    if place is None:
        return is_taken(own) if has_leases(own) else None
    try:
        with _open_file(Path(place), os.O_RDONLY) as descriptor:
            return not _is_locked_now(descriptor, fcntl.LOCK_SH)  # NFS lets only a writer ask for the other kind
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise


@dataclass(frozen=True, slots=True)
class _FileLock:
    """A lock that this process has. `note`: what it has written into the file; empty if the disk was full."""

    path: Path
    whose: str
    note: bytes

    def confirm(self) -> None:
        """Raises `Fenced` if another holder has noted itself since."""
        other = self.find_other()
        if other:
            raise Fenced(
                f"{self.whose} has lost its file lock {self.path} to agent process {_name_holder(other)}, as when a "
                f"mount was cut off for long: start it again"
            )

    def find_other(self) -> bytes:
        """The note of another holder; nothing if there is none, or if the file cannot be read now."""
        there = b""
        with contextlib.suppress(OSError), _open_file(self.path, os.O_RDONLY) as descriptor:
            there = os.pread(descriptor, len(self.note) + 1, 0)
        return there if self.note and there != self.note else b""


@contextlib.contextmanager
def _hold_lock(place: Storage, whose: str, deadline: float) -> Iterator[_FileLock]:
    """Holds the lock file of a place; `Fenced` if another process holds it at the deadline. The error names `whose`."""
    path = Path(str(place.local_path(LOCK_FILE)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_file(path, os.O_CREAT | os.O_RDWR) as descriptor:
        try:
            while not _is_locked_now(descriptor):
                _wait(deadline, whose, _read_holder(descriptor) or "unknown")
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise LogLocationError(
                place.url,
                f"its file system cannot lock files ({error.strerror}), and a lock keeps a second run of the query "
                f"out: mount it with file locks (NFS: without `nolock`, Lustre: with `flock`), or choose another one",
            ) from error
        yield _FileLock(path, whose, _note_holder(descriptor))


def _wait(deadline: float, whose: str, holder: str) -> None:
    """Lets a moment pass. `Fenced` after the deadline; the error names `whose` lease it is, and its holder."""
    if time.monotonic() > deadline:
        raise Fenced(
            f"{whose} is running already (agent process {holder}): stop that run first; a query has one run at a time"
        )
    time.sleep(_POLL_S)


@contextlib.contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked_now(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether this process has the lock; takes it if it is free."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _note_holder(descriptor: int) -> bytes:
    """Writes and answers the holder's process id, for the message of a refused start, and a word that no other has.

    On a full disk the file, and the answer, are empty.
    """
    note = f"{os.getpid()} {secrets.token_hex(8)}".encode()
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        if os.pwrite(descriptor, note, 0) == len(note):
            return note
    return b""


def _read_holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        return _name_holder(os.pread(descriptor, 100, 0))
    return ""


def _name_holder(note: bytes) -> str:
    """The process id of a note."""
    return note.decode(errors="replace").partition(" ")[0]
