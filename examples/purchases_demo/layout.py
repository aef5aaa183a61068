"""Where the example keeps its files, and the constants that its processes must agree on."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

FILE_SPAN_MS = 15_000
"""Event time that one file covers."""
WATERMARK_DELAY_MS = 10_000
"""How far an event may lag behind the newest one before it."""
WINDOW_MS = 60_000
"""Length of an event-time window."""
COUNT_WINDOW = 10
"""Purchases of one item in a count window."""

_MARKER = "demo.json"


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """One query of the example: its name, the CEC bounds it runs with, the columns that identify an output row.

    `q` is the setting as Spark gets it, a count or `<k>x` = k times the open windows; `u` is in input tuples per store.
    """

    name: str
    q: str
    u: int
    key: tuple[str, ...]

    def extent_bound(self, open_windows: int) -> int:
        """The bound Q in records for a store with that many open windows."""
        return int(float(self.q[:-1]) * open_windows) if self.q.endswith("x") else int(self.q)


BY_MINUTE = QuerySpec("by_minute", q="2x", u=800_000, key=("window_start", "item_id"))
BY_TEN = QuerySpec("by_ten", q="2x", u=500, key=("item_id", "first_seq"))
QUERIES = (BY_MINUTE, BY_TEN)


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one run of the example, all under `root`."""

    root: Path

    @property
    def events(self) -> Path:
        """The live directory: the feeder renames finished files into it, both queries read it."""
        return self.root / "events"

    @property
    def staging(self) -> Path:
        """Where the feeder writes a file before its rename; the same file system as `events`."""
        return self.root / "staging"

    @property
    def fed(self) -> Path:
        """Exists once the feeder has published its last file."""
        return self.root / "fed"

    @property
    def scratch(self) -> Path:
        """Spark's and Python's temporary files: a killed JVM leaves its own behind."""
        return self.root / "scratch"

    def checkpoint(self, query: str) -> Path:
        """The checkpoint of the named query, which holds its output too."""
        return self.root / "checkpoints" / query

    def rows(self, query: str) -> Path:
        """The named query's output as `read` wrote it (Parquet)."""
        return self.root / "rows" / f"{query}.parquet"

    def log(self, name: str) -> Path:
        """Standard error of the process of that name."""
        return self.root / "logs" / f"{name}.log"

    @property
    def previous(self) -> Path:
        """The layout of the run before, if it failed or was to be kept."""
        return self.root.with_name(f"{self.root.name}.previous")

    def create(self, facts: dict[str, object]) -> None:
        """Make an empty layout; `facts` go into its marker file. Keeps what a failed run left, as `<root>.previous`.

        Raises `FileExistsError` if `root` holds anything that this example did not put there.
        """
        if self.root.exists() and any(self.root.iterdir()):
            if not (self.root / _MARKER).is_file():
                raise FileExistsError(f"{self.root} is not empty and not from this example: choose another --output")
            if self.previous.exists():
                shutil.rmtree(self.previous)
            self.root.rename(self.previous)
        for directory in (self.events, self.staging, self.scratch, self.root / "rows", self.root / "logs"):
            directory.mkdir(parents=True)
        (self.root / _MARKER).write_text(json.dumps(facts))
