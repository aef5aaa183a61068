"""What the simulator has found, in tables, with the paper's words, and beside runs on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.measure import Say
from spark_cec_lab.bench.pipelines.outage import DELAY, PROCESS, THEIRS, Part
from spark_cec_lab.bench.pipelines.outage_simulated import (
    CLOSE,
    FAILURES,
    SIMULATED,
    SPARK,
    Bound,
    World,
    Write,
    bound_world,
    compare,
    costs_of,
    find_bound,
    line_of,
    paper_world,
    points_of,
    read_runs,
    spark_world,
)
from spark_cec_lab.bench.pipelines.reconcile import (
    find_constants,
    table_of_constants,
    table_of_points,
    with_formulas,
)
from spark_cec_lab.bench.protocols.tables import markdown

SEED = 1

_AXES = {
    Part.FIGURE_9.value: "alpha X, s",
    Part.FIGURE_10.value: "D, s",
    Part.FIGURE_11.value: "flows",
}
_HEADS = {
    Part.FIGURE_9.value: "figure 9, D=5 s",
    Part.FIGURE_10.value: "figure 10, 4,500 rows a second",
    Part.FIGURE_11.value: "figure 11, D=15 s",
}


def simulate_parts(
    part: Part | None, scale: float | None, against: Path | None, seed: int, write: Write, say: Say
) -> tuple[list[dict[str, Any]], list[str]]:
    """Simulates a part, or all, at s=1 and as on Spark; writes a line for each point. Answers them, and the tables.

    `against`: a file of runs on Spark, with whose costs it simulates, and with which it compares. `seed`: the first one
    of the random failures. Raises `BenchError` if a stable row is wrong, or if the file has no runs.
    """
    parts = SIMULATED if part is None else (part,)
    runs = [] if against is None else read_runs(against)
    costs = costs_of(runs) if runs else SPARK
    found, tables = list[dict[str, Any]](), list[str]()
    for world in (paper_world(), spark_world(costs, scale)):
        write({"kind": "world", "world": world.name, "scale": world.scale, "alpha": world.alpha, **asdict(world.costs)})
        drawn = [each for each in parts if each is not Part.FIGURE_12 or not world.is_paper]
        lines = [line_of(world, point, world.run(point.outage)) for point in points_of(drawn, world)]
        for each in lines:
            write(each)
        found += lines
        tables += _figures(world, lines)
        say(f"simulated: {world.name}, where a second of the paper is {world.scale:g} s")
        if Part.BOUND in parts:
            wide = bound_world(world, scale)
            bounds = [find_bound(wide, pace, seed) for pace in (PROCESS, DELAY)]
            for bound in bounds:
                write({"kind": "bound", "world": world.name, "scale": wide.scale, "first_seed": seed, **asdict(bound)})
            tables.append(_bounds(wide, bounds, seed))
    if Part.FIGURE_12 in parts or Part.TABLE_2 in parts:
        source = "the default costs of the simulator" if against is None else f"the runs of {against.name}"
        constants = find_constants(costs.row_us)
        write({"kind": "constants", "task": "availability", "part": Part.TABLE_2.value, **asdict(constants)})
        reconciled = with_formulas(found, constants, "simulated")
        for each in reconciled:
            write(each)
        tables += [table_of_constants(constants, source), table_of_points(reconciled)]
    if runs:
        compared = compare(runs, costs)
        for each in compared:
            write(each)
        tables.append(_comparison(compared))
    return found, [each for each in tables if each]


def _figures(world: World, lines: Sequence[dict[str, Any]]) -> Iterable[str]:
    for part in dict.fromkeys(each["part"] for each in lines if each["part"] in _HEADS):
        own = [each for each in lines if each["part"] == part]
        series, cells = list(dict.fromkeys(each["series"] for each in own)), dict[float, dict[str, str]]()
        for each in own:
            cells.setdefault(each["x"], {})[each["series"]] = " / ".join(
                (_seconds(each, "delay_new"), f"{each['tentative']['median']:,.0f}", _seconds(each, "corrected"))
            )
        usual = max(each["usual_s"]["median"] for each in own) / world.scale
        title = (
            f"{_HEADS[part]}, alpha {world.alpha:g}, {world.name}, a second of the paper is {world.scale:g} s: "
            f"Delay_new / tentative rows / corrected after, in the paper's seconds; the usual time is up to "
            f"{usual:.2f}.\n"
            f"The paper: {own[0]['theirs']}."
        )
        rows = [[f"{x:g}", *(row[each] for each in series)] for x, row in cells.items()]
        yield markdown(title, [_AXES[part], *series], rows)


def _seconds(line: dict[str, Any], name: str) -> str:
    return f"{line[name]['median']:.2f}"


def _bounds(world: World, bounds: Sequence[Bound], seed: int) -> str:
    rows = [
        [one.series, f"{one.runs - len(one.over)} of {one.runs}", f"{one.worst:.2f}", " ".join(map(str, one.over))]
        for one in bounds
    ]
    title = (
        f"Delay_new < k X, {world.name}, a second of the paper is {world.scale:g} s, alpha {world.alpha:g}: "
        f"{FAILURES} runs with random failures, seeds from {seed} on; one to four flows, one to three failures "
        "of any input, each for 0.5 to 30 s of the paper. Time in which all inputs are away does not count.\n"
        f"The paper: {THEIRS[Part.BOUND]}."
    )
    return markdown(title, ["paces", "within k X", "longest, in k X", "seeds over k X"], rows)


def _ratio(line: dict[str, Any], name: str) -> str:
    mark = " (!)" if name in line["far"] else ""
    return f"{line['simulated'][name]:g} / {line['measured'][name]:g} = {line['ratios'][name]}{mark}"


def _comparison(compared: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            f"{each['part']}, {each['series']}, {each['x']:g}",
            *(_ratio(each, name) for name in each["ratios"]),
        ]
        for each in compared
    ]
    far = sum(len(each["far"]) for each in compared)
    title = (
        f"Simulated over measured on Spark, with the costs of those runs: {far} of {3 * len(compared)} numbers are not "
        f"within {100 * CLOSE:.0f} % (!)"
    )
    return markdown(title, ["", "Delay_new", "tentative rows", "corrected after"], rows)
