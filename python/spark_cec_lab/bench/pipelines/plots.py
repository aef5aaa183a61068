"""Relative latency and available queries over time, as in the paper's Fig. 5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cec_lab.bench.pipelines.failover import AVAILABLE, SINKS, Run


def draw_failover(runs: Sequence[Run], directory: Path) -> Path:
    """Two panels, a line for each run; progressive runs are told apart by their round. Answers the PNG's path."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8.0, 7.0), layout="constrained")
    latency, available = figure.subplots(2, 1, sharex=True)
    ways = list(dict.fromkeys(each.way for each in runs))
    for number, way in enumerate(ways):
        for i, run in enumerate(each for each in runs if each.way is way):
            label = way.value if i == 0 else None
            style = {"color": f"C{number}", "alpha": 1.0 if i == 0 else 0.4, "label": label}
            told = zip(run.curve.at_s, run.curve.relative, strict=True)
            points = [(at, each) for at, each in told if each is not None]
            latency.plot([at for at, _ in points], [each for _, each in points], **style)
            available.step(run.curve.at_s, run.curve.available, where="post", **style)
    latency.axhline(AVAILABLE, color="black", linewidth=0.5)
    latency.set_ylabel("relative latency")
    latency.legend(loc="upper right", fontsize="small")
    available.set_ylabel("available queries")
    available.set_ylim(0, len(SINKS) + 0.5)
    available.set_xlabel("seconds after 8 of 10 workers were lost")
    target = directory / "failover.png"
    figure.savefig(target, dpi=100)
    return target
