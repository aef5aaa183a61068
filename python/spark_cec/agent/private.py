"""Directories in places where other users write too, such as /tmp: nobody else may have a say in ours."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def is_private(directory: Path) -> bool:
    """Whether it is a directory of this user's, no link to one, that is closed to everyone else."""
    return _look_of(directory) == (os.geteuid(), 0o700)


def is_writable_by_others(directory: Path) -> bool:
    """Whether another user may put something into it, or could have: it may be a link."""
    found = directory.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def private_directory(wanted: Path) -> Path:
    """`wanted`, made if it is not there; if it is not private, another directory of this user's, beside it.

    The same one at each call, also in other processes. `OSError` if none can be made.
    """
    with contextlib.suppress(FileExistsError):
        wanted.mkdir(mode=0o700)
    return wanted if is_private(wanted) else _another(wanted)


def _another(wanted: Path) -> Path:
    """Ours is what looks like one that was made just now: a network file system may name another owner for it."""
    made = Path(tempfile.mkdtemp(prefix=f".{wanted.name}-", dir=wanted.parent))
    look = _look_of(made)
    for known in (wanted, *sorted(wanted.parent.glob(f"{wanted.name}-*"))):
        if _look_of(known) == look:
            made.rmdir()
            return known
    # Under this name it is found again. A process that looks for one may have seen it until now, but does not take it.
    other = wanted.parent / made.name[1:]
    made.rename(other)
    return other


def _look_of(path: Path) -> tuple[int, int] | None:
    """Owner and permissions of a directory; None if it is something else, or a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_uid, found.st_mode & 0o777) if stat.S_ISDIR(found.st_mode) else None
