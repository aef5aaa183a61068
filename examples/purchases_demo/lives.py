"""Running the purchase queries under random kills, and what that says: recovery times, and utilization."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from purchases_demo.crashes import recovery_files
from purchases_demo.layout import QUERIES, Layout
from purchases_demo.parts import part
from testbed.processes import Child
from testbed.spark_logs import committed_batch

Say = Callable[[str], None]


class LifeError(Exception):
    """The driver has not done what it should; the message says why and where to look."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """One recovery of one query: what the log's footers had estimated, and what it took; in ms."""

    query: str
    predicted_ms: float
    measured_ms: float
    replayed_batches: int

    @property
    def error(self) -> float:
        """|predicted - measured| / measured."""
        return abs(self.predicted_ms - self.measured_ms) / max(self.measured_ms, 1.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good the estimates were over `crashes` kills; `unforetold` recoveries had no estimate to compare with."""

    target_ms: float
    crashes: int
    recoveries: tuple[Foretold, ...]
    unforetold: int
    slow: int

    def to_json(self) -> dict[str, object]:
        """One JSON object: median error, and the share of recoveries that took no longer than the target."""
        measured = sorted(each.measured_ms for each in self.recoveries)
        total = len(measured) + self.unforetold
        return {
            "target_ms": self.target_ms,
            "crashes": self.crashes,
            "recoveries": total,
            "foretold": len(measured),
            "median_error": median(each.error for each in self.recoveries) if measured else None,
            "share_under_target": 1 - self.slow / total if total else None,
            "median_measured_ms": median(measured) if measured else None,
            "longest_measured_ms": measured[-1] if measured else None,
            "median_replayed_batches": median(each.replayed_batches for each in self.recoveries) if measured else None,
            "by_query": {
                spec.name: _summary([each for each in self.recoveries if each.query == spec.name]) for spec in QUERIES
            },
        }


def _summary(recoveries: Sequence[Foretold]) -> dict[str, object] | None:
    """One query's part of the verdict; None if it had no recovery that was foretold."""
    if not recoveries:
        return None
    measured = [each.measured_ms for each in recoveries]
    replayed = [each.replayed_batches for each in recoveries]
    return {
        "foretold": len(recoveries),
        "median_predicted_ms": median(each.predicted_ms for each in recoveries),
        "median_measured_ms": median(measured),
        "shortest_measured_ms": min(measured),
        "longest_measured_ms": max(measured),
        "median_error": median(each.error for each in recoveries),
        "replayed_batches": [min(replayed), max(replayed)],
    }


def measure_target(
    layout: Layout,
    seed: int,
    crashes: int,
    target: str,
    target_ms: float,
    life_s: float,
    feed: Sequence[object],
    say: Say,
) -> Verdict:
    """Kill the driver `crashes` times, each a random time (mean `life_s`) after both queries are back.

    The queries run with `recoveryTarget=target`. `feed` are the feeder's options.
    """
    dice = random.Random(f"lives of {seed}")
    with part(layout, "feed", "feed", *feed):
        for crash in range(crashes + 1):
            before = {spec.name: recovery_files(layout.checkpoint(spec.name)) for spec in QUERIES}
            bounds = ("--bound", f"recoveryTarget={target}", "--bound", "effort=0")
            with part(layout, "query", f"query-{crash}", *bounds) as driver:
                _until_back(driver, None if crash == 0 else lambda before=before: _all_reported(layout, before))
                _let_live(driver, dice.expovariate(1.0 / life_s) if crash < crashes else 0.0)
                driver.kill()
            newest = [each for each in _foretold(layout) if each[0] not in {p for f in before.values() for p in f}]
            say(f"crash {crash} of {crashes}: " + (", ".join(_line(report) for _, report in newest) or "first life"))
    reports = [report for _, report in _foretold(layout)]
    known = tuple(report for report in reports if report.predicted_ms > 0)
    slow = sum(report.measured_ms > target_ms for report in reports)
    return Verdict(target_ms, crashes, known, len(reports) - len(known), slow)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to choose how much to checkpoint; `bounds` are its `cec.*` settings."""

    name: str
    bounds: Mapping[str, str]


AS_MUCH_AS_IT_MAY = {"CI": "10ms", "U": "1", "effort": "0"}
"""With U out of reach a commit checks all dirty windows that the share CI/CP has time for."""

VARIANTS = (
    Variant("autotune", {"autotune": "on"}),
    Variant("CP=25ms", {**AS_MUCH_AS_IT_MAY, "CP": "25ms"}),
    Variant("CP=100ms", {**AS_MUCH_AS_IT_MAY, "CP": "100ms"}),
    Variant("CP=250ms", {**AS_MUCH_AS_IT_MAY, "CP": "250ms"}),
    Variant("T=30min", {"CI": "10ms", "CP": "30min", "U": "1000000000", "effort": "0"}),
)
UNDISTURBED = Variant("undisturbed", {"CI": "0ms", "U": "1000000000"})


@dataclass(slots=True)
class Work:
    """What one run of a variant got done: files committed by both queries in `seconds`, with so many kills."""

    variant: str
    files: int
    seconds: float
    kills: int
    replayed: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Files per second."""
        return self.files / self.seconds


def measure_work(layout: Layout, variant: Variant, seconds: float, kills_at: Iterable[float], say: Say) -> Work:
    """Run a variant on a backlog that is there already for `seconds`, killed at the given times from its start."""
    begin = time.monotonic()
    bounds = [text for key, value in variant.bounds.items() for text in ("--bound", f"{key}={value}")]
    moments = [*(at for at in kills_at if at < seconds), seconds]
    for number, moment in enumerate(moments):
        with part(layout, "query", f"query-{number}", *bounds) as driver:
            _let_live(driver, moment - (time.monotonic() - begin))
            driver.kill()
        say(f"{variant.name}: {moment:.0f} of {seconds:.0f} s, {_files(layout)} files")
    replayed = [report.replayed_batches for _, report in _foretold(layout)]
    return Work(variant.name, _files(layout), seconds, len(moments) - 1, replayed)


def kill_times(seed: int, seconds: float, mean_s: float) -> list[float]:
    """Times of kills, a Poisson process of which the first `seconds` count."""
    dice, at, times = random.Random(f"kills of {seed}"), 0.0, list[float]()
    while (at := at + dice.expovariate(1.0 / mean_s)) < seconds:
        times.append(at)
    return times


def _line(report: Foretold) -> str:
    return (
        f"{report.query} foretold {report.predicted_ms / 1000:.1f} s, took {report.measured_ms / 1000:.1f} s "
        f"for {report.replayed_batches} batches"
    )


def _foretold(layout: Layout) -> list[tuple[Path, Foretold]]:
    """All recovery reports of all queries, oldest first."""
    found = []
    for spec in QUERIES:
        for path in recovery_files(layout.checkpoint(spec.name)):
            facts = json.loads(path.read_text())
            report = Foretold(
                spec.name, float(facts["predicted_ms"] or 0.0), float(facts["duration_ms"]), facts["replayed_batches"]
            )
            found.append((int(facts["started_unix_ms"]), path, report))
    return [(path, report) for _, path, report in sorted(found, key=lambda each: (each[0], each[1]))]


def _all_reported(layout: Layout, before: Mapping[str, set[Path]]) -> bool:
    return all(recovery_files(layout.checkpoint(query)) - known for query, known in before.items())


def _files(layout: Layout) -> int:
    """Files that the queries have committed: one a batch."""
    return sum(committed_batch(layout.checkpoint(spec.name)) + 1 for spec in QUERIES)


def _until_back(driver: Child, back: Callable[[], bool] | None) -> None:
    """Take in events until every query has run a batch and, after a crash, `back` says that all are reported."""
    heard: set[str] = set()
    while len(heard) < len(QUERIES) or (back is not None and not back()):
        event = driver.next_event(120.0)
        if event is None:
            raise LifeError(f"the driver ended by itself: see {driver.log}")
        heard.add(str(event[1]["query"]))


def _let_live(driver: Child, seconds: float) -> None:
    if seconds > 0 and driver.ends_within(seconds):
        raise LifeError(f"the driver ended before it was killed: see {driver.log}")
