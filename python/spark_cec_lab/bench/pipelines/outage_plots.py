"""Figures 9 to 11 and table 3 of Balazinska et al., drawn from what was measured here, with what their text says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.pipelines.outage import Part

_AXES: Mapping[str, str] = {
    Part.FIGURE_9.value: "alpha X, seconds of the paper",
    Part.FIGURE_10.value: "the input is away, seconds of the paper",
    Part.FIGURE_11.value: "flows in the chain",
    Part.FIGURE_12.value: "rows of the state, or rows a second",
    Part.TABLE_3.value: "length of a bucket, seconds",
}


def draw_outages(summaries: Sequence[dict[str, Any]], directory: Path) -> list[Path]:
    """One PNG for each part that was measured. Answers their paths.

    Raises `ModuleNotFoundError` without matplotlib, `OSError` if a file cannot be written.
    """
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for part in dict.fromkeys(each["part"] for each in summaries):
        own = [each for each in summaries if each["part"] == part]
        picture = Figure(figsize=(10.0, 3.8), layout="constrained")
        panels = {"usual_s": "usual delay, seconds"} if part == Part.TABLE_3.value else {
            "delay_new": "Delay_new, seconds of the paper", "tentative": "tentative rows",
        }  # fmt: skip
        if part == Part.FIGURE_12.value:
            panels = {"corrected": "corrected after, seconds of the paper"}
        for i, (measure, label) in enumerate(panels.items()):
            axes = picture.add_subplot(1, len(panels), i + 1)
            for series in dict.fromkeys(each["series"] for each in own):
                points = [(each["x"], each[measure]) for each in own if each["series"] == series]
                middles = [found["median"] for _, found in points]
                errors = [[found["median"] - found["low"] for _, found in points],
                          [found["high"] - found["median"] for _, found in points]]  # fmt: skip
                axes.errorbar([x for x, _ in points], middles, errors, marker="o", capsize=3, label=series)
            axes.set_xlabel(_AXES[part], fontsize="small")
            axes.set_title(label, fontsize="small")
            axes.set_ylim(bottom=0)
            if part == Part.FIGURE_12.value:
                axes.set_xscale("log")
            axes.legend(fontsize="x-small")
        picture.suptitle(f"{part}: in the paper, {own[0]['theirs']}", fontsize="x-small", wrap=True)
        target = directory / f"availability-{part}.png"
        picture.savefig(target, dpi=100)
        written.append(target)
    return written
