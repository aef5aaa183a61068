"""`cec tune paper`: the numbers of Jayasekara, Harwood and Karunasekera (2019) beside the model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_cec.tuning.command import tune_explained
from spark_cec_lab.tuning.paper import Comparison, comparisons


def register(app: typer.Typer) -> None:
    """Gives `cec tune` this command."""
    app.command()(paper)


def paper(
    figures: Annotated[Path | None, typer.Option(help="Also draw figures 4, 5, 10-16 into this directory.")] = None,
) -> None:
    """Print the numbers of Jayasekara, Harwood and Karunasekera (2019) beside the model's."""
    Console(soft_wrap=True).print(paper_table(comparisons()))
    if figures is not None:
        from spark_cec_lab.tuning.paper_plots import draw_paper_figures

        with tune_explained():
            for written in draw_paper_figures(figures):
                typer.echo(f"wrote {written}")


def paper_table(comparisons: Iterable[Comparison]) -> RenderableType:
    """Theirs beside ours, with numbered notes and a line that counts the verdicts."""
    table = Table("where", "what", "paper", "ours", "verdict", "note", box=None, pad_edge=False)
    numbers = count(1)
    notes: dict[str, int] = {}
    tally: Counter[str] = Counter()
    for row in comparisons:
        if row.note and row.note not in notes:
            notes[row.note] = next(numbers)
        verdict = _verdict(row)
        tally[verdict] += 1
        mark = str(notes[row.note]) if row.note else ""
        table.add_row(row.place, row.quantity, row.printed or "-", row.ours_rounded, verdict, mark)
    lines = [Text(f"{number}  {note}") for note, number in notes.items()]
    summary = Text("  ".join(f"{verdict}: {times}" for verdict, times in sorted(tally.items())))
    return Group(table, Text(), *lines, Text(), Text(_LEGEND), Text(), summary)


_LEGEND = (
    "same, DIFFERS: to the printed digits, with inputs that are stated or carried over from another number; "
    "solved: the inputs were solved from this very number, so that agreement is by construction and tests nothing; "
    "not at hand: no printed number to compare with."
)


def _verdict(row: Comparison) -> str:
    if row.agrees is False:
        return "DIFFERS"
    return "same" if row.tests_the_model else row.basis.value
