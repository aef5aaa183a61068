"""The settings of a pipeline's checkpoints: the protocol, the interval, and when rows leave the pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import SettingsError
from spark_cec.pipeline.graph import Graph, GraphError
from spark_cec.protocols.choose import Protocol, UnknownProtocol, check_inputs, parse_protocol
from spark_cec.protocols.coordinated import CycleRefused
from spark_cec.settings import duration_ms

RELEASES = ("checkpoint", "at-once")
_ENDING_TRIGGERS = frozenset({"availableNow", "once", "continuous", "realTime"})


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a pipeline is checkpointed.

    `interval_s`: the time between two checkpoints of a flow; CEC has a checkpoint at every batch, and ignores it.
    `at_once`: rows leave the pipeline with their batch, and leave it again if a failure takes the batch back. Otherwise
    rows leave when no failure can take their batch back.
    """

    protocol: Protocol = Protocol.CEC
    interval_s: float = 5.0
    at_once: bool = False

    @property
    def is_cec(self) -> bool:
        """Whether each flow recovers by itself."""
        return self.protocol is Protocol.CEC

    def list_participants(self, graph: Graph) -> dict[str, tuple[str, ...]]:
        """The flows that a failure takes back together, each with the flows that it reads.

        A sink takes part if its rows leave the pipeline at once.
        """
        members = [node for node in graph.nodes.values() if self.at_once or not node.is_sink]
        return {node.name: tuple(dict.fromkeys(node.inputs)) for node in members}

    def to_json(self) -> dict[str, Any]:
        """The part that a home records, because it must not change."""
        return {"name": self.protocol.value, "release": RELEASES[1] if self.at_once else RELEASES[0]}


CEC = Checkpointing()


def parse_checkpointing(pipeline: str, protocol: str, interval: str | float, release: str) -> Checkpointing:
    """Parses a user's settings. Raises `GraphError` for a wrong setting, and for settings that exclude each other."""
    try:
        found = parse_protocol(protocol)
        interval_s = float(interval) if isinstance(interval, int | float) else duration_ms("", interval) / 1000
    except UnknownProtocol as error:
        raise GraphError(pipeline, [f"protocol={protocol!r}: {error}"]) from None
    except SettingsError:
        raise GraphError(
            pipeline, [f"checkpoint_interval={interval!r}: give a duration such as 5s, or a number of seconds"]
        ) from None
    if not interval_s > 0:
        raise GraphError(pipeline, [f"checkpoint_interval={interval!r}: give more than 0"])
    if release not in RELEASES:
        raise GraphError(pipeline, [f"release={release!r}: give {' or '.join(RELEASES)}"])
    if found is Protocol.NONE and release != "at-once":
        mend = "without checkpoints a failure can take back every row: give release='at-once'"
        raise GraphError(pipeline, [f"protocol='none' has release={release!r}: {mend}"])
    return Checkpointing(found, interval_s, release == "at-once")


def check_flows(graph: Graph, checkpointing: Checkpointing, triggers: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Raises `GraphError` if a graph, or the trigger of a flow, cannot run under the protocol."""
    if checkpointing.is_cec:
        return
    try:
        check_inputs(checkpointing.protocol, checkpointing.list_participants(graph))
    except CycleRefused as error:
        raise GraphError(graph.name, [str(error)]) from None
    ending = [name for name, trigger in triggers.items() if _ENDING_TRIGGERS & (trigger or {}).keys()]
    if ending:
        why = f"under protocol={checkpointing.protocol.value!r} a failure can take any flow back, so no flow may end"
        mend = "leave the trigger out, or give processingTime"
        raise GraphError(graph.name, [f"{name} has trigger={triggers[name]!r}: {why}; {mend}" for name in ending])


def check_bounds(graph: Graph, bounded: Sequence[str], tentative: Collection[str]) -> None:
    """Raises `GraphError` if nobody can see the tentative rows of a flow.

    `bounded`: the flows that answer within X. `tentative`: those that read tentative rows: these, and sinks.
    """
    unseen = [name for name in bounded if not (graph.nodes[name].kept or {*graph.readers(name)} & {*tentative})]
    if unseen:
        mend = "declare a sink of it with @sink(tentative=True), or keep it for others (kept=True), or leave it out"
        raise GraphError(graph.name, [f"{unseen[0]} has within, and nobody reads its tentative rows: {mend}"])


def check_buckets(graph: Graph, checkpointing: Checkpointing, names: Sequence[str]) -> None:
    """Raises `GraphError` if flows that read by buckets, `names`, are in a cycle or under another protocol than CEC.

    In a cycle the boundary of each flow waits for the other one's.
    """
    if names and not checkpointing.is_cec:
        mend = "leave bucket and within out, or the protocol"
        raise GraphError(
            graph.name, [f"{names[0]} reads by buckets, under protocol={checkpointing.protocol.value!r}: {mend}"]
        )
    inside = [name for members in graph.cycles() for name in members if name in names]
    if inside:
        raise GraphError(
            graph.name,
            [f"{inside[0]} reads by buckets and feeds itself, so it would wait for ever: leave bucket and within out"],
        )


def check_blocking(graph: Graph, names: Sequence[str]) -> None:
    """Raises `GraphError` if a flow that holds flows upstream, `names`, might wait for one that it holds itself.

    That may happen if a flow feeds two of its inputs. A flow in a cycle cannot be held either: it feeds itself.
    """
    cyclic = {name for members in graph.cycles() for name in members}
    mend = "give at_keep='go on', or leave keep out"
    found = []
    for name in names:
        fed = sorted(cyclic & graph.upstream(name))
        if fed:
            found.append(f"{name} has at_keep='block', and {fed[0]}, which it would hold, feeds itself: {mend}")
        shared = _find_shared(graph, name)
        if shared is not None:
            feeder, one, other = shared
            why = f"{feeder} feeds {one} and {other}, so what is held may be what {name} waits for"
            found.append(f"{name} has at_keep='block', and {why}: {mend}")
    if found:
        raise GraphError(graph.name, found)


def _find_shared(graph: Graph, name: str) -> tuple[str, str, str] | None:
    """A flow that feeds two inputs of a flow, or is one of them, and these two; None without one."""
    inputs = list(dict.fromkeys(graph.nodes[name].inputs))
    for place, one in enumerate(inputs):
        for other in inputs[place + 1 :]:
            shared = graph.upstream(one) & graph.upstream(other)
            if shared:
                return min(shared, key=lambda each: (each not in (one, other), each)), one, other
    return None
