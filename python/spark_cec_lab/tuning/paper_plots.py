"""The paper's figures 4, 5 and 10-16, drawn from the model: what they show, not how they looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spark_cec.tuning.advice import System
from spark_cec.tuning.inputs import FloatArray
from spark_cec.tuning.optimum import (
    daly_interval,
    optimal_interval,
    optimal_utilization,
    young_interval,
    zhuang_interval,
)
from spark_cec.tuning.plots import finish, new_figure, sweep
from spark_cec_lab.tuning import paper
from spark_cec_lab.tuning.paper import DEEP, GAIN_CHECKPOINT_S, HOUR_S, MINUTE_S, RIVALS, SINGLE
from spark_cec_lab.tuning.simulate import simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATES_PER_MIN = (0.1, 0.05, 0.025, 0.005)
DEPTHS = (1, 5, 25, 50)
_SIMULATED_POINTS = 9
_SEED = 20191127


def draw_paper_figures(directory: Path) -> list[Path]:
    """Write one PNG per figure into `directory`, made if it is missing; returns the files written, by figure."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (title, draw) in FIGURES.items():
        figure = new_figure()
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, fontsize="medium")
        target = directory / f"tuning-fig{number:02d}.png"
        finish(figure, target)
        written.append(target)
    return written


def _curve(axes: Axes, system: System, label: str, simulated: bool = False) -> None:
    intervals, utilizations = sweep(system, 1.05 * system.checkpoint_s, 200 * MINUTE_S)
    (line,) = axes.plot(intervals / MINUTE_S, utilizations, label=label)
    if simulated:
        moments = np.geomspace(1.2 * system.checkpoint_s, 180 * MINUTE_S, _SIMULATED_POINTS)
        means = [_simulated_mean(system, float(interval_s)) for interval_s in moments]
        axes.plot(moments / MINUTE_S, means, ".", color=line.get_color())
    else:
        best = system.optimal_interval()
        axes.plot(best / MINUTE_S, float(system.utilization(best)), "*", color=line.get_color())
    axes.set(xlabel="interval T (min)", ylabel="utilization", xscale="log", ylim=(0.0, 1.0))


def _simulated_mean(system: System, interval_s: float) -> float:
    return simulate(
        interval_s,
        checkpoint_s=system.checkpoint_s,
        failures_per_s=system.failures_per_s,
        restart_s=system.restart_s,
        operators=system.operators,
        delay_s=system.delay_s,
        seed=_SEED,
    ).mean


def _by_rate(axes: Axes, simulated: bool) -> None:
    for rate in RATES_PER_MIN:
        _curve(axes, replace(SINGLE, failures_per_s=rate / MINUTE_S), f"λ = {rate}/min", simulated)


def _by_depth(axes: Axes, simulated: bool) -> None:
    for depth in DEPTHS:
        _curve(axes, replace(DEEP, operators=depth), f"n = {depth}", simulated)


def _optimum_by_rate(axes: Axes) -> None:
    rates = np.geomspace(1e-4, 1.0, 200)
    for cost_min in (0.5, 1.0, 5.0, 10.0):
        best = optimal_interval(checkpoint_s=cost_min * MINUTE_S, failures_per_s=rates / MINUTE_S)
        axes.loglog(rates, np.asarray(best) / MINUTE_S, label=f"c = {cost_min:g} min")
    axes.set(xlabel="failures per minute", ylabel="T* (min)")


def _utilization_by_depth(axes: Axes) -> None:
    depths = np.arange(1, 101)
    for rate in RATES_PER_MIN:
        best = optimal_utilization(
            checkpoint_s=SINGLE.checkpoint_s,
            failures_per_s=rate / MINUTE_S,
            restart_s=SINGLE.restart_s,
            operators=depths,
            delay_s=DEEP.delay_s,
        )
        axes.plot(depths, np.asarray(best), label=f"λ = {rate}/min")
    axes.set(xlabel="operators n on the critical path", ylabel="U(T*)", ylim=(0.0, 1.0))


def _gains(axes: Axes) -> None:
    rates = np.geomspace(0.03, 2.0, 200)
    axes.loglog(rates, _gain_over_default(rates / HOUR_S), label="model, c = 5 s")
    axes.plot([float(rate) for rate, _ in paper.GAINS], [float(gain) for _, gain in paper.GAINS], "x", label="printed")
    axes.set(xlabel="failures per hour", ylabel="gain over T = 30 min (%)")


def _gains_by_nodes(axes: Axes) -> None:
    counts = np.arange(50, 2501, 50)
    axes.plot(counts, _gain_over_default(counts * paper.NODE_FAILURES_PER_S), label="model, λ = 0.0022/h a node")
    axes.plot([count for count, _ in paper.NODE_GAINS], [float(g) for _, g in paper.NODE_GAINS], "x", label="printed")
    axes.set(xlabel="nodes", ylabel="gain over T = 30 min (%)")


def _gain_over_default(failures_per_s: npt.ArrayLike) -> FloatArray:
    rates = np.asarray(failures_per_s, dtype=np.float64)
    return np.array([paper.gain_percent(System(float(rate), GAIN_CHECKPOINT_S)) for rate in rates])


def _rivals(axes: Axes) -> None:
    rates = np.geomspace(0.5, 20.0, 100)
    cost, restart = RIVALS.checkpoint_s, RIVALS.restart_s
    best = np.asarray(optimal_utilization(checkpoint_s=cost, failures_per_s=rates / HOUR_S, restart_s=restart))
    theirs = {
        "Young": young_interval(checkpoint_s=cost, failures_per_s=rates / HOUR_S),
        "Daly": daly_interval(checkpoint_s=cost, failures_per_s=rates / HOUR_S, restart_s=restart),
        "Zhuang": zhuang_interval(checkpoint_s=cost, failures_per_s=rates / HOUR_S, restart_s=restart),
    }
    for name, intervals in theirs.items():
        systems = (replace(RIVALS, failures_per_s=float(rate) / HOUR_S) for rate in rates)
        pairs = zip(systems, np.asarray(intervals), strict=True)
        reached = np.array([float(system.utilization(float(interval_s))) for system, interval_s in pairs])
        axes.plot(rates, 100.0 * (best / reached - 1.0), label=f"over {name}")
    axes.plot([11, 11], [2.3, 3.7], "x", label="printed")
    axes.set(xlabel="failures per hour", ylabel="gain of T* (%), c = 2 min, R = 5 min")


FIGURES: dict[int, tuple[str, Callable[[Axes], None]]] = {
    4: ("One process, formula (4); * marks T*", lambda axes: _by_rate(axes, simulated=False)),
    5: ("One process: formula (4) and simulation (dots)", lambda axes: _by_rate(axes, simulated=True)),
    10: ("A DAG, formula (10), λ = 0.005/min; * marks T*", lambda axes: _by_depth(axes, simulated=False)),
    11: ("Depth costs utilization, but does not move T*", _utilization_by_depth),
    12: ("A DAG: formula (10) and simulation (dots)", lambda axes: _by_depth(axes, simulated=True)),
    13: ("T* falls with the failure rate", _optimum_by_rate),
    14: ("Gain of T* over 30 minutes", _gains),
    15: ("Gain of T* over 30 minutes, by system size", _gains_by_nodes),
    16: ("Gain of T* over earlier answers", _rivals),
}
"""Figure number: title, and what draws it."""
