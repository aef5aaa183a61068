"""Shows the progress of long reads: on standard error, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from spark_cec.log.segment import list_segments
from spark_cec.log.storage import Storage

LONG_LOG_BYTES = 64 << 20
"""A log of at least this size takes long enough to need a progress bar."""


class Meter:
    """Two bars, one after the other: bytes read, then stores rebuilt."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._bytes: TaskID = progress.add_task("reading", total=total_bytes)
        self._stores: TaskID | None = None

    def read(self, count: int) -> None:
        """Counts more bytes read."""
        if self._stores is None:
            self._progress.advance(self._bytes, count)

    def stores_begin(self, count: int) -> None:
        """Begins the second bar, for `count` stores."""
        self._progress.update(self._bytes, visible=False)
        self._stores = self._progress.add_task("rebuilding stores", total=count)

    def store_done(self) -> None:
        """Counts one more store."""
        if self._stores is not None:
            self._progress.advance(self._stores)


@contextmanager
def meter(storage: Storage) -> Iterator[Meter]:
    """A meter for a read of the log at `storage`; silent for a short log, or if standard error is no terminal."""
    total = sum(file.size for file in list_segments(storage))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    silent = total < LONG_LOG_BYTES or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as progress:
        yield Meter(progress, total)
