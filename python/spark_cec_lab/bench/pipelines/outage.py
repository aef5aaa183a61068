"""The experiments of Balazinska et al. (SIGMOD 2005) with an input that is away for a while: figures 9 to 11, table 3.

A second of the paper is `scale` seconds here, because a batch of Spark takes about a second. The scale is the least one
at which X less alpha times X is the time that the first tentative row needs. All runs share one Spark session. The
first one does not count, because its JVM still compiles. The second one measures the scale.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.one_job import await_result, spread, start_job
from spark_cec_lab.bench.pipelines.outage_job import Outage, OutageSpec
from spark_cec_lab.bench.pipelines.way_job import WaySpec
from spark_cec_lab.bench.processes import BenchError

_JOB = "spark_cec_lab.bench.pipelines.outage_job"
_SILENCE_S = 700.0
_FIRST = Outage(15.0, 5.0, 8.0)

ALPHA, QUICK_ALPHA = 0.9, 0.6
"""With the smaller one a run is a quarter as long, because more of X is left for the start of an epoch."""
_X_S, _CUT_S = 3.0, 5.0
PROCESS, DELAY, SUSPEND = "process", "delay", "suspend"
_PACES = tuple((pace, after) for pace in (PROCESS, DELAY) for after in (PROCESS, DELAY, SUSPEND))


class Part(str, Enum):
    """One figure or table of the paper; `cost`: what an epoch costs, beside a flow that waits; `switch`: replicas.

    `heap`: the heap of a flow with many windows, while an epoch is open.
    `table2`: what its formulas need. `bound`: random failures, in the simulator alone.
    """

    COST = "cost"
    HEAP = "heap"
    FIGURE_9 = "fig9"
    FIGURE_10 = "fig10"
    FIGURE_11 = "fig11"
    FIGURE_12 = "fig12"
    TABLE_2 = "table2"
    TABLE_3 = "table3"
    BOUND = "bound"
    SWITCH = "switch"


THEIRS = {
    Part.FIGURE_9: "Process: a step, all tentative if alpha X <= 4 s; Delay: fewer in proportion to alpha X; "
    "Delay_new is linear in alpha X",
    Part.FIGURE_10: "no tentative row below 2.7 s; Delay & Suspend fails from 3 s; Process & Process stays below "
    "alpha X and has most tentative rows",
    Part.FIGURE_11: "Process & Process: alpha X and the usual delay; Delay & Delay: alpha X more a node, within k X, "
    "and not fewer tentative rows; Process & Suspend fails",
    Part.FIGURE_12: "both ways are linear in the state and in the rate; checkpoint/redo wins everywhere; two operators "
    "double the slope",
    Part.TABLE_3: "the delay is linear in the length of a bucket",
    Part.BOUND: "Process & Process and Delay & Delay keep Delay_new within k X, k flows in a row",
}
"""What the paper's text says of each. Its curves are not in the text."""

OUTAGES = (Part.FIGURE_9, Part.FIGURE_10, Part.FIGURE_11, Part.FIGURE_12, Part.TABLE_3)
"""The parts that are runs of this module."""

QUICK = tuple(each for each in OUTAGES if each is not Part.FIGURE_12)
"""The parts of `--quick`, which takes less than ten minutes."""

MEASURED = tuple(each for each in Part if each is not Part.BOUND)
"""The parts that are runs on Spark."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a part: `x` on the axis of the figure, in the paper's seconds, and how the flows are declared."""

    part: Part
    series: str
    x: float
    outage: Outage


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs are made, and how often. `scale`: seconds for a second of the paper; None: a first run measures it.

    `alpha`: None for the usual one. `at`: the points on the axes of the figures; all if it is empty.
    """

    parts: tuple[Part, ...]
    scale: float | None = None
    alpha: float | None = None
    at: tuple[float, ...] = ()
    rounds: int = 1
    quick: bool = False

    @property
    def alpha_of_flows(self) -> float:
        """Alpha of the flows."""
        return self.alpha or (QUICK_ALPHA if self.quick else ALPHA)

    def points(self, scale: float) -> list[Point]:
        """The runs of a round."""
        known = plan(self.parts, scale, self.alpha_of_flows, quick=self.quick)
        return [each for each in known if not self.at or each.x in self.at]

    def find_unknown(self) -> str | None:
        """Names the points of `at` that no run has; None if each has one."""
        known = {each.x for each in plan(self.parts, 1.0, self.alpha_of_flows, quick=self.quick)}
        unknown, there = (", ".join(f"{x:g}" for x in xs) for xs in ({*self.at} - known, sorted(known)))
        return f"no run is at {unknown}: there are {there or 'none'}" if unknown else None


def plan(parts: Iterable[Part], scale: float, alpha: float, *, quick: bool) -> list[Point]:
    """The runs of all parts. `scale`: seconds for a second of the paper."""
    made = dict[Part, list[Point]]()
    usual = Outage(_CUT_S * scale, alpha * _X_S * scale, _X_S * scale)
    states, rates = ((100, 100_000), (500, 4_000)) if quick else ((100, 10_000, 100_000), (500, 1_000, 2_000, 4_000))
    brief = replace(usual, wait_s=scale, x_s=scale / alpha)
    made[Part.FIGURE_9] = [
        Point(Part.FIGURE_9, pace, wait_s, replace(usual, wait_s=wait_s * scale, x_s=wait_s * scale / alpha, pace=pace))
        for wait_s in ((3.0,) if quick else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
        for pace in (PROCESS, DELAY)
    ]
    made[Part.FIGURE_10] = [
        Point(
            Part.FIGURE_10, f"{pace} & {pace_after}", cut_s,
            replace(usual, cut_s=cut_s * scale, pace=pace, pace_after=pace_after, rows_per_s=4_500),
        )
        for cut_s in ((5.0,) if quick else (2.0, 5.0, 15.0, 30.0))
        for pace, pace_after in _PACES
        if not quick or (pace, pace_after) in ((PROCESS, PROCESS), (DELAY, SUSPEND))
    ]  # fmt: skip
    made[Part.FIGURE_11] = [
        Point(
            Part.FIGURE_11, f"{pace} & {pace_after}", float(chain),
            replace(usual, cut_s=(5.0 if quick else 15.0) * scale, pace=pace, pace_after=pace_after, chain=chain),
        )
        for chain in ((2,) if quick else (1, 2, 3, 4))
        for pace, pace_after in ((PROCESS, PROCESS), (DELAY, DELAY), (PROCESS, SUSPEND))
        if not quick or pace == PROCESS == pace_after
    ]  # fmt: skip
    made[Part.FIGURE_12] = [
        Point(Part.FIGURE_12, f"{axis}, {chain} flow{'s'[: chain - 1]}", x, replace(each, chain=chain))
        for chain in ((1,) if quick else (1, 2))
        for axis, x, each in (
            *(("state", float(rows), replace(brief, rows_per_s=1_000, state=rows)) for rows in states),
            *(("rate", float(rows), replace(brief, rows_per_s=rows, state=20)) for rows in rates),
        )
    ]  # fmt: skip
    made[Part.TABLE_3] = [
        Point(Part.TABLE_3, "process & process", bucket_s, replace(usual, cut_s=0.0, bucket_s=bucket_s))
        for bucket_s in ((4.0,) if quick else (0.5, 1.0, 2.0, 4.0, 8.0))
    ]
    return [point for part in Part if part in parts for point in made.get(part, [])]


def find_scale(done: dict[str, Any], alpha: float) -> float:
    """The least scale, in tenths, at which X less alpha times X is as long as the first tentative row took.

    Raises `BenchError` if no tentative row came.
    """
    took_s: float | None = done["first_tentative_s"]
    if took_s is None:
        raise BenchError("the first run has no tentative row, so nothing says how long one takes")
    return math.ceil(10 * max(took_s, 0.1) / ((1 - alpha) * _X_S)) / 10


def outages(
    chosen: Selection, memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say
) -> list[dict[str, Any]]:
    """Runs each point once a round, and writes a line for each run and one for each point. Answers the latter.

    Raises `BenchError` if a stable row is wrong, is missing or came twice.
    """
    with OutageRuns(memory, work) as runs:
        return _run_all(chosen, runs, write, say)


def _run_all(
    chosen: Selection, runs: OutageRuns, write: Callable[[dict[str, Any]], None], say: Say
) -> list[dict[str, Any]]:
    scale, found = chosen.scale, dict[int, list[Any]]()
    runs.warm_up(say)
    if scale is None:
        alpha = chosen.alpha_of_flows
        first = runs.run(_FIRST, after("the scale: ", say))
        scale = find_scale(first, alpha)
        write({"kind": "run", "task": "availability", "part": "scale", "scale": scale, "alpha": alpha, **first})
        say(f"a second of the paper is {scale:g} s here: the first tentative row took {first['first_tentative_s']} s")
    points = chosen.points(scale)
    for number in range(chosen.rounds):
        for i in range(len(points)) if number % 2 == 0 else reversed(range(len(points))):
            point = points[i]
            name = f"round {number + 1}/{chosen.rounds}, {point.part.value}, {point.series}, {point.x:g}: "
            done = runs.run(point.outage, after(name, say))
            found.setdefault(i, []).append(done)
            write({"kind": "run", **describe(point, scale), "round": number + 1, **done})
    summaries = [summary(point, scale, found[i]) for i, point in enumerate(points)]
    for each in summaries:
        write(each)
    return summaries


def describe(point: Point, scale: float) -> dict[str, Any]:
    """What a point's lines begin with."""
    return {
        "task": "availability", "part": point.part.value, "series": point.series, "x": point.x, "scale": scale,
        "alpha_x_s": round(point.outage.wait_s, 3), "x_s": round(point.outage.x_s, 3),
        "cut_s": round(point.outage.cut_s, 3), "rows_per_s": point.outage.rows_per_s, "chain": point.outage.chain,
        "state": point.outage.state,
    }  # fmt: skip


def summary(point: Point, scale: float, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, lowest and highest of each measure of a point. Times are seconds of the paper, but `usual_s`.

    `catch_up`: the largest batch of the flow after the return of the input. `processors`: how many were busy, by phase.
    """
    return {
        "kind": "summary", **describe(point, scale), "theirs": THEIRS[point.part],
        "delay_new": spread([each["delay_new_s"] / scale for each in found]),
        "tentative": spread([each["tentative"] for each in found]),
        "corrected": spread([each["corrected_s"] / scale for each in found]),
        "usual_s": spread([each["usual_s"] for each in found]), "catch_up": _catch_up(found),
        "processors": _processors(found),
    }  # fmt: skip


def _processors(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]] | None:
    """By phase, the processors that were busy; None if no run tells."""
    known = [each["processors"] for each in found if "processors" in each]
    return {phase: spread([each[phase] for each in known]) for phase in known[0]} if known else None


def _catch_up(found: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """The largest batch after the return of the input, and what a row of it has cost; None if no run tells."""
    known = [each["costs"] for each in found if "costs" in each]
    if not known:
        return None
    costs = max(known, key=lambda each: float(each["catch_up_rows"]))
    return {"rows": costs["catch_up_rows"], "seconds": costs["catch_up_s"], "row_us": costs["row_us"]}


def measure_process_us(memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say) -> float:
    """Microseconds for a row more while a flow catches up, by one run. Raises `BenchError`."""
    with OutageRuns(memory, work) as runs:
        runs.warm_up(say)
        done = runs.run(replace(_FIRST, rows_per_s=6_000), say)
    write({"kind": "run", "task": "availability", "part": Part.TABLE_2.value, **done})
    return float(done["costs"]["row_us"])


class OutageRuns:
    """Runs outages one after the other, on one Spark session. As a context manager it leaves no process behind."""

    def __init__(self, memory: str, work: Path) -> None:
        """Starts the session. `memory`: of its JVM."""
        jar = str(shutil.copy(jar_path(), work))
        self._home, session = work / "run", work / "session"
        session.mkdir()
        self._job = start_job(_JOB, WaySpec("", str(session), jar, memory, None, 0).to_json(), work / "job.log")

    def __enter__(self) -> OutageRuns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job.kill()

    def run(self, outage: Outage, say: Say) -> dict[str, Any]:
        """The result of one outage. Raises `BenchError` if a stable row is wrong, is missing or came twice."""
        self._home.mkdir()
        try:
            self._job.tell(OutageSpec(str(self._home), outage).to_json())
            done = await_result(self._job, _SILENCE_S + outage.cut_s, say)
        finally:
            shutil.rmtree(self._home, ignore_errors=True)  # a job that is silent may still write there
        if done["wrong"]:
            raise BenchError(f"{done['wrong']} of {done['stable']} stable windows are wrong")
        return done

    def warm_up(self, say: Say) -> None:
        """One run whose result does not count: the JVM has then compiled what the others share."""
        self.run(_FIRST, after("first run, which does not count: ", say))
