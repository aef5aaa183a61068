"""Random histories of processes that send messages to one another, under any of the protocols.

Channels are durable and in order; a message is one step of its sender, and goes to all its readers.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from spark_cec.protocols.messages import (
    Block,
    Checkpoint,
    Line,
    Machine,
    PassMarker,
    Piggyback,
    Process,
    TakeCheckpoint,
    Unblock,
    is_consistent,
)

Inputs = Mapping[Process, tuple[Process, ...]]
"""What each process reads."""


@dataclass
class Running:
    """One process as it is now."""

    machine: Machine
    sent: int = 0
    received: dict[Process, int] = field(default_factory=dict)
    blocked: set[Process] = field(default_factory=set)
    checkpoints: list[Checkpoint] = field(default_factory=list)


Item = tuple[str, Piggyback | int]
"""A message with what was added to it, or the marker of a round."""


class History:
    """Processes and the channels between them. `is_json`: messages go through manifests, as they do on Spark."""

    def __init__(
        self, inputs: Inputs, machine: Callable[[Process], Machine], rng: random.Random, is_json: bool = False
    ) -> None:
        self.inputs = inputs
        self.is_json = is_json
        self.readers = {p: [r for r, read in inputs.items() if p in read] for p in inputs}
        self.running = {p: Running(machine(p), received=dict.fromkeys(inputs[p], 0)) for p in inputs}
        self.channels: dict[tuple[Process, Process], deque[Item]] = {
            (sender, reader): deque() for reader, read in inputs.items() for sender in read
        }
        self._rng = rng
        for process, running in self.running.items():
            running.checkpoints.append(Checkpoint(process, 0))

    def state(self, process: Process) -> Checkpoint:
        """As it is now, as if it were a checkpoint."""
        running = self.running[process]
        return Checkpoint(process, len(running.checkpoints), running.sent, dict(running.received))

    def states(self) -> dict[Process, Checkpoint]:
        """All of them."""
        return {process: self.state(process) for process in self.running}

    def checkpoints(self) -> dict[Process, list[Checkpoint]]:
        """Of each process, oldest first."""
        return {process: list(running.checkpoints) for process, running in self.running.items()}

    def step(self, checkpoints: float = 0.15) -> None:
        """One thing happens: a checkpoint's time has come, a message is processed, or one is sent."""
        process = self._rng.choice(list(self.running))
        if self._rng.random() < checkpoints:
            self.do(process, self.running[process].machine.timer())
            return
        blocked = self.running[process].blocked
        ready = [s for s in self.inputs[process] if s not in blocked and self.channels[s, process]]
        if ready:
            self.process(process, *(self._rng.choice(ready) for _ in range(self._rng.choice((1, 1, 2, 4)))))
        if not self.inputs[process] or (ready and self._rng.random() < 0.7) or self._rng.random() < 0.1:
            self.send(process)

    def send(self, process: Process) -> None:
        """A message to all readers."""
        self.running[process].sent += 1
        added = self.running[process].machine.sends()
        if self.is_json:
            added = json.loads(json.dumps(dict(added)))
        for reader in self.readers[process]:
            self.channels[process, reader].append(("message", added))

    def process(self, process: Process, *senders: Process) -> None:
        """The oldest item of a channel, or, in one batch, those of several; a marker, or what is behind it, alone."""
        running = self.running[process]
        messages: list[tuple[Process, Piggyback]] = []
        for sender in senders:
            items = self.channels[sender, process]
            if items and items[0][0] == "message":
                item = items.popleft()[1]
                assert not isinstance(item, int)
                messages.append((sender, item))
            elif items and not messages:
                marker = items.popleft()[1]
                assert isinstance(marker, int)
                self.do(process, running.machine.marker(sender, marker))
                return
        if messages:
            self.do(process, running.machine.arrives(*messages))
        for sender, _ in messages:
            running.received[sender] += 1

    def do(self, process: Process, actions: Sequence[object]) -> None:
        """What a machine asks for."""
        for action in actions:
            if isinstance(action, TakeCheckpoint):
                self._checkpoint(process, action)
            elif isinstance(action, Block):
                self.running[process].blocked.add(action.sender)
            elif isinstance(action, Unblock):
                self.running[process].blocked.clear()
            elif isinstance(action, PassMarker):
                for reader in self.readers[process]:
                    self.channels[process, reader].append(("marker", action.round))

    def _checkpoint(self, process: Process, action: TakeCheckpoint) -> None:
        running = self.running[process]
        number = len(running.checkpoints)
        running.checkpoints.append(
            Checkpoint(process, number, running.sent, dict(running.received), action.forced, action.round)
        )


def random_inputs(rng: random.Random, processes: int, cycles: bool) -> Inputs:
    """A graph of so many processes; without cycles each reads earlier ones only."""
    names = [f"p{n}" for n in range(processes)]
    found: dict[Process, tuple[Process, ...]] = {}
    for n, name in enumerate(names):
        others = names if cycles else names[:n]
        found[name] = tuple(each for each in others if rng.random() < (0.4 if cycles else 0.6))
        if n and not found[name]:
            found[name] = (names[n - 1],)
    return found


def all_lines(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> list[Line]:
    """Every consistent line there is: the slow way to know."""
    chosen = product(*checkpoints.values())
    lines = [dict(zip(checkpoints, each, strict=True)) for each in chosen]
    return [line for line in lines if is_consistent(line)]


def newest_of(lines: Sequence[Line]) -> Line:
    """The line that is as new as any other one, in every process."""
    newest = {process: max((line[process] for line in lines), key=lambda c: c.number) for process in lines[0]}
    assert newest in lines, "consistent lines have a newest one"
    return newest
