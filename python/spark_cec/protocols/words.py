"""What all protocols speak of: processes, messages, checkpoints, and what a machine asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Process = str
"""The name of a flow, or of one of its instances."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of one process at one moment, durable.

    `number` counts a process's checkpoints from 0, which is its beginning. `sent`: how many messages it had put into
    its channel; all its readers read that. `received`: how many messages of each process that it reads it had
    processed. `forced`: a message would not have it otherwise. `round`: of a coordinated protocol, 0 is the beginning.
    """

    process: Process
    number: int
    sent: int = 0
    received: Mapping[Process, int] = field(default_factory=dict)
    forced: bool = False
    round: int | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether nothing has happened before it."""
        return self.number == 0


Line = Mapping[Process, Checkpoint]
"""A checkpoint of every process."""


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Make the state durable now, before anything else is processed. `round` of a coordinated protocol."""

    forced: bool = False
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Process no message of this process until `Unblock`: what comes of it waits."""

    sender: Process


@dataclass(frozen=True, slots=True)
class Unblock:
    """All inputs are processed again."""


@dataclass(frozen=True, slots=True)
class PassMarker:
    """Put the marker of a round into the channel, behind all messages that were sent so far."""

    round: int


Action = TakeCheckpoint | Block | Unblock | PassMarker

Piggyback = Mapping[str, Any]
"""What a protocol adds to a message; as a `dict` it is JSON. Its size there is the protocol's overhead."""


class Machine:
    """One process's part of a protocol; this one asks for nothing, ever.

    Every answer is what to do now, in this order; an action done needs no word.
    """

    @property
    def round(self) -> int | None:
        """The last one that it has checkpointed for; None where there are no rounds."""
        return None

    def timer(self) -> Sequence[Action]:
        """The checkpoint interval has passed."""
        return ()

    def stop(self, run: int) -> Sequence[Action]:
        """All processes are stopped in good order, in that run of them: the states that they leave are a line."""
        return self.timer()

    def sends(self) -> Piggyback:
        """A message goes to all readers: what to add to it."""
        return {}

    def arrives(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """Messages, each with its sender, are about to be processed in one batch: nothing is sent before its end."""
        actions = self.force(*messages)
        self.learn(*messages)
        return actions

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """The first half of `arrives`: what is to be done before these messages are processed. May be asked again."""
        return ()

    def learn(self, *messages: tuple[Process, Piggyback]) -> None:
        """The second half: they are being processed."""

    def state(self) -> Piggyback:
        """What a checkpoint that was taken just now keeps of the machine; as a `dict` it is JSON."""
        return {}

    def restore(self, state: Piggyback) -> None:
        """The process is again as it was at the checkpoint that has kept this; of its beginning nothing is kept."""

    def marker(self, sender: Process, round_: int) -> Sequence[Action]:
        """The marker of a round has come behind all messages that the sender sent before it.

        `ValueError` if none may come now, or ever.
        """
        raise ValueError(f"a marker of round {round_} from {sender}: this protocol has none")


def orphans(line: Line) -> Iterator[tuple[Process, Process]]:
    """Where the line is inconsistent: (sender, receiver) of messages that were received, and not sent.

    What was sent and not received is in the channel, which is durable: nothing of it is dropped.
    """
    for receiver, at in line.items():
        for sender, count in at.received.items():
            if count > line[sender].sent:
                yield sender, receiver


def is_consistent(line: Line) -> bool:
    """Whether no message of the line is an orphan."""
    return next(orphans(line), None) is None
