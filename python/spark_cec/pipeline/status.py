"""The status of a pipeline, flow by flow. The driver writes it into the home, and every process may read it there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from spark_cec.pipeline.graph import Graph

_NONE_HELD: Mapping[str, Collection[str]] = MappingProxyType({})


class State(str, Enum):
    """The state of a flow.

    `REPLAYING`: it runs again, and has not yet reached its newest batch. `WAITING`: for executors, see `capacity`, for
    the other flows of a protocol, or for flows that read it, see `held_for`. `STANDBY`: a sink, while the other replica
    runs it. `STARVING`: it runs, but a flow that feeds it has failed. `ENDED`: its trigger was for the input that was
    there.
    """

    STARTING = "starting"
    RUNNING = "running"
    REPLAYING = "replaying"
    WAITING = "waiting"
    STANDBY = "standby"
    RESTARTING = "restarting"
    STARVING = "starving"
    FAILED = "failed"
    ENDED = "ended"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether the flow never runs again by itself."""
        return self in (State.FAILED, State.ENDED, State.STOPPED)


@dataclass(frozen=True, slots=True)
class HeldFor:
    """A flow for which others are held: more bytes of its inputs wait for it than its `keep`."""

    flow: str
    bytes: int


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow: its newest batch (None before the first), the number of its restarts, and its newest error.

    `starves_for`: the failed flows that feed it. `cores`: the cores that it keeps busy, a mean of the last half minute.
    `behind`: how many batches of its inputs it left for later, None if that is unknown, as before its first batch.
    `complete_to_ms`: its watermark, in ms since the epoch: it takes no older row. None without a watermark.
    `away_since_ms`: since when a source has not answered; None if all answer. `waits_for`: the flows upstream whose
    source does not answer, so that windows stay open, and those that hold its buckets back. `epoch`: the number of the
    open epoch, in which it answers tentatively without the channels `absent`, up to `tentative_to_ms`; None without
    one. `blocked`: the channels whose new rows may wait in a join for rows of `absent`. `held_for`: the flows for
    which it is held. `given_up`: the channels for which it waits no more until they are back, because too much has
    waited for them, or for too long. `servers`: the addresses of the Kafka servers that do not answer.
    """

    name: str
    state: State
    batch: int | None = None
    restarts: int = 0
    error: str | None = None
    starves_for: tuple[str, ...] = ()
    cores: float | None = None
    behind: int | None = None
    complete_to_ms: int | None = None
    away_since_ms: int | None = None
    waits_for: tuple[str, ...] = ()
    epoch: int | None = None
    tentative_to_ms: int | None = None
    absent: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    held_for: tuple[HeldFor, ...] = ()
    given_up: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapacityStatus:
    """The executors, their cores, and the cores that all flows want.

    `recovering_s`: the time for which flows have waited for executors, None if no flow waits. `coming`: the sinks that
    one more executor brings back.
    """

    executors: int
    cores: int
    wanted: float
    recovering_s: float | None = None
    coming: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A whole pipeline. `wall_ms`: the time of the status. `pid`: the process of the driver.

    `protocol`: its checkpointing protocol. `rollbacks`: how often this driver has taken all flows back to a line.
    """

    name: str
    home: str
    pid: int
    wall_ms: int
    flows: tuple[FlowStatus, ...]
    capacity: CapacityStatus | None = None
    protocol: str = "cec"
    rollbacks: int = 0

    @property
    def failed(self) -> tuple[FlowStatus, ...]:
        """The flows that have failed for good."""
        return tuple(flow for flow in self.flows if flow.state is State.FAILED)

    @property
    def is_over(self) -> bool:
        """Whether all flows are over."""
        return all(flow.state.is_over for flow in self.flows)

    def to_json(self) -> dict[str, Any]:
        """The status as plain values."""
        flows = [{**asdict(flow), "state": flow.state.value} for flow in self.flows]
        capacity = None if self.capacity is None else asdict(self.capacity)
        return {
            "name": self.name, "home": self.home, "pid": self.pid, "wall_ms": self.wall_ms, "flows": flows,
            "capacity": capacity, "protocol": self.protocol, "rollbacks": self.rollbacks,
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PipelineStatus:
        """The inverse of `to_json`. Raises `KeyError`, `ValueError` or `TypeError` for other values."""
        flows = tuple(
            FlowStatus(
                str(each["name"]), State(each["state"]), each["batch"], int(each["restarts"]), each["error"],
                tuple(each["starves_for"]), each.get("cores"), each.get("behind"),
                each.get("complete_to_ms"), each.get("away_since_ms"), tuple(each.get("waits_for", ())),
                each.get("epoch"), each.get("tentative_to_ms"), tuple(each.get("absent", ())),
                tuple(each.get("blocked", ())), tuple(HeldFor(**held) for held in each.get("held_for", ())),
                tuple(each.get("given_up", ())), tuple(each.get("servers", ())),
            )
            for each in fields["flows"]
        )  # fmt: skip
        found = fields.get("capacity")
        capacity = None if found is None else CapacityStatus(**{**found, "coming": tuple(found["coming"])})
        return cls(
            str(fields["name"]), str(fields["home"]), int(fields["pid"]), int(fields["wall_ms"]), flows, capacity,
            str(fields.get("protocol", "cec")), int(fields.get("rollbacks", 0)),
        )  # fmt: skip


def mark_waiting(
    graph: Graph, flows: Sequence[FlowStatus], held: Mapping[str, Collection[str]] = _NONE_HELD
) -> tuple[FlowStatus, ...]:
    """Marks the flows whose watermark stands still because a source upstream does not answer, or a channel lags.

    `held`: by the name of a flow that reads by buckets, the channels that hold it back.
    """
    away = {flow.name for flow in flows if flow.away_since_ms is not None and not flow.state.is_over}
    found = []
    for flow in flows:
        lags = frozenset(held.get(flow.name, ()))
        silent = frozenset() if flow.complete_to_ms is None else away & graph.upstream(flow.name) - {flow.name}
        found.append(flow if flow.state.is_over else replace(flow, waits_for=tuple(sorted(lags | silent))))
    return tuple(found)


def mark_given_up(flows: Sequence[FlowStatus], given_up: Mapping[str, Collection[str]]) -> list[FlowStatus]:
    """Marks the flows that run without an input for which they waited. `given_up`: by flow, those inputs."""
    return [
        flow if flow.state.is_over else replace(flow, given_up=tuple(sorted(given_up.get(flow.name, ()))))
        for flow in flows
    ]


def mark_starving(graph: Graph, flows: Sequence[FlowStatus]) -> tuple[FlowStatus, ...]:
    """Marks the running flows that failed flows feed."""
    failed = {flow.name for flow in flows if flow.state is State.FAILED}
    found = []
    for flow in flows:
        missing = tuple(sorted(failed & graph.upstream(flow.name) - {flow.name}))
        starves = missing and flow.state in (State.RUNNING, State.REPLAYING)
        found.append(replace(flow, state=State.STARVING, starves_for=missing) if starves else flow)
    return tuple(found)
