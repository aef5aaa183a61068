"""Su and Zhou's experiment (their Figs. 4 and 5): eight of ten workers are lost at once, and come back one by one."""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from spark_cec.pipeline import RecoveryMode
from spark_cec.session import jar_path
from spark_cec_lab.bench.jars import build_jar
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.driver import DriverSpec
from spark_cec_lab.bench.pipelines.standalone import Standalone
from spark_cec_lab.bench.pipelines.topology import SUBSCRIBED, Load
from spark_cec_lab.bench.processes import Child
from spark_cec_lab.bench.providers import in_turn
from spark_cec_lab.bench.ratios import ratio
from spark_cec_lab.bench.report import rounded
from spark_cec_lab.simulation.pipelines.simulate import PAPER_ARRIVALS_S

WORKERS, LOST = 10, 8
AVAILABLE = 1.2
"""Theta: a query is available while its latency is below so many times what it was before the failure."""

BEST_CASE_S = 180.0
"""When the nodes of the best case come, all at once."""

SINKS = tuple(f"q{number + 1}" for number in range(len(SUBSCRIBED)))
_WORK = Path(__file__).with_name("Work.scala")
_SILENCE_S = 120.0


class Way(str, Enum):
    """How it is recovered, and in the best case when the nodes come."""

    PROGRESSIVE = "progressive"
    BLOCKING = "blocking"
    BEST_CASE = "best-case"
    AT_ONCE = "at-once"

    @property
    def mode(self) -> RecoveryMode:
        """What the pipeline is told."""
        return RecoveryMode.BLOCKING if self is Way.BEST_CASE else RecoveryMode(self.value)


@dataclass(frozen=True, slots=True)
class Course:
    """Times of one run, in seconds: before the failure to warm up and to learn the latencies, and after the last node.

    `scale` is by how much faster nodes come than in the paper, `interval_s` Delta_T: latencies are averaged over the
    last two, since each query has a batch in one of them and its end comes now a little sooner, now a little later.
    """

    warm_up_s: float = 50.0
    steady_s: float = 50.0
    after_s: float = 120.0
    scale: float = 0.25
    interval_s: float = 10.0

    def arrivals(self, way: Way, seed: int) -> list[float]:
        """When a node comes, seconds after the failure, in order: the same for all ways but the best case."""
        chance = random.Random(seed)
        drawn = sorted(chance.uniform(*PAPER_ARRIVALS_S) for _ in range(LOST))
        return [self.scale * at for at in ([BEST_CASE_S] * LOST if way is Way.BEST_CASE else drawn)]

    def watched_s(self, seed: int) -> float:
        """How long a run is watched after the failure: for all ways as long."""
        return max(self.arrivals(Way.PROGRESSIVE, seed)[-1], self.scale * BEST_CASE_S) + self.after_s


@dataclass(frozen=True, slots=True)
class Batch:
    """Of a sink: when it ended, seconds after the failure, and the mean latency of its rows."""

    sink: str
    at_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Every Delta_T after the failure: the mean relative latency of queries with output, and how many are available."""

    at_s: tuple[float, ...]
    relative: tuple[float | None, ...]
    available: tuple[int, ...]

    @property
    def area(self) -> float:
        """Under *available queries*: query seconds."""
        return sum(self.available) * (self.at_s[1] - self.at_s[0]) if len(self.at_s) > 1 else 0.0

    def reached_s(self, number: int) -> float | None:
        """The begin of the first interval in which so many were available."""
        return next((at for at, each in zip(self.at_s, self.available, strict=True) if each >= number), None)


def curve(batches: Sequence[Batch], course: Course, until_s: float) -> Curve:
    """What the sinks' batches come to; those of the `steady_s` before the failure are what they are compared with."""
    steady = latencies_before(batches, course)
    times, relative, available = [], [], []
    at = 0.0
    while at + course.interval_s <= until_s:
        found = []
        for sink, before in steady.items():
            begin = max(0.0, at - course.interval_s)
            now = _mean(b.latency_s for b in batches if b.sink == sink and begin <= b.at_s < at + course.interval_s)
            if now is not None:
                found.append(now / before)
        times.append(at)
        relative.append(_mean(found))
        available.append(sum(each < AVAILABLE for each in found))
        at += course.interval_s
    return Curve(tuple(times), tuple(relative), tuple(available))


def latencies_before(batches: Sequence[Batch], course: Course) -> dict[str, float]:
    """l_s of each sink that had output then: the mean over the `steady_s` before the failure."""
    means = {sink: _mean(each.latency_s for each in batches if each.sink == sink and -course.steady_s <= each.at_s < 0)
             for sink in SINKS}  # fmt: skip
    return {sink: each for sink, each in means.items() if each is not None}


def _mean(values: Iterator[float] | Sequence[float]) -> float | None:
    given = list(values)
    return statistics.fmean(given) if given else None


@dataclass(frozen=True, slots=True)
class Run:
    """One way in one round."""

    way: Way
    seed: int
    arrivals_s: tuple[float, ...]
    curve: Curve
    steady_s: Mapping[str, float]
    wanted: float

    def line(self) -> dict[str, Any]:
        """As a JSON line."""
        return {
            "kind": "run", "task": "failover", "way": self.way.value, "seed": self.seed,
            "arrivals_s": [round(at, 2) for at in self.arrivals_s], "wanted_cores": self.wanted,
            "latency_before_s": round(statistics.median(self.steady_s.values()), 2),
            "first_s": self.curve.reached_s(1), "most_s": self.curve.reached_s(12),
            "all_s": self.curve.reached_s(len(SINKS)), "area": round(self.curve.area, 1),
            "at_s": list(self.curve.at_s), "available": list(self.curve.available),
            "relative": [None if each is None else round(each, 3) for each in self.curve.relative],
        }  # fmt: skip


def failover(
    ways: Sequence[Way], load: Load, course: Course, rounds: int, seed: int, work: Path,
    write: Callable[[dict[str, Any]], None], say: Say,
) -> list[Run]:  # fmt: skip
    """Every way in every round, in turn; a line for each, then a summary. Raises `BenchError`."""
    # All rounds measure this jar, even if the sources change meanwhile.
    jars = (str(shutil.copy(jar_path(), work)), str(build_jar(_WORK, work / "work.jar")))
    runs = []
    for number in range(rounds):
        for way in in_turn(tuple(ways), number):
            home, tell = work / f"{number}-{way.value}", after(f"round {number + 1}/{rounds}, {way.value}: ", say)
            runs.append(_run(way, load, course, seed + number, jars, home, tell))
            write(runs[-1].line())
    write(summary(runs))
    return runs


def _run(way: Way, load: Load, course: Course, seed: int, jars: tuple[str, ...], home: Path, say: Say) -> Run:
    home.mkdir()
    (home / "scratch").mkdir()
    with Standalone(home / "cluster") as cluster:
        for _ in range(WORKERS):
            cluster.add()
        spec = DriverSpec(cluster.url, str(home / "pipeline"), str(home / "scratch"), jars, load, way.mode)
        command = [sys.executable, "-m", "spark_cec_lab.bench.pipelines.driver", spec.to_json()]
        with Child(command, home / "driver.log", {"PYSPARK_PYTHON": sys.executable}) as driver:
            return _watch(driver, cluster, way, course, seed, say)


def _watch(driver: Child, cluster: Standalone, way: Way, course: Course, seed: int, say: Say) -> Run:
    """Lets it run, kills, adds the nodes when they come, and collects what the sinks say."""
    batches: list[tuple[str, float, float]] = []
    arrivals, coming = course.arrivals(way, seed), 0
    all_out_at = failed_at = None
    wanted = 0.0
    shown = ""
    for event in driver.events(_SILENCE_S):
        now = time.time()
        if "sink" in event:
            batches.append((event["sink"], event["at"], event["latency_s"]))
            continue
        if event["capacity"] and failed_at is None:
            wanted = event["capacity"]["wanted"]
        if all_out_at is None and len({sink for sink, _, _ in batches}) == len(SINKS):
            all_out_at = now
            say("all queries have output")
        if failed_at is None and all_out_at is not None and now - all_out_at > course.warm_up_s + course.steady_s:
            cluster.kill(LOST)
            failed_at = now
            say(f"{LOST} workers lost; {wanted:.1f} cores were wanted")
        if failed_at is not None:
            while coming < LOST and now - failed_at >= arrivals[coming]:
                cluster.add()
                coming += 1
            shown = _tell(event, now - failed_at, shown, say)
            if now - failed_at > course.watched_s(seed):
                break
    assert failed_at is not None
    told = [Batch(sink, at - failed_at, latency) for sink, at, latency in batches]
    found = curve(told, course, course.watched_s(seed))
    return Run(way, seed, tuple(arrivals), found, latencies_before(told, course), wanted)


def _tell(event: Mapping[str, Any], at_s: float, shown: str, say: Say) -> str:
    """Says how it stands if that has changed."""
    states = event["states"].values()
    capacity = event["capacity"] or {}
    waiting = sum(state == "waiting" for state in states)
    text = f"{capacity.get('executors')} executors, {len(states) - waiting} of {len(states)} flows run"
    if text != shown:
        say(f"{at_s:.1f} s: {text}")
    return text


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians of each way, and areas as ratios within each round: ours over the others'."""
    ways = list(dict.fromkeys(each.way for each in runs))
    medians = {}
    for way in ways:
        own = [each for each in runs if each.way is way]
        firsts = [first for each in own if (first := each.curve.reached_s(1)) is not None]
        medians[way.value] = {
            "area": round(statistics.median(each.curve.area for each in own), 1),
            "first_s": statistics.median(firsts) if firsts else None,
        }
    areas = {way: {each.seed: each.curve.area for each in runs if each.way is way} for way in ways}
    others = [way for way in ways if way is not Way.PROGRESSIVE]
    overs = {way.value: ratio(areas.get(Way.PROGRESSIVE, {}), areas[way]) for way in others}
    ratios = {name: rounded(asdict(over)) for name, over in overs.items() if over is not None}
    return {"kind": "summary", "task": "failover", "medians": medians, "area_over": ratios}
