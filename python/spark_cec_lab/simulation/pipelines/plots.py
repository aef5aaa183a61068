"""Queries that are available over time, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from spark_cec_lab.simulation.pipelines.comparison import Round

_POINTS = 400


def save_available(rounds: Sequence[Round], target: Path) -> None:
    """The share of the failed queries that is available: medians over the rounds, shaded from lowest to highest.

    Raises `OSError` where the PNG file cannot be written.
    """
    ends = [outcome.until(1.0) for each in rounds for outcome in each.outcomes.values()]
    times = np.linspace(0.0, 1.05 * max((end for end in ends if np.isfinite(end)), default=1.0), _POINTS)
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for strategy in rounds[0].outcomes:
        shares = np.array([[each.outcomes[strategy].share(at) for at in times] for each in rounds])
        (line,) = axes.step(times / 60.0, np.median(shares, axis=0), where="post", label=strategy.value)
        axes.fill_between(
            times / 60.0, shares.min(axis=0), shares.max(axis=0), step="post", alpha=0.15, color=line.get_color()
        )
    axes.set_xlabel("minutes after the failure")
    axes.set_ylabel("failed queries that are available again")
    axes.set_ylim(0.0, 1.02)
    axes.legend(loc="lower right")
    figure.savefig(target, dpi=100)
