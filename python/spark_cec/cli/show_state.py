"""Prints the result of `cec inspect`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_cec.admin.find_log import store_of
from spark_cec.admin.state import LogState, StoreState
from spark_cec.cli.show import counted, describe_fallback, fallback_json, print_findings, size, store_json
from spark_cec.log.meta import CommitFlags
from spark_cec.recovery.replay_input import ReplayInput
from spark_cec.recovery.spark_logs import has_state, recorded_conf
from spark_cec.settings import PROVIDER, PROVIDER_KEY

_COLUMNS = (
    "operator", "partition", "store", "version", "newest", "N", "rows", "q", "Q", "u", "U", "D", "dirty", "bytes",
    "segments",
)  # fmt: skip


def state_json(state: LogState) -> dict[str, Any]:
    """The fields of `cec inspect --json`. Unknown bounds are null."""
    query, done = state.place.query or {}, state.committed
    return {
        "log_home": state.place.home,
        "log_id": state.place.log_id,
        "state_store": _find_provider(state),
        "mode": query.get("mode"),
        "reason": query.get("reason"),
        "settings": query.get("settings"),
        "generation": query.get("generation"),
        "release": query.get("release"),
        "committed_batch": done.batch if done else None,
        "replay": asdict(done.replay) if done and done.replay else None,
        "rollback": done.under_way if done else None,
        "stray_commits": list(done.strays) if done else [],
        "needs_input": replay_input_json(state.replay_input) if state.replay_input else None,
        "recoveries": state.recoveries,
        "output_batches": state.output_batches,
        "stores": [_store_json(store) for store in state.stores],
        "totals": {"stores": len(state.stores), **_sum_totals(state)},
        "damages": [finding.to_json() for finding in state.findings],
        "fallback": fallback_json(state.decided),
    }


def print_state(out: Console, state: LogState) -> None:
    """Prints the query's lines, a table of its stores, then the damage found."""
    for label, value in _header_lines(state):
        out.print(f"{label:12}{value}")
    out.print()
    if state.stores:
        out.print(_make_table(state))
    else:
        out.print(describe_no_stores(state))
    settings = state.place.settings
    if settings is not None and settings.recovery_target_ms is not None and state.stores:
        out.print("- Q and U follow from recoveryTarget: the writer sets them anew at every commit, as it measures")
    elif settings is None and state.stores:
        out.print("? Q and U are settings of the query: they are in its checkpoint, as its last start had them")
    if state.findings:
        out.print()
        print_findings(out, state.findings)
        out.print("headers only were read; `cec verify` reads every byte")
    if state.decided:
        out.print(describe_fallback(state.decided))


def _find_provider(state: LogState) -> str | None:
    """The class of the state store provider; None if the query has no state, or only the log is known."""
    checkpoint = state.place.checkpoint
    if checkpoint is None or not has_state(checkpoint):
        return None
    return recorded_conf(checkpoint).get(PROVIDER_KEY)


def describe_no_stores(state: LogState) -> str:
    """Why the log has no store: the state is elsewhere, there is none, or none has committed yet."""
    provider = _find_provider(state)
    if provider is not None and provider != PROVIDER:
        return f"the query's state is in {store_of(provider)}, not in this log; here is its output"
    if state.place.query is not None and not state.place.query.get("provider"):
        return "the query has no state in this log; here is its output"
    return "no store has committed yet"


def _header_lines(state: LogState) -> list[tuple[str, object]]:
    query, done = state.place.query or {}, state.committed
    lines: list[tuple[str, object]] = [("log", f"{state.place.home} (id {state.place.log_id})")]
    if query:
        lines.append(("mode", f"{query.get('mode', 'unknown')}: {query.get('reason', 'no reason recorded')}"))
        lines.append(("settings", query.get("settings", "unknown")))
        if any(store.meta.recovery_estimate_ms for store in state.stores):
            longest = max(store.meta.recovery_estimate_ms for store in state.stores)
            lines.append(("recovery", f"from here estimated at {longest / 1000:.1f} s"))
        lines.append(("run", f"{query.get('generation', 'unknown')}, release {query.get('release', 'unknown')}"))
    if done is None:
        lines.append(("committed", "unknown, as no checkpoint was given; stores are shown at their newest versions"))
    elif done.replay is not None:
        first, last = done.replay.first, done.replay.last
        progress = f"{done.replay.done - first + 1} of {last - first + 1} are done"
        lines.append(("committed", f"batch {done.batch}; of a replay of batches {first} to {last}, {progress}"))
    else:
        lines.append(("committed", f"batch {done.batch}" if done.batch >= 0 else "no batch yet"))
    if done is not None and done.under_way is not None:
        rest = f"`cec rollback` with --to {done.under_way} does the rest"
        lines.append(("rollback", f"to batch {done.under_way}, not finished: {rest}"))
    if done is not None and done.strays:
        refused = "the next start is refused, and says how to go on"
        lines.append(("commits", f"commits/{done.strays[-1]} is ahead of the offsets: {refused}"))
    if state.replay_input is not None:
        lines.append(("input", state.replay_input.describe(int(time.time() * 1000))))
    lines.append(("recoveries", state.recoveries))
    lines.append(("output", counted(state.output_batches, "batch", "batches")))
    return lines


def _make_table(state: LogState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=len(state.stores) > 1, footer_style="bold")
    totals = _sum_totals(state)
    feet = {
        "operator": "total", "partition": counted(len(state.stores), "store"), "N": f"{totals['open_windows']:,}",
        "rows": _format_count(totals["state_rows"]),
        "q": f"{totals['extent_records']:,}", "u": f"{totals['replay_inputs']:,}",
        "dirty": f"{totals['dirty_windows']:,}", "bytes": size(totals["commit_bytes"]),
        "segments": f"{state.segments:,}",
    }  # fmt: skip
    for name in _COLUMNS:
        table.add_column(name, feet.get(name, ""), justify="left" if name == "store" else "right", no_wrap=True)
    notes = [_explain_excess(store) for store in state.stores]
    if any(notes):
        table.add_column("", no_wrap=True)
    unknown = "?" if state.place.settings is None else "-"
    for store, note in zip(state.stores, notes, strict=True):
        table.add_row(*_make_row(store, unknown), *([note] if any(notes) else []))
    return table


def _make_row(state: StoreState, unknown: str) -> Sequence[Text | str]:
    meta = state.meta
    return [
        str(meta.store.operator), str(meta.store.partition), meta.store.name,
        str(meta.version), str(state.newest_version), f"{meta.open_windows:,}", _format_count(meta.rows),
        *_format_bounded(meta.extent, state.extent_bound, unknown),
        *_format_bounded(meta.replay, state.replay_bound, unknown),
        str(meta.dirty_from), f"{meta.dirty_windows:,}", size(state.stored_bytes), f"{state.segments:,}",
    ]  # fmt: skip


def _format_count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _explain_excess(state: StoreState) -> str:
    """Explains the `!` in a store's row."""
    above = ["q is above Q"] if _exceeds(state.meta.extent, state.extent_bound) else []
    above += ["u is above U"] if _exceeds(state.meta.replay, state.replay_bound) else []
    return f"! {' and '.join(above)}: the next commits bring it down as far as CI/CP allows" if above else ""


def _format_bounded(value: int, bound: int | None, unknown: str) -> list[Text | str]:
    shown = Text(f"{value:,}!", "bold yellow") if _exceeds(value, bound) else Text(f"{value:,}")
    return [shown, unknown if bound is None else f"{bound:,}"]


def _exceeds(value: int, bound: int | None) -> bool:
    return bound is not None and value > bound


def replay_input_json(replay_input: ReplayInput) -> dict[str, Any]:
    """`since_batch` is D. `from` and `to` have the source's own form; `offsets` are for Kafka's form."""
    return {
        "since_batch": replay_input.first,
        "batches": max(replay_input.committed + 1 - replay_input.first, 0),
        "since_unix_ms": replay_input.timestamp_ms,
        "sources": [
            {
                "from": source.start,
                "to": source.end,
                "offsets": None
                if source.partitions is None
                else [
                    {"topic": each.topic, "partition": each.partition, "from": each.offset, "to": each.end}
                    for each in source.partitions
                ],
            }
            for source in replay_input.sources
        ],
    }


def _store_json(state: StoreState) -> dict[str, Any]:
    meta = state.meta
    return {
        **store_json(meta.store),
        "version": meta.version,
        "newest_version": state.newest_version,
        "open_windows": meta.open_windows,
        "state_rows": meta.rows,
        "extent_records": meta.extent,
        "extent_bound": state.extent_bound,
        "replay_inputs": meta.replay,
        "replay_bound": state.replay_bound,
        "recovery_estimate_ms": meta.recovery_estimate_ms or None,
        "dirty_from": meta.dirty_from,
        "dirty_windows": meta.dirty_windows,
        "oldest_footprint": meta.oldest_footprint,
        "eager": bool(meta.flags & CommitFlags.EAGER),
        "wall_ms": meta.wall_ms,
        "watermark_ms": meta.watermark_ms,
        "bytes": state.stored_bytes,
        "segments": state.segments,
    }


def _sum_totals(state: LogState) -> dict[str, Any]:
    rows = [store.meta.rows for store in state.stores]
    metas = [store.meta for store in state.stores]
    return {
        "open_windows": sum(meta.open_windows for meta in metas),
        "state_rows": None if None in rows else sum(count or 0 for count in rows),
        "extent_records": sum(meta.extent for meta in metas),
        "replay_inputs": sum(meta.replay for meta in metas),
        "dirty_windows": sum(meta.dirty_windows for meta in metas),
        "commit_bytes": sum(store.stored_bytes for store in state.stores),
        "bytes": state.stored_bytes,
        "segments": state.segments,
    }
