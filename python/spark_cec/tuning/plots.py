"""Utilization against the interval, for one system: in the terminal, and as a PNG file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spark_cec.tuning.advice import Advice, System
from spark_cec.tuning.inputs import FloatArray
from spark_cec.tuning.quantities import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 100


def sweep(system: System, low_s: float, high_s: float, points: int = 200) -> tuple[FloatArray, FloatArray]:
    """Intervals (seconds, evenly spaced on a log scale, all longer than c) and the utilization at each."""
    intervals = np.geomspace(max(low_s, system.checkpoint_s * (1.0 + 1e-6)), high_s, points)
    return intervals, np.asarray(system.utilization(intervals))


def around(advice: Advice) -> tuple[float, float]:
    """The range of intervals (seconds) that shows both T* and the present interval with room on either side."""
    marks = [advice.best_interval_s, advice.present_interval_s or advice.best_interval_s]
    return min(marks) / 10.0, max(marks) * 10.0


def terminal_plot(advice: Advice, width: int = 72, height: int = 16) -> str:
    """Text lines with the curve, T* as `*` and the present interval as `o`; no colours, so any terminal shows it."""
    import plotext

    intervals, utilizations = sweep(advice.system, *around(advice), points=2 * width)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.xscale("log")
    plotext.plot(intervals.tolist(), utilizations.tolist(), marker="braille")
    plotext.scatter([advice.best_interval_s], [advice.best_utilization], marker="*")
    if advice.present_interval_s is not None:
        plotext.scatter([advice.present_interval_s], [advice.present_utilization], marker="o")
    ticks = np.geomspace(intervals[0], intervals[-1], 5).tolist()
    plotext.xticks(ticks, [f"{format_duration(float(f'{tick:.2g}'))}" for tick in ticks])
    plotext.title("utilization against the interval T:  * T*   o present")
    return str(plotext.uncolorize(plotext.build()))


def save_png(advice: Advice, target: Path) -> None:
    """Write the same plot to `target`, a PNG file. Raises `OSError` where it cannot be written."""
    figure = new_figure()
    axes = figure.add_subplot()
    axes.semilogx(*sweep(advice.system, *around(advice)))
    best = f"T* = {format_duration(advice.best_interval_s)}, U = {advice.best_utilization:.4f}"
    axes.plot(advice.best_interval_s, advice.best_utilization, "*", markersize=12, label=best)
    if advice.present_interval_s is not None and advice.present_utilization is not None:
        now = f"present {format_duration(advice.present_interval_s)}, U = {advice.present_utilization:.4f}"
        axes.plot(advice.present_interval_s, advice.present_utilization, "o", label=now)
    axes.set(xlabel="interval T (s)", ylabel="utilization", ylim=(0.0, 1.05))
    finish(figure, target)


def new_figure() -> Figure:
    """An empty figure of the size that the documentation uses; it needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(6.0, 3.6), dpi=_DPI, layout="constrained")


def finish(figure: Figure, target: Path) -> None:
    """Add grids and legends, and write the PNG without a creation date, so that equal plots are equal files."""
    for axes in figure.axes:
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    figure.savefig(target, format="png", metadata={"Software": None})
