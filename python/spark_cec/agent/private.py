"""Private directories in places where other users write too, such as /tmp."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def is_private(directory: Path) -> bool:
    """Whether it is a directory of this user, not a link, and closed to all others."""
    return _owner_and_mode(directory) == (os.geteuid(), 0o700)


def is_writable_by_others(directory: Path) -> bool:
    """Whether another user can write into it. A link counts as its target."""
    found = directory.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def private_directory(wanted: Path) -> Path:
    """Returns `wanted`, created if missing; if it is not private, another directory of this user beside it.

    Every call returns the same directory, also in other processes. Raises `OSError` if none can be made.
    """
    with contextlib.suppress(FileExistsError):
        wanted.mkdir(mode=0o700)
    return wanted if is_private(wanted) else _find_or_make(wanted)


def _find_or_make(wanted: Path) -> Path:
    """Finds a private directory beside `wanted`, or makes one.

    A directory is ours if it looks like a new one: a network file system may show another owner for new directories.
    """
    made = Path(tempfile.mkdtemp(prefix=f".{wanted.name}-", dir=wanted.parent))
    look = _owner_and_mode(made)
    for known in (wanted, *sorted(wanted.parent.glob(f"{wanted.name}-*"))):
        if _owner_and_mode(known) == look:
            made.rmdir()
            return known
    # Under this name later calls find it. Until the rename, other processes may see it but do not take it.
    other = wanted.parent / made.name[1:]
    made.rename(other)
    return other


def _owner_and_mode(path: Path) -> tuple[int, int] | None:
    """Owner and permissions of a directory; None for a link or another kind of file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_uid, found.st_mode & 0o777) if stat.S_ISDIR(found.st_mode) else None
