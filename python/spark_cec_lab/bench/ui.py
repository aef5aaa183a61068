"""What the tab in Spark's user interface costs a query: without one, with one that nobody sees, and with a watcher."""

from __future__ import annotations

import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from spark_cec.session import jar_path
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import SILENCE_S, Say, Schedule, after, check_state, started
from spark_cec_lab.bench.processes import BenchError, Child
from spark_cec_lab.bench.providers import in_turn
from spark_cec_lab.bench.ratios import medians, ratio
from spark_cec_lab.bench.report import rounded
from spark_cec_lab.bench.workloads import Shape, Workload

WORKLOAD = Workload(Shape.UNIFORM, keys=100_000, updates=50_000)
"""Short batches, of which what a page costs is a large part."""

BATCHES = 150
_EVERY_S = 1.0
_PATIENCE_S = 30.0


class Seen(str, Enum):
    """`none`: without a user interface. `unwatched`: nobody opens a page. `watched`: see `Watcher`."""

    NONE = "none"
    UNWATCHED = "unwatched"
    WATCHED = "watched"

    @property
    def conf(self) -> tuple[tuple[str, str], ...]:
        """The settings of its session."""
        if self is Seen.NONE:
            return ()
        return (("spark.ui.enabled", "true"), ("spark.ui.port", "0"), ("spark.ui.showConsoleProgress", "false"))


COMPARED = ((Seen.UNWATCHED, Seen.NONE), (Seen.WATCHED, Seen.NONE), (Seen.WATCHED, Seen.UNWATCHED))
"""The first over the second, in each round."""


class Watcher:
    """Loads the overview and the page of the first query, each second, until it is told to stop."""

    def __init__(self, url: str, every_s: float = _EVERY_S) -> None:
        self._url, self._every_s = url, every_s
        self._stopping = threading.Event()
        self._took_ms: list[float] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        """How long each look took, both pages together, in ms. Raises `BenchError` if a page did not load."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise BenchError(f"a page of {self._url} did not load: {self._failure}") from self._failure
        return self._took_ms

    def _watch(self) -> None:
        try:
            query = json.loads(self._read("/cec/json"))["queries"][0]["id"]
            due = time.monotonic()
            while not self._stopping.wait(max(due - time.monotonic(), 0)):
                begun = time.monotonic()
                for page in ("/cec/", f"/cec/query/?id={query}"):
                    self._read(page)
                self._took_ms.append((time.monotonic() - begun) * 1000)
                due = max(due + self._every_s, time.monotonic())
        except (OSError, ValueError, LookupError) as failure:
            self._failure = failure

    def _read(self, page: str) -> bytes:
        with urlopen(f"{self._url}{page}", timeout=_PATIENCE_S) as answer:
            content: bytes = answer.read()
            return content


def compare_uis(
    spec: JobSpec, schedule: Schedule, rounds: int, work: Path, write: Callable[[dict[str, Any]], None], say: Say
) -> None:
    """Each way once in each round, in a process of its own, in turn; then the ratios. Raises `BenchError`."""
    jar, home = str(shutil.copy(jar_path(), work)), work / "run"
    placed = replace(spec, jar=jar, checkpoint=str(home / "checkpoint"), scratch=str(home / "scratch"))
    found: list[dict[Seen, dict[str, float]]] = []
    for number in range(rounds):
        found.append({})
        for seen in in_turn(tuple(Seen), number):
            home.mkdir()
            try:
                tell = after(f"round {number + 1}/{rounds}, {seen.value}: ", say)
                values, looks_ms = _run(replace(placed, conf=(*spec.conf, *seen.conf)), schedule, home, seen, tell)
            finally:
                shutil.rmtree(home)
            found[-1][seen] = values
            looks = {"looks": len(looks_ms), "look_ms": statistics.median(looks_ms)} if looks_ms else {}
            write({"kind": "run", "task": "ui", "ui": seen.value, "round": number + 1, **rounded({**values, **looks})})
    write(summarize(found))


def _run(
    spec: JobSpec, schedule: Schedule, home: Path, seen: Seen, say: Say
) -> tuple[dict[str, float], list[float]]:
    """Medians and means of a run, and the times of the looks."""
    batch_ms: list[float] = []
    watcher: Watcher | None = None
    cpu_s = 0.0
    with started(replace(spec, last_batch=None), home) as child:
        for event in child.events(SILENCE_S):
            batch = int(event["batch"])
            say(schedule.describe(batch, event["batch_ms"]))
            if watcher is None and seen is Seen.WATCHED:
                watcher = Watcher(event["ui"])
            if batch < schedule.first_timed:
                cpu_s = child.cpu_s()
                continue
            batch_ms.append(float(event["batch_ms"]))
            if batch == schedule.last:
                check_state(spec, event)
                cpu_ms = _cpu_ms(child, cpu_s, len(batch_ms))
                # The query still runs, so that a look that is under way comes to its end.
                looks_ms = watcher.stop() if watcher else []
                break
    return {"batch_ms": statistics.median(batch_ms), "cpu_ms": cpu_ms}, looks_ms


def _cpu_ms(child: Child, before_s: float, batches: int) -> float:
    """The mean of a batch, over all processes of the session."""
    return 1000 * (child.cpu_s() - before_s) / batches


def summarize(found: Sequence[Mapping[Seen, Mapping[str, float]]]) -> dict[str, Any]:
    """The medians of each way, and the ratios of each round. `found`: by round and way."""
    ratios: dict[str, dict[str, Any]] = {}
    for ours, theirs in COMPARED:
        each = ratios[f"{ours.value} over {theirs.value}"] = {}
        for name in ("batch_ms", "cpu_ms"):
            mine, others = ({i: one[way][name] for i, one in enumerate(found)} for way in (ours, theirs))
            over = ratio(mine, others)
            each[name] = over and rounded(asdict(over))
    by_way = {way.value: rounded(medians([each[way] for each in found])) for way in Seen}
    return {"kind": "summary", "task": "ui", "medians": by_way, "ratios": ratios}
