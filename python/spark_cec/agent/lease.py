"""Leases: at most one living run of a query per checkpoint, as far as the storage can tell.

A recovery cuts Spark's commit and offset logs. Were the query still alive elsewhere, that would destroy what it needs.
On a local or mounted file system a file lock, which ends with the process that holds it, keeps the second run out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from spark_cec.errors import Fenced
from spark_cec.log.storage import Storage

LOCK_FILE = "lock"

WAIT_S = 15.0
"""How long a start waits, at most, for the agent of a run that was just killed to be gone."""

_POLL_S = 0.05


class CheckpointLeases:
    """The leases of this process, by checkpoint."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def hold(self, checkpoint: str, own: Storage, wait_s: float = WAIT_S) -> bool:
        """Takes the lease, unless this process has it or the storage has no locks; `Fenced` if another has it.

        Waits no longer than `wait_s`, nor than `WAIT_S`: whoever asked must still be there to hear the answer. Answers
        whether this call took it.
        """
        place = own.local_path(LOCK_FILE)
        if checkpoint in self._held or place is None:
            return False
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        deadline = time.monotonic() + min(wait_s, WAIT_S)
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 100, 0).decode(errors="replace")
                os.close(descriptor)
                raise Fenced(
                    f"the query with checkpoint {checkpoint} is running already (agent process {holder or 'unknown'}): "
                    f"stop that run first; a query has one run at a time"
                )
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._held[checkpoint] = descriptor
        return True

    def has(self, checkpoint: str) -> bool:
        """Whether this process holds the lease."""
        return checkpoint in self._held

    def release(self, checkpoint: str) -> None:
        """Gives the lease back, if this process has it."""
        descriptor = self._held.pop(checkpoint, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Gives back all leases."""
        for checkpoint in list(self._held):
            self.release(checkpoint)


def is_held(own: Storage) -> bool | None:
    """Whether some process has the lease of a checkpoint; None where the storage has no locks.

    `own` is rooted at the checkpoint's `cec` directory.
    """
    place = own.local_path(LOCK_FILE)
    if place is None:
        return None
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
