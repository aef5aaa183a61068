"""The paper's figures, drawn from what was measured here, with what the paper says beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cec_lab.bench.paper import FIGURES, Figure, Panel
from spark_cec_lab.bench.paper_run import Found, Values, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 100


def draw(found: Found, directory: Path) -> list[Path]:
    """One PNG for each figure that was measured; `directory` is made if it is not there. Answers the files.

    Raises `ModuleNotFoundError` without matplotlib, `OSError` where a file cannot be written.
    """
    from matplotlib.figure import Figure as Picture

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in FIGURES:
        if figure.number not in found:
            continue
        columns = min(len(figure.panels), 2)
        rows = -(-len(figure.panels) // columns)
        picture = Picture(figsize=(5.0 * columns, 3.4 * rows), layout="constrained")
        for i, panel in enumerate(figure.panels):
            _panel(picture.add_subplot(rows, columns, i + 1), figure, panel, found[figure.number])
        picture.suptitle(f"Figure {figure.number}: {figure.title}", fontsize="medium")
        target = directory / f"paper-fig{figure.number}.png"
        picture.savefig(target, dpi=_DPI)
        written.append(target)
    return written


def _panel(axes: Axes, figure: Figure, panel: Panel, found: Mapping[str, Sequence[Values]]) -> None:
    places = {point.name: i for i, point in enumerate(figure.points)}
    labels = [f"{point.x:g}" if point.x is not None else point.name.replace(", ", "\n") for point in figure.points]
    ours = {name: each for name in places if (each := spread(found.get(name, []), panel.measure))}
    middles = [each[0] for each in ours.values()]
    errors = [[middle - each[1] for middle, each in zip(middles, ours.values(), strict=True)],
              [each[2] - middle for middle, each in zip(middles, ours.values(), strict=True)]]  # fmt: skip
    axes.bar([places[name] for name in ours], middles, yerr=errors, width=0.6, capsize=3, label="here")
    for i, (name, (low, high)) in enumerate(panel.theirs.items()):
        label = "in the paper's text" if i == 0 else None
        axes.plot([places[name]] * 2, [low, high], "D-", color="black", markersize=5, label=label)
    axes.set_xticks(range(len(labels)), labels, fontsize="xx-small" if not figure.axis else "small")
    axes.set_xlabel(figure.axis, fontsize="small")
    axes.set_title(panel.label, fontsize="small")
    if panel.theirs:
        axes.legend(fontsize="x-small")
