"""What the demo prints at its end: a table of the recoveries and one last line."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from purchases_demo.crashes import Recovery
from purchases_demo.reference import Comparison


@dataclass(frozen=True, slots=True)
class CrashRow:
    """One query's share of one crash. `first_batch_s` runs from the start of the new driver to the end of the first
    new batch; None if the query had processed everything before the crash."""

    crash: int
    recovery: Recovery
    first_batch_s: float | None


def recovery_table(rows: list[CrashRow]) -> Table:
    """One line per crash and query."""
    table = Table(
        title="Recoveries (q and u: the store nearest to its bound, at the crash)",
        caption="V: last committed batch. The replay begins after T. q: log records to scan, u: tuples to replay.\n"
        "A commit that alone writes more than Q lifts q above Q until the next one.\n"
        "First new batch: since the new driver began.",
    )
    table.add_column("crash", justify="right")
    table.add_column("query")
    for heading in ("V", "T", "replayed batches", "q/Q", "u/U", "EC load ms", "first new batch s"):
        table.add_column(heading, justify="right")
    for row in rows:
        facts = row.recovery
        table.add_row(
            str(row.crash),
            facts.query,
            str(facts.committed_batch),
            str(facts.rewound_to),
            str(facts.replayed_batches),
            f"{facts.extent}/{facts.extent_bound}",
            f"{facts.replay}/{facts.replay_bound}",
            f"{facts.ec_load_ms:.1f}",
            "-" if row.first_batch_s is None else f"{row.first_batch_s:.1f}",
        )
    return table


def complaints(rows: list[CrashRow], comparison: Comparison) -> list[str]:
    """Why the demo has failed, empty if it has not."""
    reasons = [] if comparison.exact else ["the output is not that of an undisturbed run"]
    if comparison.rows == 0:
        reasons.append("the queries wrote no rows")
    if not any(row.recovery.replayed_batches > 1 for row in rows):
        reasons.append("no crash replayed more than one batch, so it proves nothing")
    reasons += [
        f"crash {row.crash}: {row.recovery.query} came back with another state digest"
        for row in rows
        if row.recovery.digest_ok is False
    ]
    return reasons


def last_line(crashes: int, comparison: Comparison | None, reasons: list[str]) -> str:
    """`demo: OK …`, or `demo: FAILED …` with the reasons. `comparison` is None if no rows were compared."""
    if comparison is None:
        return f"demo: FAILED crashes={crashes}, no row was compared: {'; '.join(reasons)}"
    counts = (
        f"crashes={crashes} rows={comparison.rows} missing={comparison.missing} "
        f"duplicate={comparison.duplicate} different={comparison.different}"
    )
    return f"demo: FAILED {counts}: {'; '.join(reasons)}" if reasons else f"demo: OK {counts}"
