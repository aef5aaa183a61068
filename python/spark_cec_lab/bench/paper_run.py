"""Runs the paper's experiments and sums them up: `cec bench paper`."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cec.session import JARS_KEY, jar_path
from spark_cec.settings import PREFIX
from spark_cec_lab.bench.hashmap import build_hashmap
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule, after, recovery, steady
from spark_cec_lab.bench.paper import FIGURES, Figure, Kind, Panel, Point, derived
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.report import rounded
from spark_cec_lab.bench.workloads import Size

MEMORY = Path("/dev/shm")
"""Where a log is that is on no disk."""

Values = Mapping[str, float]
Found = Mapping[int, Mapping[str, Sequence[Values]]]
"""What was measured, by figure and point, round by round."""

Measure = Callable[[JobSpec, Schedule, Path, Say], Measured]
MEASURES: dict[Kind, Measure] = {Kind.STEADY: steady, Kind.CRASH: recovery}


def run_figures(
    numbers: Sequence[int], size: Size, spec: JobSpec, warm_up: int, batches: int, rounds: int, work: Path,
    write: Callable[[dict[str, Any]], None], say: Say,
) -> Found:  # fmt: skip
    """Runs every point of the figures once in each round: a line for each run, then one for each figure.

    Answers the values by figure and point. Raises `BenchError`.
    """
    ours, hashmap = str(shutil.copy(jar_path(), work)), str(build_hashmap(work))
    chosen = [figure for figure in FIGURES if figure.number in numbers]
    found: dict[int, dict[str, list[Values]]] = {figure.number: {} for figure in chosen}
    for number in range(rounds):
        for figure in chosen:
            shift = number % len(figure.points)
            for point in figure.points[shift:] + figure.points[:shift]:
                workload = size.of(point.workload)
                jars = ",".join([hashmap, ours] if point.provider is Provider.HASHMAP else [ours])
                conf = ((JARS_KEY, jars), *point.conf, *spec.conf)
                told = replace(spec, provider=point.provider, workload=workload, jar=ours, conf=conf)
                name = f"round {number + 1}/{rounds}, figure {figure.number}, {point.name}: "
                schedule = Schedule(workload.fill_batches, warm_up, batches)
                measured = _run_one(figure, point, told, schedule, work / "run", after(name, say))
                values = derived(measured.values, workload)
                found[figure.number].setdefault(point.name, []).append(values)
                about = {"kind": "run", "task": "paper", "figure": figure.number, "point": point.name}
                sizes = {"keys": workload.keys, "updates": workload.updates, "partitions": workload.partitions}
                write({**about, **sizes, "round": number + 1, **rounded(values)})
    for figure in chosen:
        write(summed_up(figure, found[figure.number]))
    return found


def summed_up(figure: Figure, found: Mapping[str, Sequence[Values]]) -> dict[str, Any]:
    """A figure's line: each panel with ours (median, lowest, highest) and the paper's, by point."""
    return {
        "kind": "figure",
        "task": "paper",
        "figure": figure.number,
        "title": figure.title,
        "panels": {panel.label: {name: _beside(panel, name, found[name]) for name in found} for panel in figure.panels},
    }


def spread(values: Sequence[Values], measure: str) -> tuple[float, float, float] | None:
    """Median, lowest and highest over the rounds; None if it was not measured."""
    each = [value[measure] for value in values if measure in value]
    return (statistics.median(each), min(each), max(each)) if each else None


def _beside(panel: Panel, name: str, values: Sequence[Values]) -> dict[str, Any]:
    ours, theirs = spread(values, panel.measure), panel.theirs.get(name)
    return {"ours": rounded(list(ours)) if ours else None, "paper": rounded(list(theirs)) if theirs else None}


def _run_one(figure: Figure, point: Point, spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    home.mkdir()
    try:
        with _log_in_memory(point, spec) as placed:
            own = replace(placed, checkpoint=str(home / "checkpoint"), scratch=str(home / "scratch"))
            return MEASURES[figure.kind](own, schedule, home, say)
    finally:
        shutil.rmtree(home)


@contextmanager
def _log_in_memory(point: Point, spec: JobSpec) -> Iterator[JobSpec]:
    """The spec, with a log in the machine's memory where the point asks for it."""
    if not point.in_memory:
        yield spec
        return
    with tempfile.TemporaryDirectory(prefix="cec-bench-", dir=MEMORY if MEMORY.is_dir() else None) as logs:
        yield replace(spec, conf=(*spec.conf, (PREFIX + "log.path", logs)))
