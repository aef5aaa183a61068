"""How a task grows with one of its sizes, as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.growth import Growth

MEASURES = {
    "batch_ms": "batch, ms",
    "us_per_tuple": "time for a tuple, µs",
    "recovery_s": "start() to the end of the first new batch, s",
    "bytes_per_batch": "bytes written for state, a batch",
    "files_per_batch": "files made for state, a batch",
}
"""What is drawn, where it was measured."""


def draw_growth(lines: Sequence[dict[str, Any]], growth: Growth, directory: Path) -> Path:
    """A panel for each measure, a line for each provider: the medians over the rounds, and their spread.

    Both axes are logarithmic. `directory` is made if it is not there. Answers the file. Raises `OSError`.
    """
    from matplotlib.figure import Figure

    runs = [line for line in lines if line["kind"] == "run"]
    measures = [name for name in MEASURES if any(name in run for run in runs)]
    figure = Figure(figsize=(5.0 * len(measures), 4.0), layout="constrained")
    for i, measure in enumerate(measures):
        axes = figure.add_subplot(1, len(measures), i + 1)
        for provider in dict.fromkeys(run["provider"] for run in runs):
            each = {size: values for size in growth.sizes if (values := _values(runs, provider, growth, size, measure))}
            middles = [statistics.median(values) for values in each.values()]
            if not any(middles):
                continue  # the hash map writes nothing, and a logarithm has no 0
            spread = [[m - min(v) for m, v in zip(middles, each.values(), strict=True)],
                      [max(v) - m for m, v in zip(middles, each.values(), strict=True)]]  # fmt: skip
            axes.errorbar(list(each), middles, yerr=spread, marker="o", capsize=3, label=provider)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(growth.sizes, [f"{size:,}" for size in growth.sizes], fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel(growth.what)
        axes.set_title(MEASURES[measure], fontsize="medium")
        axes.legend(fontsize="small")
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{runs[0]['task']}-by-{growth.what}.png"
    figure.savefig(target, dpi=100)
    return target


def _values(
    runs: Sequence[dict[str, Any]], provider: str, growth: Growth, size: int, measure: str
) -> list[float]:
    at = [run for run in runs if run["provider"] == provider and run.get(growth.field) == size]
    return [float(run[measure]) for run in at if measure in run]
