"""Is the bound met? Of every commit, each a point where a crash may come: q and u against Q and U."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.meta import CommitMeta, decode_meta
from spark_cec.log.scan import FoundFrame, scan
from spark_cec.log.segment import list_segments
from spark_cec.session import jar_path
from spark_cec.settings import PREFIX, ExtentBound
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Say, Schedule, steady
from spark_cec_lab.bench.report import rounded
from spark_cec_lab.bench.workloads import SEED, Shape, Workload

WORKLOAD = Workload(Shape.COUNT, keys=20_000, updates=10_000, partitions=2, window=10)
"""Windows open and close all the time; 5,000 tuples a batch for each store, and a window lives for 20 batches."""

EXTENTS = (1.5, 2.0, 4.0)
REPLAYS = (10_000, 25_000, 100_000)
"""Q in open windows, U in tuples; each with each."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One run: its bounds, and whether checks may take all the time there is, or what CI/CP gives them."""

    q: ExtentBound
    u: int
    seed: int
    any_time: bool

    @property
    def conf(self) -> tuple[tuple[str, str], ...]:
        """Our settings."""
        times = {"CI": "100s", "CP": "100s"} if self.any_time else {}
        named = {"Q": str(self.q), "U": str(self.u), "effort": "0", **times}
        return tuple((PREFIX + name, value) for name, value in named.items())


@dataclass(frozen=True, slots=True)
class Points:
    """How the crash points of a run stand to its bounds: q/Q and u/U of each."""

    over: tuple[tuple[float, float], ...]

    @property
    def met(self) -> float:
        """The share of the points where both bounds are met."""
        return statistics.mean(q <= 1.0 and u <= 1.0 for q, u in self.over)

    @property
    def worst(self) -> tuple[float, float]:
        """The worst q/Q and the worst u/U."""
        return max(q for q, _ in self.over), max(u for _, u in self.over)


def crash_points(commits: Iterable[CommitMeta], grid: Grid, first_version: int) -> Points:
    """The commits from a version on, in order; of one that was written twice the later one.

    What is written as the query is stopped is no commit: it leaves nothing to replay, and Q does not bind it.
    """
    last = {(meta.store, meta.version): meta for meta in commits if meta.version >= first_version and not meta.is_flush}
    return Points(tuple((m.extent / grid.q.limit(m.rows or m.open_windows), m.replay / grid.u) for m in last.values()))


def commits_of(checkpoint: Path) -> list[CommitMeta]:
    """Every commit that the log has, in its order."""
    log = open_storage(str(checkpoint / "cec" / "log"))
    frames = [found for segment in list_segments(log) for found in scan(log, segment.name)]
    metas = [decode_meta(each.header.kind, each.header.meta) for each in frames if isinstance(each, FoundFrame)]
    return [meta for meta in metas if isinstance(meta, CommitMeta)]


def grids(rounds: int) -> list[Grid]:
    """Each Q with each U, with each seed, within CI/CP and without."""
    return [
        Grid(ExtentBound(per_window=q), u, SEED + seed, any_time)
        for seed in range(rounds) for q in EXTENTS for u in REPLAYS for any_time in (False, True)
    ]  # fmt: skip


def run_grid(
    workload: Workload, spec: JobSpec, schedule: Schedule, rounds: int, work: Path,
    write: Callable[[dict[str, Any]], None], say: Say,
) -> None:  # fmt: skip
    """Runs them all, a line for each, and sums up. Raises `BenchError`."""
    jar = str(shutil.copy(jar_path(), work))
    found: list[tuple[Grid, Points]] = []
    todo = grids(rounds)
    for number, grid in enumerate(todo):
        home = work / "run"
        home.mkdir()
        name = f"{number + 1}/{len(todo)}, Q={grid.q}, U={grid.u}, CI/CP {'1' if grid.any_time else 'as by default'}: "
        conf = (*grid.conf, *spec.conf)
        placed = replace(
            spec, workload=replace(workload, seed=grid.seed), jar=jar, conf=conf,
            checkpoint=str(home / "checkpoint"), scratch=str(home / "scratch"),
        )  # fmt: skip
        try:
            steady(placed, schedule, home, lambda text, name=name: say(name + text))  # type: ignore[misc]
            points = crash_points(commits_of(home / "checkpoint"), grid, schedule.first_timed + 1)
        finally:
            shutil.rmtree(home)
        found.append((grid, points))
        write({"kind": "run", "task": "bound", **line_of(grid, points)})
    write({"kind": "summary", "task": "bound", **summed_up(found)})


def line_of(grid: Grid, points: Points) -> dict[str, Any]:
    """A run as JSON."""
    q, u = points.worst
    about = {"Q": str(grid.q), "U": grid.u, "seed": grid.seed, "any_time": grid.any_time}
    return {
        **about,
        "crash_points": len(points.over),
        "met": rounded(points.met),
        "worst_q": rounded(q),
        "worst_u": rounded(u),
    }


def summed_up(found: Sequence[tuple[Grid, Points]]) -> dict[str, Any]:
    """Over all runs within CI/CP, and over those whose bounds are attainable: met where checks have all the time."""
    attainable = {(str(grid.q), grid.u, grid.seed) for grid, points in found if grid.any_time and points.met == 1.0}
    within = [(grid, points) for grid, points in found if not grid.any_time]
    able = [points for grid, points in within if (str(grid.q), grid.u, grid.seed) in attainable]
    return {
        "all": _sum([points for _, points in within]),
        "attainable": _sum(able),
        "any_time": _sum([points for grid, points in found if grid.any_time]),
    }


def _sum(runs: Sequence[Points]) -> dict[str, Any]:
    over = Points(tuple(each for points in runs for each in points.over))
    if not over.over:
        return {"runs": len(runs), "crash_points": 0}
    q, u = over.worst
    numbers = {"met": rounded(over.met), "worst_q": rounded(q), "worst_u": rounded(u)}
    return {"runs": len(runs), "crash_points": len(over.over), **numbers}
