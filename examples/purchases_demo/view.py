"""Progress for whoever watches: bars on a terminal, a line now and then anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from purchases_demo.layout import QUERIES

_LINE_EVERY = 5


class ProgressView:
    """Shows how many of `files` files each query has consumed, while it is open as a context."""

    def __init__(self, console: Console, files: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files"))
        self._console = console
        self._files = files
        self._bars = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._tasks = {spec.name: self._bars.add_task(spec.name, total=files) for spec in QUERIES}
        self._next_line = _LINE_EVERY

    def __enter__(self) -> ProgressView:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, consumed: Mapping[str, int]) -> None:
        """Take in the files consumed, by query; a query that has not been heard from is left as it was."""
        for query, files in consumed.items():
            self._bars.update(self._tasks[query], completed=files)
        behind = min((consumed.get(query, 0) for query in self._tasks), default=0)
        if not self._console.is_terminal and behind >= self._next_line:
            self._next_line = behind - behind % _LINE_EVERY + _LINE_EVERY
            self._console.print(f"both queries have consumed {behind} of {self._files} files")
