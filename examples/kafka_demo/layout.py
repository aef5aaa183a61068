"""Where the Kafka example puts everything, and the numbers that its parts share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOPIC = "purchases"
PARTITIONS = 3
LINES = 600
"""Purchases in a step, 15 seconds of event time."""
STEPS_AHEAD = 2
WATERMARK_DELAY_MS = 60_000
"""More than the event time of all steps that the query may be behind: no purchase is ever late."""
WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The files below one directory."""

    root: Path

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def rows(self) -> Path:
        """What the query's sink holds at the end, a JSON object to a line."""
        return self.root / "rows.json"

    def driver_log(self, life: int) -> Path:
        return self.root / f"driver-{life}.log"
