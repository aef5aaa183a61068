"""The pictures of the two experiments, from the JSON lines that they print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec.tuning.plots import finish, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = Sequence[Mapping[str, Any]]


def draw(lines: Lines, target: Path) -> None:
    """Write the picture of one experiment's lines to the file `target`. `ValueError` if they are of neither."""
    figure = new_figure()
    axes = figure.add_subplot()
    if any("measured_ms" in line for line in lines):
        _recoveries(axes, lines)
    elif any("utilization" in line for line in lines):
        _utilization(axes, lines)
    else:
        raise ValueError("no line of `target` or `utilization`: give a file with what one of them has printed")
    finish(figure, target)


def _recoveries(axes: Axes, lines: Lines) -> None:
    """What each recovery took over what was foretold."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if "measured_ms" in line:
            points[line["query"]].append((line["predicted_ms"] / 1000, line["measured_ms"] / 1000))
    for query, found in points.items():
        axes.plot(*zip(*found, strict=True), ".", label=query)
    longest = max(value for found in points.values() for point in found for value in point) * 1.1
    axes.plot([0, longest], [0, longest], color="grey", linewidth=0.8, label="foretold = measured")
    for line in lines:
        if "target_ms" in line:
            axes.axhline(line["target_ms"] / 1000, color="black", linestyle="--", linewidth=0.8, label="target")
    axes.set(xlabel="foretold (s)", ylabel="measured (s)", xlim=(0, None), ylim=(0, None))
    axes.set_title("Recoveries of the purchase queries", fontsize="medium")
    axes.legend()


def _utilization(axes: Axes, lines: Lines) -> None:
    """The median of each variant, with the whole range."""
    found = [line for line in lines if "utilization" in line]
    names = [line["variant"] for line in found]
    medians = [line["utilization"] for line in found]
    below = [line["utilization"] - line["lowest"] for line in found]
    above = [line["highest"] - line["utilization"] for line in found]
    axes.bar(names, medians, yerr=[below, above], capsize=4)
    axes.set(ylabel="utilization", ylim=(0, None))
    axes.set_title("Work done under kills, as a share of an undisturbed run", fontsize="medium")
