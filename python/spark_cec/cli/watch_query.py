"""What `cec watch` shows of a query: its bounds and how it keeps them, its recoveries, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_cec.admin.damage import FindingKind
from spark_cec.admin.find_log import find_log
from spark_cec.admin.recoveries import read_recoveries
from spark_cec.admin.state import LogState, StoreState, open_catalog, read_state
from spark_cec.admin.words import format_time
from spark_cec.cli.show import counted, size
from spark_cec.cli.show_state import describe_no_stores, state_json
from spark_cec.log.catalog import Catalog
from spark_cec.log.storage import Storage
from spark_cec.recovery.past_recoveries import Recovery

KEPT_S = 3_600.0
"""How far back the curves go."""

_MOST_SAMPLES = 3_600
"""Beyond so many, every second one of the older samples goes."""

_BARS = "▁▂▃▄▅▆▇█"
_LABEL = 10
_LEAST_CELLS = 11
_SHOWN_RECOVERIES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of the query: sums over its stores; `at_s` by the monotonic clock. Bounds are None if unknown."""

    at_s: float
    version: int
    extent: int
    extent_bound: int | None
    replay: int
    replay_bound: int | None
    dirty: int
    windows: int
    recovery_ms: float
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """All that one look found: the log, the newest recoveries, oldest first, and the samples of the last hour."""

    state: LogState
    recoveries: tuple[Recovery, ...]
    samples: tuple[Sample, ...]


class QueryWatcher:
    """Looks at a query again and again; reads only the frames that are new since the last look."""

    def __init__(self, path: str) -> None:
        """Raises the errors of `find_log`."""
        self._path = path
        self._known: tuple[str, Storage, Catalog] | None = None
        self._samples: list[Sample] = []

    def look(self) -> Look:
        """Looks now. Raises the errors of `find_log` and of the storage."""
        place = find_log(self._path)
        if self._known is None or self._known[0] != place.log_id:
            self._known = place.log_id, place.storage, open_catalog(place)
            self._samples.clear()
        _, storage, catalog = self._known  # the same view of the log as before, which knows its bundles
        state = read_state(replace(place, storage=storage), catalog)
        now = time.monotonic()
        if state.stores:
            self._samples.append(_take_sample(state, now))
        self._samples = thin_out([each for each in self._samples if now - each.at_s <= KEPT_S])
        return Look(state, read_recoveries(place, _SHOWN_RECOVERIES), tuple(self._samples))


def thin_out(samples: list[Sample]) -> list[Sample]:
    """The samples, if they are not too many; else every second one of the older half, and all of the newer."""
    if len(samples) <= _MOST_SAMPLES:
        return samples
    half = len(samples) // 2
    return [*samples[:half:2], *samples[half:]]


def is_sound(look: Look) -> bool:
    """Whether nothing is damaged or lost; a torn end, which a crash leaves, is no damage."""
    return all(finding.kind is FindingKind.TORN for finding in look.state.findings)


def look_json(look: Look) -> dict[str, Any]:
    """The fields of `cec watch --json`: those of `cec inspect`, and the newest recoveries."""
    return {"kind": "query", **state_json(look.state), "last_recoveries": [asdict(each) for each in look.recoveries]}


def show_look(look: Look, width: int, note: str | None = None) -> RenderableType:
    """The look in a terminal of that width. `note`: what went wrong with later looks."""
    parts: list[RenderableType] = [_make_header(look, width)]
    if note is not None:
        parts.append(Text(note, "bold red"))
    for finding in look.state.findings:
        style = "yellow" if finding.kind is FindingKind.TORN else "bold red"
        parts.append(Text(f"{finding.kind.value}: {finding.where}: {finding.reason}", style))
    parts.append(Text())
    if look.state.stores:
        parts += [_make_curves(look.samples, width), Text(), _make_operators(look.state.stores)]
    else:
        parts.append(Text(describe_no_stores(look.state)))
    if look.recoveries:
        parts.append(Text())
    for recovery in look.recoveries:
        parts.append(Text(_describe_recovery(recovery), "bold red" if recovery.digest_ok is False else ""))
    return Group(*parts)


def _take_sample(state: LogState, now_s: float) -> Sample:
    metas = [each.meta for each in state.stores]
    return Sample(
        at_s=now_s,
        version=min(meta.version for meta in metas),
        extent=sum(meta.extent for meta in metas),
        extent_bound=_sum_known(each.extent_bound for each in state.stores),
        replay=sum(meta.replay for meta in metas),
        replay_bound=_sum_known(each.replay_bound for each in state.stores),
        dirty=sum(meta.dirty_windows for meta in metas),
        windows=sum(meta.open_windows for meta in metas),
        recovery_ms=max(meta.recovery_estimate_ms for meta in metas),
        stored_bytes=state.stored_bytes,
    )


def _sum_known(bounds: Iterable[int | None]) -> int | None:
    known = list(bounds)
    return None if None in known else sum(bound or 0 for bound in known)


def _make_header(look: Look, width: int) -> Table:
    state, query = look.state, look.state.place.query or {}
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=_LABEL, no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=max(width - _LABEL - 2, 20))
    table.add_row("log", Text(state.place.home))
    table.add_row("mode", Text(f"{query.get('mode', 'unknown')}: {query.get('reason', 'no reason recorded')}"))
    table.add_row("settings", Text(str(query.get("settings", "unknown"))))
    table.add_row("committed", Text(_describe_progress(look)))
    if state.replay_input is not None:
        table.add_row("input", Text(state.replay_input.describe(int(time.time() * 1000))))
    return table


def _describe_progress(look: Look) -> str:
    done, stores = look.state.committed, look.state.stores
    if done is not None and done.replay is not None:
        first, last = done.replay.first, done.replay.last
        return f"replays batches {first} to {last}: {done.replay.done - first + 1} of {last - first + 1} are done"
    batch = "unknown" if done is None else f"batch {done.batch}" if done.batch >= 0 else "no batch yet"
    if not stores:
        return batch
    newest_ms = max(each.meta.wall_ms for each in stores)
    ago_s = max(time.time() - newest_ms / 1000, 0.0)
    return f"{batch}, {ago_s:,.0f} s ago ({format_time(newest_ms)}){_describe_pace(look.samples)}"


def _describe_pace(samples: Sequence[Sample]) -> str:
    """Batches a second, over the last minute that was watched; empty before the second batch."""
    recent = [each for each in samples if samples[-1].at_s - each.at_s <= 60.0]
    versions = recent[-1].version - recent[0].version if len(recent) > 1 else 0
    return f", {versions / (recent[-1].at_s - recent[0].at_s):.2g} batches a second" if versions > 0 else ""


def _make_curves(samples: Sequence[Sample], width: int) -> Table:
    now = samples[-1]
    recovery = f"{now.recovery_ms / 1000:.1f} s" if now.recovery_ms else "-"
    rows: list[tuple[str, Sequence[float], str, int | None, bool]] = [
        ("q, records", [each.extent for each in samples], f"{now.extent:,}", now.extent_bound, True),
        ("u, tuples", [each.replay for each in samples], f"{now.replay:,}", now.replay_bound, True),
        ("dirty windows", [each.dirty for each in samples], f"{now.dirty:,}", now.windows, False),
        ("open windows", [each.windows for each in samples], f"{now.windows:,}", None, False),
        ("recovery", [each.recovery_ms for each in samples], recovery, None, False),
        ("log", [each.stored_bytes for each in samples], size(now.stored_bytes), None, False),
    ]
    shares = [None if not of else values[-1] / of for _, values, _, of, _ in rows]
    texts = [
        (name, shown, "-" if of is None else f"{of:,}", "-" if share is None else f"{share:.0%}")
        for (name, _, shown, of, _), share in zip(rows, shares, strict=True)
    ]
    head = ("", "now", "of", "share")
    taken = sum(max(map(len, column)) + 2 for column in zip(head, *texts, strict=True))
    cells = width - taken if len(samples) > 1 else 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*head, *(["since start"] if cells >= _LEAST_CELLS else [])):
        table.add_column(name, justify="left" if name in ("", "since start") else "right", no_wrap=True)
    for (_, values, _, of, is_bound), share, (name, shown, bound, part) in zip(rows, shares, texts, strict=True):
        style = "bold yellow" if is_bound and share is not None and share > 1 else ""
        curve = [draw_curve(values, cells, of)] if cells >= _LEAST_CELLS else []
        table.add_row(name, Text(shown, style), bound, Text(part, style), *curve)
    return table


def draw_curve(values: Sequence[float], cells: int, top: float | None = None) -> str:
    """The values as bars, oldest first, in at most so many cells: each shows the largest of its values.

    `top`: the value that a full bar stands for; the largest one if that is more, or if there is none.
    """
    count = min(len(values), cells)
    if not count:
        return ""
    edges = [len(values) * place // count for place in range(count + 1)]
    tallest = [max(values[begin:end]) for begin, end in pairwise(edges)]
    highest = max(*tallest, top or 0.0, 0.0)
    if highest <= 0:
        return _BARS[0] * count
    return "".join(_BARS[min(int(each / highest * len(_BARS)), len(_BARS) - 1)] for each in tallest)


def _make_operators(stores: Sequence[StoreState]) -> Table:
    """A row for each operator and kind of store: the partition that is nearest to its bound decides."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("operator", "store", "partitions", "open windows", "q of Q", "u of U", "dirty", "segments"):
        table.add_column(name, justify="left" if name == "store" else "right", no_wrap=True)
    groups: dict[tuple[int, str], list[StoreState]] = {}
    for each in stores:
        groups.setdefault((each.meta.store.operator, each.meta.store.name), []).append(each)
    for (operator, name), members in sorted(groups.items()):
        table.add_row(
            str(operator), name, f"{len(members):,}", f"{sum(each.meta.open_windows for each in members):,}",
            _format_share([(each.meta.extent, each.extent_bound) for each in members]),
            _format_share([(each.meta.replay, each.replay_bound) for each in members]),
            f"{sum(each.meta.dirty_windows for each in members):,}", f"{max(each.segments for each in members):,}",
        )  # fmt: skip
    return table


def _format_share(values: Sequence[tuple[int, int | None]]) -> Text:
    shares = [value / bound for value, bound in values if bound]
    if not shares:
        return Text("-")
    return Text(f"{max(shares):.0%}", "bold yellow" if max(shares) > 1 else "")


def _describe_recovery(recovery: Recovery) -> str:
    foretold = "" if recovery.predicted_ms is None else f", foretold {recovery.predicted_ms / 1000:.1f} s"
    proof = {True: ", proved right", False: ", NOT proved right", None: ""}[recovery.digest_ok]
    replayed = counted(recovery.replayed_batches, "batch", "batches")
    took = f"{recovery.duration_ms / 1000:.1f} s"
    return f"recovery of {format_time(recovery.started_ms)}: {took}{foretold}, {replayed} replayed{proof}"
