"""Figure 12 and table 2 of Balazinska et al.: our time to catch up, beside formulas for two ways to go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_cec_lab.bench.pipelines.outage import THEIRS, Part
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.protocols.tables import markdown
from spark_cec_lab.simulation.availability.table2 import (
    INTERVAL_S,
    Constants,
    Load,
    checkpoint_redo_s,
    measure_rows,
    undo_redo_s,
)

Line = dict[str, Any]


def find_constants(process_us: float) -> Constants:
    """`process_us`: of a run on Spark. The others are measured now, in this process."""
    copy_us, compare_us = measure_rows()
    return Constants(round(copy_us, 4), round(compare_us, 4), process_us)


def find_process_us(summaries: Sequence[Line]) -> float:
    """What a row has cost while the flow caught up, of the run with most rows. Raises `BenchError` if no run tells."""
    known = [each["catch_up"] for each in summaries if each.get("catch_up")]
    if not known:
        raise BenchError("no run tells what a row costs while a flow catches up")
    return float(max(known, key=lambda each: each["rows"])["row_us"])


def with_formulas(summaries: Sequence[Line], constants: Constants, source: str) -> list[Line]:
    """A line for each point of figure 12, in seconds of this machine. `source`: where `corrected_s` comes from."""
    found = list[Line]()
    for each in summaries:
        if each["part"] != Part.FIGURE_12.value:
            continue
        # Each flow of a chain processes the rows once more, as the paper counts them.
        load = Load(each["state"], each["cut_s"], each["rows_per_s"] * each["chain"], each["usual_s"]["median"])
        found.append({
            **{name: each[name] for name in ("task", "part", "series", "x")}, "kind": "reconciled",
            "corrected_s": round(each["corrected"]["median"] * each["scale"], 2), "corrected_from": source,
            "checkpoint_redo_s": round(checkpoint_redo_s(load, constants), 3),
            "undo_redo_s": round(undo_redo_s(load, constants), 3), "redo_from": "formulas of table 2",
        })  # fmt: skip
    return found


def table_of_constants(each: Constants, source: str) -> str:
    """Table 2. `source`: where `process_us` comes from."""
    rows = [
        ["p_copy", f"{each.copy_us:.3f}", "measured: a row of four numbers in memory, in Python"],
        ["p_comp", f"{each.compare_us:.3f}", "the same"],
        ["p_proc", f"{each.process_us:.3f}", source],
        ["checkpoint/redo", "", "P + S p_copy + (D + 0.5 l) lambda p_proc"],
        ["undo/redo", "", "P + (S + (D + 0.5 l) lambda) (p_comp + p_proc)"],
        ["this product", "", "P + D lambda p_proc, in whole batches: the flow has waited, and loads no state"],
    ]
    return markdown(f"Table 2, l={INTERVAL_S:g} s", ["", "us a row", "from"], rows)


def table_of_points(lines: Sequence[Line]) -> str:
    """Figure 12."""
    if not lines:
        return ""
    rows = [
        [f"{each['series']}, {each['x']:,.0f}", *(f"{each[name]:.2f}" for name in _COLUMNS)] for each in lines
    ]
    title = (
        f"Figure 12, seconds of this machine. Ours is {lines[0]['corrected_from']}: from the input's return until all "
        f"is corrected. The others are formulas with measured constants.\nThe paper: {THEIRS[Part.FIGURE_12]}."
    )
    return markdown(title, ["", "ours", "checkpoint/redo, formula", "undo/redo, formula"], rows)


_COLUMNS = ("corrected_s", "checkpoint_redo_s", "undo_redo_s")
