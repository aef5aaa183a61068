"""Spark's own logs of a query, changed by hand as crashes and people do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def cut(directory: Path, batches: Iterable[int]) -> None:
    """Remove entries of one of Spark's logs, with their checksums."""
    for batch in batches:
        (directory / str(batch)).unlink()
        for beside in directory.glob(f"*{batch}.crc"):
            if beside.name.strip(".").split(".")[0] == str(batch):
                beside.unlink()


def contents(checkpoint: Path) -> dict[Path, bytes]:
    """Every file of Spark's logs."""
    files = [path for log in ("commits", "offsets") for path in (checkpoint / log).rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files}


def offset(checkpoint: Path, batch: int) -> str:
    """The offset of the first source in Spark's offset log."""
    return (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
