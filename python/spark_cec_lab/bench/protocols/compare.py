"""`cec bench protocols`: the runs, in turn, and what becomes of them."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say
from spark_cec_lab.bench.processes import BenchError, Child
from spark_cec_lab.bench.protocols.job import conf
from spark_cec_lab.bench.protocols.simulated import CORES, FIVE, FLOWS, costs_of, simulated
from spark_cec_lab.bench.protocols.spec import CYCLIC, Outcome, RunSpec
from spark_cec_lab.simulation.protocols.measure import Course

QUERIES = ("q1", "q3", "q8", "q12")
SKEWED = ("q3", "q8", "q12")
PROTOCOLS = ("none", "coordinated", "uncoordinated", "communication-induced", "cec")
ON_CYCLES = ("uncoordinated", "communication-induced", "cec")
MOST_ON_CYCLES = 10
"""Simulated workers of the cyclic query, which the paper has five of: each instance reads all others, all the time."""

LOAD = 0.8
"""Of what the slowest of the protocols can do, in a run that fails: all of them have the same to do."""

LESS_LOAD = 0.5
SLOW_LOAD = 0.02
_BOTH = (("full", None), ("failing", LOAD))
_ANSWER_S = 400.0

Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of a run, of which `settle` do not count: of `full` speed, and one that fails after `fails`."""

    warm: float
    settle: float
    full: float
    failing: float
    fails: float
    interval: float


class Part(str, Enum):
    """Of the comparison: figures 7 to 11 with tables II and III; figures 12 and 13; table IV."""

    NEXMARK = "nexmark"
    SKEW = "skew"
    CYCLE = "cycle"


@dataclass(frozen=True, slots=True)
class Plan:
    """`failing`: with how many instances runs fail. `hot`: percent of the keys. `workers` of the simulation."""

    queries: tuple[str, ...]
    protocols: tuple[str, ...]
    instances: tuple[int, ...]
    failing: tuple[int, ...]
    skewed: tuple[str, ...]
    hot: tuple[int, ...]
    cyclic: bool
    rounds: int
    lengths: Lengths
    workers: tuple[int, ...]
    course: Course


FULL = Plan(
    QUERIES, PROTOCOLS, (1, 2, 4), (2,), SKEWED, (10, 20, 30), True, 1,
    Lengths(warm=90.0, settle=6.0, full=20.0, failing=60.0, fails=18.0, interval=5.0),
    (2, 5, 10, 30, 50, 100), Course(seconds=60.0, warm_up_s=10.0, fails_s=18.0, interval_s=5.0),
)  # fmt: skip
QUICK = Plan(
    ("q3",), PROTOCOLS, (2,), (2,), (), (), True, 1,
    Lengths(warm=30.0, settle=4.0, full=10.0, failing=18.0, fails=6.0, interval=3.0),
    (2, 10), Course(seconds=30.0, warm_up_s=5.0, fails_s=9.0, interval_s=5.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run: with `load`, the share of what the slowest can do at which it runs, and fails; without, all it can do."""

    kind: str
    query: str
    protocol: str
    instances: int
    load: float | None = None
    hot: int | None = None


def runs_of(plan: Plan) -> list[Wanted]:
    """All runs, in this order: see the figures of the paper at each step.

    1. As much as each can do (figure 7, table II, figure 8).
    2. A failure, at a share of that (figures 9 to 11, table III).
    3. Skew (figures 12 and 13).
    4. A cycle (table IV).
    5. Next to no input, for what a batch costs.
    """
    protocols, on_cycles = plan.protocols, [each for each in ON_CYCLES if each in plan.protocols and plan.cyclic]
    full = [
        Wanted("full", query, protocol, instances)
        for round_, query, instances in product(range(plan.rounds), plan.queries, plan.instances)
        for protocol in _turned(protocols, round_)
    ]  # 1
    failing = [Wanted("failing", *each, LOAD) for each in _each(plan.queries, protocols, plan.failing)]  # 2
    skewed = [
        Wanted("skewed", *each, LESS_LOAD, hot)
        for hot in plan.hot
        for each in _each(plan.skewed, protocols, (_middle(plan.instances),))
    ]  # 3
    cyclic = [Wanted(kind, CYCLIC, each, 1, load) for each in on_cycles for kind, load in _BOTH]  # 4
    slow = [each for each in full if each.protocol == "none" and plan.workers][:1]
    return [*full, *failing, *skewed, *cyclic, *(replace(each, kind="slow", load=SLOW_LOAD) for each in slow)]  # 5


def _each(queries: Sequence[str], protocols: Sequence[str], instances: Sequence[int]) -> list[tuple[str, str, int]]:
    return [(query, protocol, count) for query, count, protocol in product(queries, instances, protocols)]


def plan_of(
    quick: bool, queries: Sequence[str], protocols: Sequence[str], instances: Sequence[int], rounds: int,
    part: Part | None = None,
) -> Plan:  # fmt: skip
    """The plan, and what of it is wanted, all where nothing is said."""
    plan = replace(QUICK if quick else FULL, rounds=rounds)
    if part is Part.NEXMARK:
        plan = replace(plan, skewed=(), cyclic=False)
    elif part is Part.SKEW:  # how much each can do must be known
        plan = replace(plan, queries=plan.skewed, instances=plan.failing, failing=(), cyclic=False, workers=())
    elif part is Part.CYCLE:
        plan = replace(plan, queries=(), skewed=())
    if queries:
        acyclic = tuple(each for each in queries if each != CYCLIC)
        skewed = tuple(each for each in plan.skewed if each in queries)
        plan = replace(plan, queries=acyclic, skewed=skewed, cyclic=plan.cyclic and CYCLIC in queries)
    if protocols:
        plan = replace(plan, protocols=tuple(each for each in PROTOCOLS if each in protocols))
    if not instances:
        return plan
    return replace(plan, instances=tuple(instances), failing=(_middle(instances),) if plan.failing else ())


def _middle(instances: Sequence[int]) -> int:
    return sorted(instances)[len(instances) // 2]


class Comparison:
    """The runs of a plan; `outcomes` so far."""

    def __init__(self, plan: Plan, job: Child, home: Path, write: Write, say: Say) -> None:
        self.outcomes: list[Outcome] = []
        self._plan = plan
        self._job = job
        self._home = home
        self._write = write
        self._say = say

    def run(self) -> None:
        """All of it, behind a run that warms up."""
        wanted = runs_of(self._plan)
        self._say("warming up")
        self._ask(RunSpec((*self._plan.queries, "q3")[0], "none", 2, "", settle_s=0.0, seconds=self._plan.lengths.warm))
        for number, each in enumerate(wanted, 1):
            spec = self._spec(each)
            load = "" if spec.rate is None else f" at {spec.rate:,.0f}/s"
            load += "" if spec.fails_s is None else f", fails after {spec.fails_s:.0f} s"
            hot = "" if each.hot is None else f", {each.hot} % hot"
            self._say(f"{number}/{len(wanted)}: {each.query}, {each.protocol}, {each.instances} instances{hot}{load}")
            outcome = self._ask(spec)
            self.outcomes.append(outcome)
            self._write({"kind": each.kind, **outcome.to_json()})

    def _spec(self, wanted: Wanted) -> RunSpec:
        lengths = self._plan.lengths
        spec = RunSpec(
            wanted.query, wanted.protocol, wanted.instances, "", settle_s=lengths.settle, seconds=lengths.full,
            interval_s=lengths.interval, hot_percent=wanted.hot,
        )  # fmt: skip
        if wanted.load is None:
            return spec
        rates = [rate_of(self.outcomes, wanted.query, each, wanted.instances) for each in self._rivals(wanted)]
        rate = wanted.load * min(rates)
        if wanted.load == SLOW_LOAD:
            return replace(spec, rate=rate)
        part = 1.0 if wanted.hot is None else 0.5  # of skew there is more to be seen than of failures
        return replace(spec, rate=rate, seconds=part * lengths.failing, fails_s=part * lengths.fails)

    def _rivals(self, wanted: Wanted) -> list[str]:
        alike = (each for each in self.outcomes if each.spec.query == wanted.query and each.spec.rate is None)
        return list(dict.fromkeys(each.spec.protocol for each in alike if each.spec.instances == wanted.instances))

    def _ask(self, spec: RunSpec) -> Outcome:
        home = self._home / "run"
        outcome = Outcome.from_json(self._job.ask(replace(spec, home=str(home)).to_json(), _ANSWER_S))
        shutil.rmtree(home)
        return outcome


def rate_of(outcomes: Iterable[Outcome], query: str, protocol: str, instances: int) -> float:
    """Of the runs that did all they could: events a second, the median."""
    return statistics.median(
        each.events_s for each in outcomes
        if (each.spec.query, each.spec.protocol, each.spec.instances) == (query, protocol, instances)
        and each.spec.rate is None
    )  # fmt: skip


def simulate(outcomes: Sequence[Outcome], plan: Plan, say: Say) -> Iterator[dict[str, Any]]:
    """What simulated workers do, with the costs that these runs have shown. Lines; none without runs that say them."""
    queries = [*plan.queries, *([CYCLIC] if plan.cyclic else [])]
    firsts = {query: ON_CYCLES[0] if query == CYCLIC else "none" for query in queries}
    able = [each for each in outcomes if each.spec.rate is None]
    known = {
        query: counts for query, first in firsts.items()
        if (counts := {each.spec.instances for each in able if (each.spec.query, each.spec.protocol) == (query, first)})
    }  # fmt: skip
    if not known or not plan.workers:
        return
    costs = {query: {each: costs_of(outcomes, FLOWS[query], each) for each in FIVE} for query in known}
    for query, of_query in costs.items():
        for protocol, each in of_query.items():
            yield {"kind": "costs", "query": query, "protocol": protocol.value, **asdict(each)}
    with get_context("spawn").Pool(CORES) as pool:  # ended with this, whatever they do
        for query, counts in known.items():
            rate = rate_of(outcomes, query, firsts[query], CORES if CORES in counts else min(counts))
            hot = tuple(each / 100 for each in plan.hot) if query in plan.skewed else ()
            workers = [each for each in plan.workers if query != CYCLIC or each <= MOST_ON_CYCLES]
            yield from simulated(query, rate, workers, hot, plan.course, costs[query], pool, say)


def read_runs(paths: Iterable[Path]) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """The runs in files of JSON lines, and what was simulated. Raises `BenchError` for what is none."""
    runs, simulation = [], []
    for path in paths:
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            runs += [Outcome.from_json({key: each[key] for key in each if key != "kind"})
                     for each in lines if "spec" in each]  # fmt: skip
            simulation += [each for each in lines if each["kind"] == "simulated"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BenchError(f"{path} has no runs of this benchmark, from --json-out: {error}") from error
    return runs, simulation


def _turned(names: Sequence[str], by: int) -> list[str]:
    at = by % len(names)
    return [*names[at:], *names[:at]]


@contextmanager
def job_in(work: Path) -> Iterator[Child]:
    """The process that runs the pipelines. Raises `BenchError`."""
    scratch = work / "scratch"
    scratch.mkdir()
    settings = json.dumps(conf(str(scratch), str(shutil.copy(jar_path(), work))))
    command = [sys.executable, "-m", "spark_cec_lab.bench.protocols.job", settings]
    with Child(command, work / "job.log", {"PYSPARK_PYTHON": sys.executable}) as child:
        next(child.events(_ANSWER_S))
        yield child


def compare(
    plan: Plan, known: Sequence[Path], work: Path, write: Write, say: Say
) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """Runs it, and simulates; or, where files have that already, takes it from there. Raises `BenchError`."""
    simulation: list[dict[str, Any]] = []
    if known:
        outcomes, simulation = read_runs(known)
    else:
        with job_in(work) as child:
            comparison = Comparison(plan, child, work, write, say)
            comparison.run()
            outcomes = comparison.outcomes
    if not simulation:
        for line in simulate(outcomes, plan, say):
            write(line)
            simulation.append(line)
    return outcomes, simulation
