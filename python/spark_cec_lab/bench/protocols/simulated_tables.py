"""The paper's figures and tables from simulated runs, and, where Spark has as many workers, what the two differ by."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_cec_lab.bench.protocols import figures
from spark_cec_lab.bench.protocols.simulated import CORES
from spark_cec_lab.bench.protocols.spec import CYCLIC, Outcome
from spark_cec_lab.bench.protocols.tables import SHORT, TABLE_II, TABLE_III, TABLE_IV, markdown

Line = Mapping[str, Any]
Cell = Callable[[Line], str]
_PAPERS = 5
"""Workers of the paper's cyclic query."""


def simulated_tables(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> list[str]:
    """All that can be made of the simulation's lines; `outcomes` are the runs on Spark."""
    found = [line for line in lines if line["kind"] == "simulated"]
    even = [line for line in found if not line["skew"] and line["query"] != CYCLIC]
    skewed = [line for line in found if line["skew"]]
    cyclic = [line for line in found if line["query"] == CYCLIC]
    low = min((line["load"] for line in skewed), default=0.0)
    made = [
        _table("Fig. 7, simulated: throughput over that without checkpoints", even,
               lambda line: f"{line['throughput']:.2f}"),
        _table("Table II, simulated: bytes of messages over those without a protocol", even, _overhead),
        _table("Figs. 8 and 11, simulated: ms of a checkpoint / from the failure until all that went back runs again",
               even, lambda line: f"{_whole(line['checkpoint_ms'])} / {_whole(line['restart_ms'])}"),
        _table("Figs. 9 and 10, simulated: latency before the failure, p50 / p99, ms (s until the median is within 1.2"
               " of it)", even,
               lambda line: f"{_whole(line['p50_ms'])} / {_whole(line['p99_ms'])} ({_whole(line['recovery_s'])})"),
        _table("Table III, simulated: checkpoints (percent of no use after the failure)", even, _invalid),
        _table("Fig. 12, simulated: p50 latency in ms / ms of a checkpoint", skewed,
               lambda line: f"{_whole(line['p50_ms'])} / {_whole(line['checkpoint_ms'])}"),
        _table("Fig. 13, simulated: ms from the failure until all that went back runs again",
               [line for line in skewed if line["load"] == low], lambda line: _whole(line["restart_ms"])),
        _table("Table IV, simulated: ms of a checkpoint / of a restart (percent of checkpoints of no use)", cyclic,
               _on_cycle),
        _overlap(even, outcomes),
    ]  # fmt: skip
    return [each for each in made if each]


def _table(title: str, lines: Sequence[Line], cell: Cell) -> str:
    columns = [each for each in SHORT if any(line["protocol"] == each for line in lines)]
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        name = f"{line['query']}, {line['workers']} workers"
        if line["skew"]:
            name += f", {100 * line['skew']:.0f} % hot, {100 * line['load']:.0f} % load"
        rows.setdefault(name, {})[line["protocol"]] = cell(line)
    body = [[name, *(cells.get(each, "-") for each in columns)] for name, cells in rows.items()]
    return markdown(title, ["", *(SHORT[each] for each in columns)], body) if body else ""


def _overhead(line: Line) -> str:
    theirs = TABLE_II.get(SHORT[line["protocol"]], {}).get(line["query"])
    at = {10: 0, 50: 1}.get(line["workers"])
    return f"{line['message_overhead']:.2f}x" + ("" if theirs is None or at is None else f" [{theirs[at]:.2f}x]")


def _invalid(line: Line) -> str:
    ours = f"{line['checkpoints']} ({_share(line)})"
    theirs = TABLE_III.get(SHORT[line["protocol"]], {}).get(line["query"])
    return ours if theirs is None or line["workers"] != 10 else f"{ours} [{theirs[0]} ({theirs[1]} %)]"


def _on_cycle(line: Line) -> str:
    ours = f"{_whole(line['checkpoint_ms'])} / {_whole(line['restart_ms'])} ({_share(line)})"
    theirs = TABLE_IV.get(SHORT[line["protocol"]])
    if theirs is None or line["workers"] != _PAPERS:
        return ours
    return f"{ours} [{theirs[0]} / {theirs[1]} ({theirs[2]} %)]"


def _share(line: Line) -> str:
    return f"{100 * line['invalid'] / line['checkpoints']:.1f} %" if line["checkpoints"] else "-"


def _overlap(even: Sequence[Line], outcomes: Sequence[Outcome]) -> str:
    """Where the simulation and Spark have the same size: throughput, a checkpoint, and a restart, by both."""
    plain = [each for each in outcomes if each.spec.hot_percent is None and each.spec.instances == CORES]
    full = [each for each in plain if each.spec.rate is None]
    failed = [each for each in plain if each.recovery is not None]

    def throughput(query: str, protocol: str) -> float | None:
        ours, none = (
            [each.events_s for each in full if (each.spec.query, each.spec.protocol) == (query, name)]
            for name in (protocol, "none")
        )
        return statistics.median(ours) / statistics.median(none) if ours and none and protocol != "none" else None

    def median_ms(runs: Sequence[Outcome], measure: Callable[[Outcome], float | None]) -> Callable[[str, str], Any]:
        def of(query: str, protocol: str) -> float | None:
            known = [
                1000 * value for each in runs if (each.spec.query, each.spec.protocol) == (query, protocol)
                and (value := measure(each)) is not None
            ]  # fmt: skip
            return statistics.median(known) if known else None

        return of

    measures: tuple[tuple[str, Callable[[str, str], float | None], str], ...] = (
        ("throughput", throughput, "throughput"),
        ("checkpoint, ms", median_ms(full, figures.checkpoint_s), "checkpoint_ms"),
        ("restart, ms", median_ms(failed, figures.restart_s), "restart_ms"),
    )
    rows = []
    for what, measured, name in measures:
        for line in even:
            if line["workers"] != CORES or line[name] is None:
                continue
            ours = measured(line["query"], line["protocol"])
            if ours:
                by, digits = 100 * (line[name] / ours - 1), 2 if name == "throughput" else 0
                rows.append([f"{what}, {line['query']}", SHORT[line["protocol"]], f"{ours:.{digits}f}",
                             f"{line[name]:.{digits}f}", f"{by:+.0f} %"])  # fmt: skip
    head = ["", "", "on Spark, 2 instances", "simulated, 2 workers", "difference"]
    return markdown("Where both are", head, rows) if rows else ""


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
