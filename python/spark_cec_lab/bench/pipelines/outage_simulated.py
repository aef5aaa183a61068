"""Figures 9 to 11 of Balazinska et al. in the simulator: with costs as the paper's, and with those of a Spark run."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cec.pipeline.options import Pace, Within
from spark_cec_lab.bench.pipelines.outage import (
    ALPHA,
    DELAY,
    PROCESS,
    QUICK_ALPHA,
    SUSPEND,
    Part,
    Point,
    describe,
    find_scale,
    plan,
    summary,
)
from spark_cec_lab.bench.pipelines.outage_job import CUT, FILES_PER_S, INPUTS, KEYS, SETTLED_S, Outage
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.simulation.availability.machine import simulate
from spark_cec_lab.simulation.availability.setup import Costs, Failure, Outcome, Setup

SIMULATED = (Part.FIGURE_9, Part.FIGURE_10, Part.FIGURE_11, Part.FIGURE_12, Part.TABLE_2, Part.BOUND)
"""The parts that the simulator has."""

PAPER = Costs(source_ms=2.0, flow_ms=10.0, sink_ms=2.0, row_us=25.0, fork_ms=40.0, look_ms=10.0, poll_ms=5.0)
"""A switch takes about 40 ms there. The correction of a failure of 3 s at 4,500 rows a second takes over 300 ms, so a
row takes 25 us. The other costs are small beside alpha X.
"""
SPARK = Costs(source_ms=700.0, flow_ms=1_200.0, sink_ms=550.0, row_us=10.0, fork_ms=1_000.0, share=0.8)
"""About what a run on a machine with two processors has shown that had little else to do. `--against` has its own."""

PAPERS = "s=1"
"""The world with costs as the paper's."""

FAILURES = 50
CLOSE = 0.2
"""A simulated number within this part of the measured one is close."""

_SEEDS = 3
"""At the scale of Spark, where the phase of a batch counts."""
_WARM_S = 30.0
_MEASURES = ("delay_new", "tentative", "corrected")
Write = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class World:
    """A scale with its costs. `scale`: seconds for a second of the paper. `seeds`: the runs of a point.

    `grain`: the part of a second that a window, a bucket and twice the time between two files take.
    """

    name: str
    costs: Costs
    scale: float
    alpha: float
    grain: float = 1.0
    seeds: int = 1

    @property
    def is_paper(self) -> bool:
        """Whether its costs are as the paper's."""
        return self.name == PAPERS

    def setup_of(self, outage: Outage, failures: tuple[Failure, ...]) -> Setup:
        """What is simulated for a run."""
        within = Within(
            round(outage.x_s * 1000), round(outage.wait_s * 1000), Pace(outage.pace), Pace(outage.pace_after)
        )
        return Setup(
            self.costs, within, failures, chain=outage.chain, inputs=INPUTS, rows_per_s=outage.rows_per_s,
            every_ms=round(1000 * self.grain / FILES_PER_S), window_ms=round(1000 * self.grain),
            bucket_ms=round(1000 * outage.bucket_s * self.grain), keys=round(KEYS * self.grain),
            settled_ms=1000 * SETTLED_S * self.grain,
        )  # fmt: skip

    def run(self, outage: Outage) -> list[Outcome]:
        """A failure of one input, once for each seed, which decides its phase, too."""
        found = list[Outcome]()
        for seed in range(self.seeds):
            begin_ms = round(1000 * self.grain * (_WARM_S + random.Random(seed).random()))
            failure = Failure(CUT, begin_ms, begin_ms + round(outage.cut_s * 1000))
            found.append(simulate(self.setup_of(outage, (failure,)), seed))
        return found


def paper_world() -> World:
    """A second of the paper is a second."""
    return World(PAPERS, PAPER, 1.0, ALPHA, grain=0.1)


def spark_world(costs: Costs, scale: float | None) -> World:
    """The scale is that which a measurement would take, by the same rule."""
    world = World("spark", costs, scale or 1.0, QUICK_ALPHA, seeds=_SEEDS)
    return world if scale is not None else replace(world, scale=_find_least_scale(world, with_usual=False))


def _find_least_scale(world: World, *, with_usual: bool) -> float:
    """The scale that a first run asks for. `with_usual`: it leaves room for the usual time, too."""
    found = world.run(Outage(15.0, 5.0, 8.0))
    came_s = [each.first_tentative_ms / 1000 - 5.0 for each in found if each.first_tentative_ms is not None]
    usual_s = statistics.median(each.usual_ms / 1000 for each in found) if with_usual else 0.0
    return find_scale({"first_tentative_s": statistics.median(came_s) + usual_s if came_s else None}, world.alpha)


def points_of(parts: Iterable[Part], world: World) -> list[Point]:
    """All points of the figures, also those for which Spark would need hours."""
    usual = Outage(5.0 * world.scale, world.alpha * 3.0 * world.scale, 3.0 * world.scale)
    own = (Part.FIGURE_11, Part.FIGURE_12)
    found = plan([each for each in parts if each in own], world.scale, world.alpha, quick=False)
    if Part.FIGURE_9 in parts:
        found += [
            Point(
                Part.FIGURE_9, pace, wait_s,
                replace(usual, wait_s=wait_s * world.scale, x_s=wait_s * world.scale / world.alpha, pace=pace),
            )
            for wait_s in (0.5, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 6.0)
            for pace in (PROCESS, DELAY)
        ]  # fmt: skip
    if Part.FIGURE_10 in parts:
        found += [
            Point(
                Part.FIGURE_10, f"{pace} & {pace_after}", cut_s,
                replace(usual, cut_s=cut_s * world.scale, pace=pace, pace_after=pace_after, rows_per_s=4_500),
            )
            for cut_s in (2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0)
            for pace in (PROCESS, DELAY)
            for pace_after in (PROCESS, DELAY, SUSPEND)
        ]  # fmt: skip
    order = list(Part)
    return sorted(found, key=lambda point: order.index(point.part))


def line_of(world: World, point: Point, found: Sequence[Outcome]) -> dict[str, Any]:
    """The summary of a point, as of Spark runs. Raises `BenchError` if a stable row is wrong, or never came."""
    wrong, never = sum(each.wrong for each in found), sum(each.corrected_ms is None for each in found)
    if wrong or never:
        raise BenchError(f"{world.name}, {point}: {wrong} stable windows are wrong, {never} runs are never corrected")
    done = [
        {
            "delay_new_s": each.delay_new_ms / 1000, "tentative": each.tentative, "usual_s": each.usual_ms / 1000,
            "corrected_s": (each.corrected_ms or 0.0) / 1000,
        }
        for each in found
    ]  # fmt: skip
    return {**summary(point, world.scale, done), "kind": "simulated", "world": world.name}


@dataclass(frozen=True, slots=True)
class Bound:
    """Runs with random failures under one pair of paces: how many, and the seeds of those over k times X.

    `worst`: the longest Delay_new, in parts of k times X.
    """

    series: str
    runs: int
    over: tuple[int, ...]
    worst: float


def bound_world(world: World, scale: float | None) -> World:
    """The world with a scale that leaves room for the usual time, too: the paper has alpha X < X - P.

    `scale`: the one that a user has given, which stays.
    """
    if world.is_paper or scale is not None:
        return world
    return replace(world, scale=_find_least_scale(world, with_usual=True))


def find_bound(world: World, pace: str, first_seed: int, runs: int = FAILURES) -> Bound:
    """One to three failures of any inputs, for 0.5 to 30 s of the paper, before a chain of one to four flows."""
    shares = dict[int, float]()
    for seed in range(first_seed, first_seed + runs):
        chance = random.Random(seed)
        outage = Outage(0.0, world.alpha * 3.0 * world.scale, 3.0 * world.scale, pace, pace, chance.randint(1, 4))
        failures, begin_ms = list[Failure](), 1000 * world.grain * _WARM_S
        for _ in range(chance.randint(1, 3)):
            length_ms = 1000 * world.scale * chance.uniform(0.5, 30.0)
            failures.append(Failure(chance.choice(INPUTS), round(begin_ms), round(begin_ms + length_ms)))
            begin_ms += 1000 * world.scale * chance.uniform(0.0, 30.0)
        found = simulate(world.setup_of(outage, tuple(failures)), seed)
        if found.wrong or found.corrected_ms is None:
            what = f"{found.wrong} stable windows are wrong" if found.wrong else "an epoch stays open"
            raise BenchError(f"{world.name}, seed {seed}: {what}")
        shares[seed] = found.delay_new_ms / 1000 / (outage.x_s * outage.chain)
    over = tuple(seed for seed, share in shares.items() if share >= 1)
    return Bound(f"{pace} & {pace}", runs, over, round(max(shares.values()), 3))


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of `--json-out`. Raises `BenchError` if they lack what a simulation needs."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from error
    known = [each for each in lines if each.get("task") == "availability" and "costs" in each]
    if not known:
        raise BenchError(f"{path} has no run of cec bench availability with costs: measure one with --part fig9")
    return lines


def costs_of(lines: Iterable[Mapping[str, Any]]) -> Costs:
    """The medians of what the runs have cost. Raises `BenchError` if no run has had an epoch."""
    known = [each["costs"] for each in lines if "costs" in each]

    def median(name: str) -> float:
        values = [each[name] for each in known if each[name] is not None]
        if not values:
            raise BenchError(f"no run tells {name}: in one of them an input must be away for longer than alpha X")
        return float(statistics.median(values))

    return Costs(
        1000 * median("source_s"), 1000 * median("flow_s"), 1000 * median("sink_s"), median("row_us"),
        1000 * median("fork_s"), median("share"),
    )  # fmt: skip


def compare(lines: Sequence[Mapping[str, Any]], costs: Costs) -> list[dict[str, Any]]:
    """For each measured point of figures 9 to 12 the simulated numbers over the measured ones, and which are not close.
    """
    found = list[dict[str, Any]]()
    for line in lines:
        if line.get("kind") != "summary" or line.get("part") not in [each.value for each in SIMULATED]:
            continue
        part, scale = Part(line["part"]), float(line["scale"])
        pace, _, after = str(line["series"]).partition(" & ")
        outage = Outage(
            line["cut_s"], line["alpha_x_s"], line["x_s"], pace, after or PROCESS,
            line["chain"], line["rows_per_s"], state=line["state"],
        )  # fmt: skip
        world = World("spark", costs, scale, QUICK_ALPHA, seeds=_SEEDS)
        point = Point(part, line["series"], line["x"], outage)
        ours = line_of(world, point, world.run(outage))
        ratios = {name: _divide(ours[name]["median"], line[name]["median"]) for name in _MEASURES}
        far = [name for name, each in ratios.items() if each is None or abs(each - 1) > CLOSE]
        measured = {name: line[name]["median"] for name in _MEASURES}
        found.append({
            "kind": "compared", **describe(point, scale), "measured": measured,
            "simulated": {name: ours[name]["median"] for name in _MEASURES}, "ratios": ratios, "far": far,
        })  # fmt: skip
    return found


def _divide(ours: float, theirs: float) -> float | None:
    """None if only one of both is nothing."""
    if not theirs:
        return None if ours else 1.0
    return round(ours / theirs, 2)
