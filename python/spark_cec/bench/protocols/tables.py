"""The paper's figures and tables from the runs, theirs beside ours, as Markdown.

What the paper says in numbers is quoted (Siachamis et al., ICDE 2024, tables II to IV, and what its text says of its
figures); what it only draws is not guessed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_cec.bench.protocols import figures
from spark_cec.bench.protocols.simulated import CORES
from spark_cec.bench.protocols.spec import CYCLIC, Outcome
from spark_cec.bench.ratios import ratio

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
Measure = Callable[[Outcome], "float | None"]


def markdown(title: str, head: Row, rows: Iterable[Row]) -> str:
    """One table."""
    lines = [f"**{title}**", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def tables(outcomes: Sequence[Outcome], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """All that can be made of these runs, and of the simulation's lines."""
    full = [each for each in outcomes if each.spec.rate is None and each.spec.query != CYCLIC]
    failing = [each for each in outcomes if each.spec.rate is not None and each.spec.hot_percent is None]
    acyclic = [each for each in failing if each.spec.query != CYCLIC]
    skewed = [each for each in outcomes if each.spec.hot_percent is not None]
    cyclic = [each for each in failing if each.spec.query == CYCLIC]
    made = [
        _throughput(full),
        _by_run("Table II: bytes of messages over those without a protocol", full, _times(figures.overhead),
                _paper(TABLE_II, "{0:.2f}x, {1:.2f}x")),
        _by_run("Fig. 8: ms of a checkpoint (of a round, where they are coordinated)", full, _ms(figures.checkpoint_s)),
        _by_run("What stores write: bytes for 1,000 events", full, _stored),
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
    if lines:
        made += _simulated(lines, full)
    return [each for each in made if each]


def _throughput(full: Sequence[Outcome]) -> str:
    """Of several rounds each is compared with its own: the median, the lowest and the highest."""
    rounds: dict[tuple[str, int, str], dict[int, float]] = {}
    for each in full:
        found = rounds.setdefault((each.spec.query, each.spec.instances, each.spec.protocol), {})
        found[len(found)] = each.events_s

    def over_none(outcome: Outcome) -> str:
        key = outcome.spec.query, outcome.spec.instances
        over = ratio(rounds[(*key, outcome.spec.protocol)], rounds.get((*key, "none"), {}))
        if over is None:
            return "-"
        return f"{over.median:.2f}" + (f" ({over.low:.2f}-{over.high:.2f})" if over.low < over.high else "")

    return _by_run("Fig. 7: throughput over that without checkpoints", full, over_none)


def _by_run(
    title: str, outcomes: Sequence[Outcome], cell: Callable[[Outcome], str],
    paper: Mapping[str, Mapping[str, str]] | None = None,
) -> str:  # fmt: skip
    """A row for each query and number of instances, a column for each protocol; of several rounds the last one."""
    columns = [each for each in SHORT if any(run.spec.protocol == each for run in outcomes)]
    keys = dict.fromkeys((run.spec.query, run.spec.instances, run.spec.hot_percent) for run in outcomes)
    rows = []
    for query, instances, hot in keys:
        found = {run.spec.protocol: cell(run) for run in outcomes
                 if (run.spec.query, run.spec.instances, run.spec.hot_percent) == (query, instances, hot)}  # fmt: skip
        name = f"{query}, {instances} inst." + ("" if hot is None else f", {hot} % hot")
        rows.append([name, *(_beside(found.get(each, "-"), paper, SHORT[each], query) for each in columns)])
    return markdown(title, ["", *(SHORT[each] for each in columns)], rows) if rows else ""


def _beside(ours: str, paper: Mapping[str, Mapping[str, str]] | None, protocol: str, query: str) -> str:
    theirs = (paper or {}).get(protocol, {}).get(query)
    return ours if theirs is None else f"{ours} [{theirs}]"


def _paper(table: Mapping[str, Mapping[str, tuple[float, ...]]], shape: str) -> dict[str, dict[str, str]]:
    return {protocol: {query: shape.format(*each) for query, each in row.items()} for protocol, row in table.items()}


def _stored(outcome: Outcome) -> str:
    events = sum(each.events for each in outcome.done)
    return f"{1000 * outcome.store_bytes / events:,.0f}" if events else "-"


def _times(measure: Callable[[Outcome], float]) -> Callable[[Outcome], str]:
    return lambda outcome: f"{measure(outcome):.2f}x"


def _ms(measure: Measure) -> Callable[[Outcome], str]:
    return lambda outcome: _in_ms(measure(outcome))


def _in_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f}"


def _latency(outcome: Outcome) -> str:
    period = figures.before_failure(outcome)
    return " / ".join(_in_ms(figures.latency_s(outcome, share, *period)) for share in (0.5, 0.99))


def _after(outcome: Outcome) -> str:
    worst, back = figures.worst_s(outcome), figures.recovery_s(outcome)
    return f"{'-' if worst is None else f'{worst:.1f}'} ({'-' if back is None else f'{back:.0f}'})"


def _restart(outcome: Outcome) -> str:
    return "-" if outcome.recovery is None else _in_ms(outcome.recovery.restart_s)


def _invalid(outcome: Outcome) -> str:
    share = figures.invalid(outcome)
    return f"{outcome.checkpoints}" + ("" if share is None else f" ({100 * share:.0f} %)")


def _latency_and_checkpoint(outcome: Outcome) -> str:
    period = figures.before_failure(outcome)
    return f"{_in_ms(figures.latency_s(outcome, 0.5, *period))} / {_in_ms(figures.checkpoint_s(outcome))}"


def _cyclic(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for run in outcomes:
        short, share = SHORT[run.spec.protocol], figures.invalid(run)
        theirs = TABLE_IV.get(short)
        ours = (_in_ms(figures.checkpoint_s(run)), _restart(run), "-" if share is None else f"{100 * share:.1f} %")
        beside = ("-",) * 3 if theirs is None else (f"{theirs[0]}", f"{theirs[1]}", f"{theirs[2]} %")
        rows.append([short, *(f"{a} [{b}]" if theirs else a for a, b in zip(ours, beside, strict=True))])
    return markdown("Table IV: the cyclic query", ["", "checkpoint, ms", "restart, ms", "of no use"], rows)


def _simulated(lines: Sequence[Mapping[str, Any]], full: Sequence[Outcome]) -> list[str]:
    found = [line for line in lines if line["kind"] == "simulated"]
    return [*(_of_simulated(title, cell, found) for title, cell in _SIMULATED), _overlap(found, full)]


_Line = Mapping[str, Any]
_SIMULATED: tuple[tuple[str, Callable[[_Line], str]], ...] = (
    ("Simulated: throughput over that without checkpoints", lambda line: f"{line['throughput']:.2f}"),
    ("Simulated: bytes of messages over those without a protocol", lambda line: f"{line['message_overhead']:.2f}x"),
    (
        "Simulated: ms of a checkpoint / ms of a restart",
        lambda line: f"{_whole(line['checkpoint_ms'])} / {_whole(line['restart_ms'])}",
    ),
    (
        "Simulated: checkpoints (of no use after the failure)",
        lambda line: f"{line['checkpoints']} ({line['invalid']})",
    ),
)


def _of_simulated(title: str, cell: Callable[[_Line], str], found: Sequence[_Line]) -> str:
    columns = [each for each in SHORT if any(line["protocol"] == each for line in found)]
    by_run = {(line["query"], line["workers"], line["protocol"]): cell(line) for line in found}
    keys = dict.fromkeys((line["query"], line["workers"]) for line in found)
    rows = [
        [f"{query}, {workers} workers", *(by_run.get((query, workers, each), "-") for each in columns)]
        for query, workers in keys
    ]
    return markdown(title, ["", *(SHORT[each] for each in columns)], rows)


def _overlap(found: Sequence[Mapping[str, Any]], full: Sequence[Outcome]) -> str:
    """Where the simulation and Spark have the same size: throughput over that without checkpoints, by both."""
    rows = []
    alike: dict[tuple[str, str], list[float]] = {}
    for each in full:
        if each.spec.instances == CORES:
            alike.setdefault((each.spec.query, each.spec.protocol), []).append(each.events_s)
    for line in found:
        query, protocol = line["query"], line["protocol"]
        if line["workers"] != CORES or protocol == "none" or not {(query, protocol), (query, "none")} <= alike.keys():
            continue
        ours = statistics.median(alike[query, protocol]) / statistics.median(alike[query, "none"])
        by = 100 * (line["throughput"] / ours - 1)
        rows.append([query, SHORT[protocol], f"{ours:.2f}", f"{line['throughput']:.2f}", f"{by:+.0f} %"])
    head = ["", "", "on Spark, 2 instances", "simulated, 2 workers", "difference"]
    return markdown("Where both are: throughput over that without checkpoints", head, rows) if rows else ""


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
