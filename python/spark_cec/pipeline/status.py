"""What a pipeline is doing, flow by flow: what the driver writes into its home, and anybody may read there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from spark_cec.pipeline.graph import Graph


class State(str, Enum):
    """Of a flow.

    `REPLAYING`: it runs, and is not yet where it was before it was started again. `WAITING`: for executors, see
    `capacity`. `STARVING`: it runs, but one that feeds it has failed. `ENDED`: its trigger was for what is there.
    """

    STARTING = "starting"
    RUNNING = "running"
    REPLAYING = "replaying"
    WAITING = "waiting"
    RESTARTING = "restarting"
    STARVING = "starving"
    FAILED = "failed"
    ENDED = "ended"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of the flow by itself."""
        return self in (State.FAILED, State.ENDED, State.STOPPED)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow: its newest batch (None before the first), how often it was started again, and the newest error.

    `cores` is what it keeps busy, a mean of the last half minute; `behind`, how many batches of its inputs it left for
    later, None before its first batch and where that is not told.
    """

    name: str
    state: State
    batch: int | None = None
    restarts: int = 0
    error: str | None = None
    starves_for: tuple[str, ...] = ()
    cores: float | None = None
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class CapacityStatus:
    """The executors, the cores that they have, and those that all flows want.

    `recovering_s`: for how long flows have been waiting for executors, None if none does; `coming`: the sinks that one
    more executor brings back.
    """

    executors: int
    cores: int
    wanted: float
    recovering_s: float | None = None
    coming: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The whole; `wall_ms` is when this was so, `pid` the process of the driver.

    `protocol` by which it is checkpointed, and how often this driver has taken all flows back to a line: `rollbacks`.
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
        """The flows that will not be started again."""
        return tuple(flow for flow in self.flows if flow.state is State.FAILED)

    @property
    def is_over(self) -> bool:
        """Whether no flow runs, nor will."""
        return all(flow.state.is_over for flow in self.flows)

    def to_json(self) -> dict[str, Any]:
        """Of plain values."""
        flows = [{**asdict(flow), "state": flow.state.value} for flow in self.flows]
        capacity = None if self.capacity is None else asdict(self.capacity)
        return {
            "name": self.name, "home": self.home, "pid": self.pid, "wall_ms": self.wall_ms, "flows": flows,
            "capacity": capacity, "protocol": self.protocol, "rollbacks": self.rollbacks,
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PipelineStatus:
        """The inverse of `to_json`. Raises `KeyError`, `ValueError` or `TypeError` for what is none."""
        flows = tuple(
            FlowStatus(
                str(each["name"]), State(each["state"]), each["batch"], int(each["restarts"]), each["error"],
                tuple(each["starves_for"]), each.get("cores"), each.get("behind"),
            )
            for each in fields["flows"]
        )  # fmt: skip
        told = fields.get("capacity")
        capacity = None if told is None else CapacityStatus(**{**told, "coming": tuple(told["coming"])})
        return cls(
            str(fields["name"]), str(fields["home"]), int(fields["pid"]), int(fields["wall_ms"]), flows, capacity,
            str(fields.get("protocol", "cec")), int(fields.get("rollbacks", 0)),
        )  # fmt: skip


def starving(graph: Graph, flows: Sequence[FlowStatus]) -> tuple[FlowStatus, ...]:
    """The same flows; those that run and are fed by failed ones starve for these."""
    failed = {flow.name for flow in flows if flow.state is State.FAILED}
    found = []
    for flow in flows:
        missing = tuple(sorted(failed & graph.upstream(flow.name) - {flow.name}))
        starves = missing and flow.state in (State.RUNNING, State.REPLAYING)
        found.append(replace(flow, state=State.STARVING, starves_for=missing) if starves else flow)
    return tuple(found)
