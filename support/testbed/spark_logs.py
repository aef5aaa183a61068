"""How far a query is, by the logs that Spark has in its checkpoint."""

from __future__ import annotations

from pathlib import Path


def newest(directory: Path) -> int:
    """The newest batch in one of Spark's logs, -1 if there is none."""
    names = (entry.name for entry in directory.iterdir()) if directory.is_dir() else iter(())
    return max((int(name) for name in names if name.isdigit()), default=-1)


def committed_batch(checkpoint: Path) -> int:
    """The newest batch in the commit log, -1 if there is none: Spark may run it again."""
    return newest(checkpoint / "commits")
