"""What a query writes under its checkpoint: files created and bytes added between two looks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SPARKS_OWN = ("offsets", "commits", "metadata", "sources")
"""Top-level parts of a checkpoint that Spark writes itself, whatever the state store provider."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it was met: `identity` tells it from another one that has taken its name."""

    identity: tuple[int, int]
    size: int


Look = Mapping[str, Found]
"""Every file under a checkpoint by its path relative to it."""


@dataclass(frozen=True, slots=True)
class Written:
    """Files created, and bytes written to new or grown files."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.files + other.files, self.bytes + other.bytes)


def look(root: Path) -> Look:
    """All files under `root` now; those that vanish while it looks are left out."""
    found: dict[str, Found] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found[path.relative_to(root).as_posix()] = Found((status.st_dev, status.st_ino), status.st_size)
    return found


def written(before: Look, after: Look) -> Written:
    """What was written between two looks: a file that was replaced counts whole, one that grew by its growth.

    Not seen: a file that came and went between the looks, and bytes overwritten in place.
    """
    total = Written()
    for path, now in after.items():
        then = before.get(path)
        if then is None or then.identity != now.identity:
            total += Written(1, now.size)
        else:
            total += Written(0, max(0, now.size - then.size))
    return total


def of_the_state(files: Look) -> Look:
    """The part that the state store provider answers for: all but Spark's own logs."""
    return {path: found for path, found in files.items() if path.split("/", 1)[0] not in SPARKS_OWN}
