"""A process of a simulation: its state, its channel, what it has read of others', and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cec.protocols.messages import Checkpoint, Machine, Piggyback, Process
from spark_cec_lab.simulation.protocols.dataflow import Operator

Payload = tuple[tuple[float, int], ...]
"""Records and their sum, by how often they went around a cycle."""


@dataclass(frozen=True, slots=True)
class Message:
    payload: Payload
    created_s: float
    added: Piggyback
    size: float


Entry = Message | int
"""A message, or the marker of a round."""


@dataclass(slots=True)
class Saved:
    """What a checkpoint holds."""

    checkpoint: Checkpoint
    state: tuple[int, ...]
    kept_bytes: float
    position: int
    machine: Machine
    durable_s: float = 0.0


@dataclass(slots=True)
class Simulated:
    name: Process
    operator: Operator
    worker: int
    machine: Machine
    inputs: tuple[Process, ...]
    state: tuple[int, ...]
    kept_bytes: float = 0.0
    changed_bytes: float = 0.0  # of them, since the last checkpoint
    position: int = 0  # of a source: records read so far
    sent: int = 0
    log: list[Entry] = field(default_factory=list)
    at: dict[Process, int] = field(default_factory=dict)  # entries read of each input's log
    there: dict[Process, int] = field(default_factory=dict)  # entries that have arrived
    received: dict[Process, int] = field(default_factory=dict)
    blocked: set[Process] = field(default_factory=set)
    saved: list[Saved] = field(default_factory=list)
    due: bool = False  # a checkpoint
    queued: bool = False
    next_s: float = 0.0  # no batch before
    woken: bool = False  # then it is woken
    life: int = 0
