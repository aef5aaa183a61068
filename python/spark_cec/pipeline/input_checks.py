"""Checks of what flows by buckets read: whether their inputs tell often enough how far they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from spark_cec.errors import SettingsError
from spark_cec.pipeline.graph import Graph, GraphError, Node
from spark_cec.pipeline.options import Within, parse_interval_ms
from spark_cec.settings import PREFIX, duration_ms

_QUIET = "sources.quiet"
_PAUSES = 4
"""In alpha times X, so many batches without rows come of a flow upstream."""
_LEAST_PAUSE_MS = 1_000
"""A batch without rows costs requests, too."""


class Flow(Protocol):
    """What counts of a declared flow here; see `pipeline.declare.Flow`."""

    @property
    def node(self) -> Node: ...
    @property
    def trigger(self) -> Mapping[str, Any] | None: ...
    @property
    def output_mode(self) -> str | None: ...
    @property
    def conf(self) -> Mapping[str, str]: ...
    @property
    def bucket_ms(self) -> int | None: ...
    @property
    def within(self) -> Within | None: ...


def check_inputs(graph: Graph, flows: Mapping[str, Flow]) -> None:
    """Raises `GraphError` for each input that no flow can read by buckets, or that would seem away all the time."""
    found = list(_list_unreadable(graph, flows))
    for name, flow in flows.items():
        # A flow with one channel waits for no other one.
        if flow.within is not None and len(set(graph.nodes[name].inputs)) > 1:
            before = {up for read in graph.nodes[name].inputs for up in graph.upstream(read)} - {name}
            found += [each for up in sorted(before & flows.keys()) for each in _judge(name, flow.within, up, flows[up])]
    if found:
        raise GraphError(graph.name, found)


def find_pause_ms(graph: Graph, flows: Mapping[str, Flow], name: str) -> int | None:
    """The longest time between two batches of a flow without rows, for the flows after it that have a bound.

    They would take it for away if its boundary stood still for longer. None if there is none.
    """
    bounds = [flows[each].within for each in graph.downstream(name) - {name}]
    waits = [each.wait_ms // _PAUSES for each in bounds if each is not None]
    return max(min(waits), _LEAST_PAUSE_MS) if waits else None


def list_slow_inputs(graph: Graph, flows: Mapping[str, Flow]) -> list[str]:
    """Warnings: inputs that tell less often than once in a bucket how far they are, so each row waits for that.

    `sources.quiet` counts only while a source has no rows, so it is no reason to refuse a pipeline.
    """
    found = []
    for name, flow, read in _list_reads(graph, flows):
        how, every_ms = _find_interval(flows[read])
        if flow.bucket_ms is not None and every_ms > flow.bucket_ms:
            found.append(
                f"flow {name} reads {read} by buckets of {flow.bucket_ms} ms, and {read} has {how}: rows may wait so "
                f"long, and a smaller bucket brings nothing"
            )
    return found


def _list_unreadable(graph: Graph, flows: Mapping[str, Flow]) -> Iterator[str]:
    for name, _, read in _list_reads(graph, flows):
        if flows[read].output_mode == "complete":
            yield (
                f"{name} reads {read} by buckets, and {read} has output_mode='complete', which gives all rows out "
                f"again and again: let {read} write in append mode, or leave bucket and within out"
            )


def _judge(name: str, within: Within, up: str, of: Flow) -> Iterator[str]:
    """What keeps a flow `up`, upstream of the flow `name`, from telling in time how far it is."""
    every_ms = parse_interval_ms((of.trigger or {}).get("processingTime", "0 seconds")) or 0
    for how, takes_ms, most_ms in (
        (f"trigger={dict(of.trigger or {})!r}", every_ms, within.wait_ms),
        # Half of the time, because its boundary moves with its batches.
        (f"buckets of {of.bucket_ms} ms", of.bucket_ms or 0, within.wait_ms // 2),
    ):
        if takes_ms > most_ms:
            yield (
                f"{up} has {how}, and {name} takes an input for away that tells nothing for {within.wait_ms} ms: give "
                f"{up} at most {most_ms} ms, or {name} a larger within"
            )
    if of.trigger is not None and {"availableNow", "once"} & of.trigger.keys():
        yield (
            f"{up} has trigger={dict(of.trigger)!r} and ends, so {name} would take it for away: leave trigger out, or "
            f"within"
        )


def _list_reads(graph: Graph, flows: Mapping[str, Flow]) -> Iterator[tuple[str, Flow, str]]:
    """Each flow that reads by buckets, with each flow that it reads."""
    for name, flow in flows.items():
        if flow.bucket_ms is not None:
            yield from ((name, flow, read) for read in graph.nodes[name].inputs if read in flows)


def _find_interval(flow: Flow) -> tuple[str, float]:
    """The setting that says how often a flow tells how far it is, and the time in ms; 0 if none does."""
    trigger, quiet = (flow.trigger or {}).get("processingTime", "0 seconds"), flow.conf.get(PREFIX + _QUIET)
    known = [(f"trigger={trigger!r}", float(parse_interval_ms(trigger) or 0))]
    if quiet is not None and not flow.node.inputs:
        with contextlib.suppress(SettingsError):  # "hold", or what the start of its query refuses
            known.append((f"{PREFIX}{_QUIET}={quiet}", duration_ms(_QUIET, quiet)))
    return max(known, key=lambda each: each[1])
