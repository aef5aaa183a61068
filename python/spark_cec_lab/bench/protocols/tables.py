"""The paper's figures and tables from the runs, theirs beside ours, as Markdown.

What the paper says in numbers is quoted (Siachamis et al., ICDE 2024, tables II to IV, and what its text says of its
figures); what it only draws is not guessed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_cec_lab.bench.protocols import figures
from spark_cec_lab.bench.protocols.spec import CYCLIC, Outcome

SHORT = {
    "none": "none", "coordinated": "COOR", "uncoordinated": "UNC", "communication-induced": "CIC", "cec": "CEC",
}  # fmt: skip

TABLE_II = {
    "COOR": {"q1": (1.00, 1.00), "q3": (1.00, 1.00), "q8": (1.00, 1.00), "q12": (1.00, 1.00)},
    "UNC": {"q1": (1.00, 1.00), "q3": (1.00, 1.01), "q8": (1.00, 1.01), "q12": (1.00, 1.00)},
    "CIC": {"q1": (2.10, 2.53), "q3": (1.82, 2.58), "q8": (1.74, 2.49), "q12": (1.79, 2.58)},
}
"""Message overhead with 10 and 50 workers."""

TABLE_III = {
    "COOR": {"q1": (240, 0), "q3": (400, 0), "q8": (360, 0), "q12": (240, 0)},
    "UNC": {"q1": (303, 0), "q3": (455, 4), "q8": (384, 2), "q12": (282, 3)},
    "CIC": {"q1": (285, 0), "q3": (471, 3), "q8": (386, 3), "q12": (282, 4)},
}
"""Checkpoints with 10 workers, and how many percent of them were of no use."""

TABLE_IV = {"UNC": (0.01, 620, 1.4), "CIC": (2.73, 347, 1.7)}
"""The cyclic query on 5 workers: ms of a checkpoint, of a restart, percent of checkpoints of no use."""

Row = Sequence[str]
Measure = Callable[[Outcome], float | None]
Cell = Callable[[Sequence[Outcome]], str]
"""Of all rounds of a run."""


def markdown(title: str, head: Row, rows: Iterable[Row]) -> str:
    """One table."""
    lines = [f"**{title}**", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def tables(outcomes: Sequence[Outcome]) -> list[str]:
    """All that can be made of these runs."""
    full = [each for each in outcomes if each.spec.rate is None and each.spec.query != CYCLIC]
    failing = [each for each in outcomes if each.spec.fails_s is not None and each.spec.hot_percent is None]
    acyclic = [each for each in failing if each.spec.query != CYCLIC]
    skewed = [each for each in outcomes if each.spec.hot_percent is not None]
    cyclic = [each for each in failing if each.spec.query == CYCLIC]
    made = [
        _throughput(full),
        _by_run("Table II: bytes of messages over those without a protocol", full, _shown(figures.overhead, "{:.2f}x"),
                _paper(TABLE_II, "{0:.2f}x, {1:.2f}x")),
        _by_run("Fig. 8: ms of a checkpoint (of a round, where they are coordinated)", full, _ms(figures.checkpoint_s)),
        _by_run("What stores write: bytes for 1,000 events", full, _shown(_stored, "{:,.0f}")),
        _by_run("Figs. 9, 10: latency before the failure, p50 / p99, ms", acyclic, _latency),
        _by_run("Figs. 9, 10: from the failure on, p99 in s (s until the median is within 1.2 of before, for 5 s)",
                acyclic, _after),
        _by_run("Fig. 11: ms from the failure until all that went back runs again", acyclic, _restart),
        _by_run("Table III: checkpoints in all (percent of them of no use)", acyclic, _invalid,
                _paper(TABLE_III, "{0} ({1} %)")),
    ]  # fmt: skip
    if skewed:
        made += [
            _by_run("Fig. 12: p50 latency in ms / ms of a checkpoint, at half load", skewed, _latency_and_checkpoint),
            _by_run("Fig. 13: ms from the failure until all that went back runs again", skewed, _restart),
        ]
    if cyclic:
        made.append(_cyclic(cyclic))
    return [each for each in made if each]


def _throughput(full: Sequence[Outcome]) -> str:
    found = figures.over_none(full)

    def cell(runs: Sequence[Outcome]) -> str:
        spec = runs[0].spec
        return _spread(found.get((spec.query, spec.instances, spec.protocol), []))

    of_all = {name: [each for key, own in found.items() if key[2] == name for each in own] for name in _columns(full)}
    last = ["all of these", *map(_spread, of_all.values())]
    return _by_run("Fig. 7: throughput over that without checkpoints", full, cell, last=last)


def _spread(values: Sequence[float]) -> str:
    """The median, and, of several, the lowest and the highest."""
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.2f}" + (f" ({low:.2f}-{high:.2f})" if low < high else "")


def _columns(outcomes: Sequence[Outcome]) -> list[str]:
    return [each for each in SHORT if any(run.spec.protocol == each for run in outcomes)]


def _by_run(
    title: str, outcomes: Sequence[Outcome], cell: Cell, paper: Mapping[str, Mapping[str, str]] | None = None,
    last: Row = (),
) -> str:  # fmt: skip
    """A row for each query, number of instances and skew, a column for each protocol; a cell has all rounds of it."""
    columns = _columns(outcomes)
    found: dict[tuple[str, int, int | None], dict[str, list[Outcome]]] = {}
    for run in outcomes:
        key = run.spec.query, run.spec.instances, run.spec.hot_percent
        found.setdefault(key, {}).setdefault(run.spec.protocol, []).append(run)
    rows: list[Row] = []
    for (query, instances, hot), runs in found.items():
        name = f"{query}, {instances} inst." + ("" if hot is None else f", {hot} % hot")
        cells = [cell(runs[each]) if each in runs else "-" for each in columns]
        rows.append([name, *(_beside(each, paper, SHORT[by], query) for each, by in zip(cells, columns, strict=True))])
    rows += [last] if last and len(rows) > 1 else []
    return markdown(title, ["", *(SHORT[each] for each in columns)], rows) if rows else ""


def _beside(ours: str, paper: Mapping[str, Mapping[str, str]] | None, protocol: str, query: str) -> str:
    theirs = (paper or {}).get(protocol, {}).get(query)
    return ours if theirs is None else f"{ours} [{theirs}]"


def _paper(table: Mapping[str, Mapping[str, tuple[float, ...]]], shape: str) -> dict[str, dict[str, str]]:
    return {protocol: {query: shape.format(*each) for query, each in row.items()} for protocol, row in table.items()}


def _median(runs: Sequence[Outcome], measure: Measure) -> float | None:
    known = [value for each in runs if (value := measure(each)) is not None]
    return statistics.median(known) if known else None


def _stored(run: Outcome) -> float | None:
    events = sum(each.events for each in run.done)
    return 1000 * run.store_bytes / events if events else None


def _shown(measure: Measure, shape: str) -> Cell:
    """The median over the rounds."""

    def cell(runs: Sequence[Outcome]) -> str:
        found = _median(runs, measure)
        return "-" if found is None else shape.format(found)

    return cell


def _ms(measure: Measure) -> Cell:
    return lambda runs: _in_ms(_median(runs, measure))


def _in_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f}"


def _latency_of(share: float) -> Measure:
    return lambda run: figures.latency_s(run, share, *figures.before_failure(run))


def _latency(runs: Sequence[Outcome]) -> str:
    return " / ".join(_in_ms(_median(runs, _latency_of(share))) for share in (0.5, 0.99))


def _after(runs: Sequence[Outcome]) -> str:
    worst, back = _median(runs, figures.worst_s), _median(runs, figures.recovery_s)
    return f"{'-' if worst is None else f'{worst:.1f}'} ({'-' if back is None else f'{back:.0f}'})"


_restart = _ms(figures.restart_s)


def _invalid(runs: Sequence[Outcome]) -> str:
    """Over all rounds."""
    count = sum(each.checkpoints for each in runs)
    invalid = [each.recovery.invalid for each in runs if each.recovery is not None]
    each = f"{count / len(runs):.0f}"
    return f"{each} ({100 * sum(invalid) / count:.0f} %)" if count and invalid else each


def _latency_and_checkpoint(runs: Sequence[Outcome]) -> str:
    return f"{_in_ms(_median(runs, _latency_of(0.5)))} / {_in_ms(_median(runs, figures.checkpoint_s))}"


def _cyclic(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for protocol, short in SHORT.items():
        runs = [each for each in outcomes if each.spec.protocol == protocol]
        if not runs:
            continue
        theirs, share = TABLE_IV.get(short), _median(runs, figures.invalid)
        ours = (
            _in_ms(_median(runs, figures.checkpoint_s)), _restart(runs),
            "-" if share is None else f"{100 * share:.1f} %",
        )  # fmt: skip
        beside = ("-",) * 3 if theirs is None else (f"{theirs[0]}", f"{theirs[1]}", f"{theirs[2]} %")
        rows.append([short, *(f"{a} [{b}]" if theirs else a for a, b in zip(ours, beside, strict=True))])
    return markdown("Table IV: the cyclic query", ["", "checkpoint, ms", "restart, ms", "of no use"], rows)
