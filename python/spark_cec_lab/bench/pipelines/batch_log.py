"""What each batch of each query took, in all sessions of a Spark context, and the costs that a simulation needs."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.1
_USUAL_S = 10.0
"""Batches count from so many seconds before the cut on. Those before are slow, because the JVM is young."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of the query with this name. `at`: when its trigger began, s since 1970. `rows`: of its input.

    `share`: the part of its `seconds` after which its output was there.
    """

    query: str
    at: float
    seconds: float
    rows: int
    share: float


class BatchLog:
    """Looks at all queries ten times a second, in a thread of its own, and keeps their batches.

    A pipeline has a session for each query, so no listener of one session hears of all. `opened_at`: when the note of
    an epoch, by its number, was there in `epochs`, s since 1970.
    """

    def __init__(self, spark: SparkSession, epochs: Path) -> None:
        self.batches = list[Batch]()
        self.opened_at = dict[int, float]()
        self._epochs = epochs
        self._queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._told = dict[str, str]()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="batches", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def end(self) -> None:
        """Looks no more."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_S):
            for each in self._epochs.glob("[0-9]*.json"):
                self.opened_at.setdefault(int(each.stem), time.time())
            for query in list(self._queries.values()):
                progress = query.lastProgress()
                if progress is None:
                    continue
                name, batch = str(query.name()), f"{progress.runId()} {progress.timestamp()}"
                if self._told.get(name) != batch:
                    self._told[name] = batch
                    self.batches += read_batch(json.loads(progress.json()))


def read_batch(progress: dict[str, Any]) -> list[Batch]:
    """The batch of a progress, as Spark's JSON has it; none if Spark has looked for input in vain."""
    took = progress["durationMs"]
    if "addBatch" not in took:
        return []
    at = datetime.fromisoformat(progress["timestamp"]).timestamp()
    rows, all_ms = sum(int(source["numInputRows"]) for source in progress["sources"]), max(took["triggerExecution"], 1)
    # What comes after the output: Spark's own log, and the stores of the driver.
    share = 1 - (took.get("commitOffsets", 0) + took.get("commitBatch", 0)) / all_ms
    return [Batch(str(progress.get("name")), at, all_ms / 1000, rows, share)]


def find_costs(
    batches: Sequence[Batch], sources: Collection[str], flows: Collection[str], sink: str, cut_at: float,
    opened_at: Mapping[int, float],
) -> dict[str, float | None]:  # fmt: skip
    """Medians of a batch of an input, of a flow and of the sink, in s, and of the share; names are of queries.

    `opened_at`: when an epoch of the first flow was opened, by its number.
    `row_us`: what a row more costs, by the largest batch of the first flow after `cut_at`. `catch_up_rows`,
    `catch_up_s`: that batch. `fork_s`: from the note of the epoch until its first batch begins; None without one.
    """
    warm = [each for each in batches if each.at >= cut_at - _USUAL_S]
    own = [each for each in warm if each.query in flows]
    flow_s = statistics.median(each.seconds for each in own)
    usual_rows = statistics.median(each.rows for each in own)
    first = next(iter(flows))
    largest = max((each for each in own if each.query == first and each.at > cut_at), key=lambda each: each.rows)
    row_s = (largest.seconds - flow_s) / max(largest.rows - usual_rows, 1)
    opened = {number: at for number, at in opened_at.items() if at >= cut_at}
    begun = [(each.at, number) for each in warm for number in opened if each.query == f"{first} epoch {number}"]
    found = {
        "source_s": statistics.median(each.seconds for each in warm if each.query in sources),
        "flow_s": flow_s,
        "sink_s": statistics.median(each.seconds for each in warm if each.query == sink),
        "share": statistics.median(each.share for each in warm),
        "row_us": max(row_s, 0.0) * 1e6,
        "catch_up_rows": float(largest.rows),
        "catch_up_s": largest.seconds,
        "fork_s": max(min(begun)[0] - opened[min(begun)[1]], 0.0) if begun else None,
    }
    return {name: None if each is None else round(each, 3) for name, each in found.items()}
