"""Prints the plan and costs of `cec rollback`: for people, and as one JSON object for programs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.console import Console

from spark_cec.admin.find_log import Place
from spark_cec.admin.roll_back import WayBack
from spark_cec.cli.show import counted, place_json
from spark_cec.cli.show_state import replay_input_json

_OTHER_SINKS = (
    "have {} already: rows come again, in batches that may be cut otherwise; one that knows batches by their numbers "
    "(files, Delta, perhaps yours) passes over those that it has"
)


def rollback_json(place: Place, batch: int, way: WayBack | None, generation: int | None) -> dict[str, Any]:
    """The fields of `cec rollback --json`; without costs if the query is at that batch already.

    `generation`: the run that owns later versions, null if nothing was done.
    """
    found = {**place_json(place), "to_batch": batch, "from_batch": way.newest if way else batch}
    return {**found, "done": generation is not None, "generation": generation, **(_cost_json(way) if way else {})}


def _cost_json(way: WayBack) -> dict[str, Any]:
    replay = {"first": way.replay_input.first, "last": way.to, "input_tuples": way.inputs}
    return {
        "stores": way.stores,
        "replay": replay if way.replay_input.is_due else None,
        "needs_input": replay_input_json(way.replay_input),
        "output": asdict(way.output) if way.output else None,
        "readers": way.readers,
        "gone_files": list(way.gone),
        "finishes": way.begun,
        "has_lock": way.locks,
    }


def print_way_back(out: Console, way: WayBack) -> None:
    """Prints the rollback's plan and costs, a line each."""
    begun = "; a try before was cut short, and this one does the rest" if way.begun else ""
    lines = [("back to", f"the end of batch {way.to}, from batch {way.newest}{begun}"), ("state", _describe_state(way))]
    lines.append(
        ("input", f"needed {way.replay_input.describe_need(int(time.time() * 1000))}: what came since is read again")
    )
    if way.gone:
        more = f" and {len(way.gone) - 1:,} more" if len(way.gone) > 1 else ""
        lines.append(("gone", f"{way.gone[0]}{more}: what these files had is lost to the batches that run anew"))
    if way.output is not None:
        what = f"{counted(way.output.rows, 'row')} of {_format_batches(way.output.first, way.output.last)}"
        words = f"of the cec sink: {what} taken back; a stream that has read more than batch {way.to} stops by name"
        lines.append(("output", words))
    for name, read in way.readers.items():
        lines.append(("reader", f"{name} has read batch {read}, perhaps more: take it back, too, or begin it anew"))
    if way.newest > way.to:
        lines.append(("other sinks", _OTHER_SINKS.format(_format_batches(way.to + 1, way.newest))))
    if not way.locks:
        why = "this storage has none" if way.place.is_ours else "a query without state here takes none"
        lines.append(("lock", f"{why}: nothing here tells whether the query runs; it must be stopped"))
    for label, value in lines:
        out.print(f"{label:12}{value}")


def print_done(out: Console, way: WayBack) -> None:
    """Says that the rollback is done, and what the next start does."""
    replays = f"replays {_format_batches(way.replay_input.first, way.to)}, and " if way.replay_input.is_due else ""
    comes = f"its next start {replays}goes on with batch {way.to + 1}"
    out.print(f"the query is back at the end of batch {way.to}: {comes}")


def _describe_state(way: WayBack) -> str:
    if not way.stores:
        return "none in this log"
    whole = f"{counted(way.stores, 'store')}, whole in the log at version {way.plan.base}"
    if not way.replay_input.is_due:
        return f"{whole}; nothing is replayed"
    batches = _format_batches(way.replay_input.first, way.to)
    return f"{whole}; the next start replays {batches} ({counted(way.inputs, 'input tuple')})"


def _format_batches(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"
