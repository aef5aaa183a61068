"""CheckMate's figures as pictures: on Spark by instances, and, hatched, simulated by workers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec_lab.bench.protocols import figures
from spark_cec_lab.bench.protocols.spec import CYCLIC, Outcome
from spark_cec_lab.bench.protocols.tables import SHORT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = Mapping[str, Any]
Measure = Callable[[Outcome], float | None]
Place = tuple[str, bool]
"""Of a group of bars on the axis: its label, and whether it was simulated."""

Bars = dict[Place, dict[str, list[float]]]
"""What was found for each protocol, by round."""

_DPI = 90
_SKEW_LOAD = 0.8
"""Of the simulated workers that are drawn under skew: there it is felt most."""


def draw(outcomes: Sequence[Outcome], lines: Sequence[Line], directory: Path) -> list[Path]:
    """A PNG for each figure of which there are runs; `directory` is made if it is not there. Answers the files.

    Raises `ModuleNotFoundError` without matplotlib, `OSError` where a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plain = [each for each in outcomes if each.spec.hot_percent is None and each.spec.query != CYCLIC]
    full = [each for each in plain if each.spec.rate is None]
    failed = [each for each in plain if each.failed_at_s is not None]
    simulated = [each for each in lines if each["kind"] == "simulated" and each["query"] != CYCLIC]
    even = [each for each in simulated if not each["skew"]]
    made = [
        _over_queries("fig7", "throughput over that without checkpoints",
                      _over_none(full), _by_workers(even, "throughput"), directory),
        _over_queries("fig8", "a checkpoint, or a round of them, ms", _by_instances(full, figures.checkpoint_s),
                      _by_workers(even, "checkpoint_ms"), directory, is_log=True),
        _latencies(failed, directory),
        _over_queries("fig11", "from the failure until all that went back runs again, ms",
                      _by_instances(failed, figures.restart_s), _by_workers(even, "restart_ms"), directory),
        _skew([each for each in outcomes if each.spec.hot_percent is not None],
              [each for each in simulated if each["skew"]], directory),
    ]  # fmt: skip
    return [each for each in made if each is not None]


def _by_instances(outcomes: Iterable[Outcome], measure: Measure) -> dict[str, Bars]:
    found: dict[str, Bars] = {}
    for each in outcomes:
        if (value := measure(each)) is not None:
            bars = found.setdefault(each.spec.query, {}).setdefault((f"{each.spec.instances}", False), {})
            bars.setdefault(each.spec.protocol, []).append(1000 * value)
    return found


def _over_none(full: Sequence[Outcome]) -> dict[str, Bars]:
    found: dict[str, Bars] = {}
    for (query, instances, protocol), values in figures.over_none(full).items():
        found.setdefault(query, {}).setdefault((f"{instances}", False), {})[protocol] = values
    return found


def _by_workers(lines: Iterable[Line], name: str) -> dict[str, Bars]:
    found: dict[str, Bars] = {}
    for each in lines:
        if each[name] is not None:
            bars = found.setdefault(each["query"], {}).setdefault((f"{each['workers']}", True), {})
            bars[each["protocol"]] = [each[name]]
    return found


def _over_queries(
    name: str, title: str, measured: dict[str, Bars], simulated: dict[str, Bars], directory: Path, *,
    is_log: bool = False,
) -> Path | None:  # fmt: skip
    from matplotlib.figure import Figure

    queries = list(dict.fromkeys([*measured, *simulated]))
    if not queries:
        return None
    columns = min(len(queries), 2)
    rows = -(-len(queries) // columns)
    figure = Figure(figsize=(6.0 * columns, 3.2 * rows), layout="constrained")
    for number, query in enumerate(queries, 1):
        axes = figure.add_subplot(rows, columns, number)
        _bars(axes, {**measured.get(query, {}), **simulated.get(query, {})}, is_log=is_log)
        axes.set_title(query, fontsize="medium")
        axes.set_xlabel("instances on Spark; hatched: simulated workers", fontsize="small")
        if number == 1:
            axes.legend(fontsize="x-small", ncols=5)
    figure.suptitle(title, fontsize="medium")
    target = directory / f"protocols-{name}.png"
    figure.savefig(target, dpi=_DPI)
    return target


def _bars(axes: Axes, bars: Bars, *, is_log: bool) -> None:
    """A group for each place, in it a bar for each protocol: the median, with the lowest and the highest round."""
    shown = [each for each in SHORT if any(values.get(each) for values in bars.values())]
    width = 0.8 / max(len(shown), 1)
    for number, protocol in enumerate(shown):
        at = [(place, is_sim, values[protocol]) for place, ((_, is_sim), values) in enumerate(bars.items())
              if values.get(protocol)]  # fmt: skip
        middles = [statistics.median(values) for _, _, values in at]
        spread = [[m - min(values) for m, (_, _, values) in zip(middles, at, strict=True)],
                  [max(values) - m for m, (_, _, values) in zip(middles, at, strict=True)]]  # fmt: skip
        drawn = axes.bar(
            [place + (number - (len(shown) - 1) / 2) * width for place, _, _ in at], middles, width, yerr=spread,
            color=f"C{list(SHORT).index(protocol)}", label=SHORT[protocol], error_kw={"linewidth": 0.8},
        )  # fmt: skip
        for patch, (_, is_sim, _) in zip(drawn.patches, at, strict=True):
            patch.set_hatch("////" if is_sim else "")
            patch.set_edgecolor("white")
    axes.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize="small")
    if is_log:
        axes.set_yscale("log")


def _latencies(failed: Sequence[Outcome], directory: Path) -> Path | None:
    """The median and the 99th percentile of each second, around the failure: a column for each query."""
    from matplotlib.figure import Figure

    last = {(each.spec.query, each.spec.instances, each.spec.protocol): each for each in failed}
    columns = list(dict.fromkeys((query, instances) for query, instances, _ in last))
    if not columns:
        return None
    figure = Figure(figsize=(4.2 * len(columns), 6.0), layout="constrained")
    grid = figure.subplots(2, len(columns), sharex=True, squeeze=False)
    for column, (query, instances) in enumerate(columns):
        for row, share in enumerate((0.5, 0.99)):
            axes = grid[row][column]
            for protocol, short in SHORT.items():
                if (run := last.get((query, instances, protocol))) is not None:
                    axes.plot(*_by_second(run, share), color=f"C{list(SHORT).index(protocol)}", label=short)
            axes.axvline(0.0, color="black", linewidth=0.5)
            axes.set_yscale("log")
            if column == 0:
                axes.set_ylabel(f"latency, s, p{100 * share:.0f} of a second")
        grid[0][column].set_title(f"{query}, {instances} instances", fontsize="medium")
        grid[1][column].set_xlabel("seconds after the failure")
    grid[0][0].legend(fontsize="x-small")
    target = directory / "protocols-fig9-10.png"
    figure.savefig(target, dpi=_DPI)
    return target


def _by_second(run: Outcome, share: float) -> tuple[list[float], list[float]]:
    """Seconds after the failure, and the latency of what came out within each; seconds without any are left out."""
    assert run.failed_at_s is not None
    at, found = [], []
    second = run.failed_at_s - int(run.failed_at_s - run.began_s)
    while second + 1 <= run.ended_s:
        latency = figures.latency_s(run, share, second, second + 1)
        if latency is not None:
            at.append(second + 1 - run.failed_at_s)
            found.append(latency)
        second += 1
    return at, found


def _skew(outcomes: Sequence[Outcome], lines: Sequence[Line], directory: Path) -> Path | None:
    """Three rows: median latency, a checkpoint, a restart; a column for each query."""
    from matplotlib.figure import Figure

    queries = list(dict.fromkeys([*(each.spec.query for each in outcomes), *(each["query"] for each in lines)]))
    if not queries:
        return None
    measures: tuple[tuple[str, str, Measure], ...] = (
        ("latency, p50, ms", "p50_ms", lambda run: figures.latency_s(run, 0.5, *figures.before_failure(run))),
        ("a checkpoint, ms", "checkpoint_ms", figures.checkpoint_s),
        ("restart, ms", "restart_ms", figures.restart_s),
    )
    figure = Figure(figsize=(4.6 * len(queries), 8.0), layout="constrained")
    grid = figure.subplots(len(measures), len(queries), squeeze=False)
    for row, (label, name, measure) in enumerate(measures):
        for column, query in enumerate(queries):
            bars: Bars = {}
            for run in outcomes:
                if run.spec.query == query and (value := measure(run)) is not None:
                    place = bars.setdefault((f"{run.spec.hot_percent} %", False), {})
                    place.setdefault(run.spec.protocol, []).append(1000 * value)
            for line in lines:
                if line["query"] == query and line["load"] == _SKEW_LOAD and line[name] is not None:
                    place = bars.setdefault((f"{100 * line['skew']:.0f} %", True), {})
                    place[line["protocol"]] = [line[name]]
            _bars(grid[row][column], bars, is_log=row < 2)
            grid[0][column].set_title(query, fontsize="medium")
        grid[row][0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("hot items; hatched: simulated, 10 workers, 80 % load", fontsize="small")
    grid[0][0].legend(fontsize="x-small", ncols=5)
    target = directory / "protocols-fig12-13.png"
    figure.savefig(target, dpi=_DPI)
    return target
