"""The words of all protocols: processes, checkpoints, lines, the actions of a machine, and the base of all machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Process = str
"""The name of a flow, or of one of its instances."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The durable state of one process at one moment.

    `number` counts a process's checkpoints from 0, its beginning. `sent`: how many messages it had put into its
    channel, for all readers. `received`: how many messages of each input it had processed. `forced`: a message forced
    the checkpoint. `round`: the round of a coordinated protocol, 0 at the beginning.
    """

    process: Process
    number: int
    sent: int = 0
    received: Mapping[Process, int] = field(default_factory=dict)
    forced: bool = False
    round: int | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether this is the beginning of the process."""
        return self.number == 0


Line = Mapping[Process, Checkpoint]
"""A checkpoint of every process."""


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Make the state durable now, before the next message. `round`: of a coordinated protocol."""

    forced: bool = False
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Process no message of this sender until `Unblock`; its messages wait."""

    sender: Process


@dataclass(frozen=True, slots=True)
class Unblock:
    """Process all inputs again."""


@dataclass(frozen=True, slots=True)
class PassMarker:
    """Put the marker of a round into the channel, after all messages sent so far."""

    round: int


Action = TakeCheckpoint | Block | Unblock | PassMarker

Piggyback = Mapping[str, Any]
"""The data that a protocol adds to a message. As a `dict` it is JSON, whose size is the protocol's overhead."""


class Machine:
    """One process's part of a protocol; this one asks for no action.

    Each method answers the actions to carry out now, in this order. The caller does not report a finished action.
    """

    @property
    def round(self) -> int | None:
        """The last round for which the process has checkpointed; None if the protocol has no rounds."""
        return None

    def timer(self) -> Sequence[Action]:
        """The checkpoint interval has passed."""
        return ()

    def stop(self, run: int) -> Sequence[Action]:
        """All processes stop in good order, in the run of that number, so their last states are a line."""
        return self.timer()

    def sends(self) -> Piggyback:
        """A message goes to all readers; answers the data to add to it."""
        return {}

    def arrives(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """Messages, each with its sender, are about to be processed in one batch. Nothing is sent before its end."""
        actions = self.force(*messages)
        self.learn(*messages)
        return actions

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """The first half of `arrives`: answers the actions before these messages. The caller may ask again."""
        return ()

    def learn(self, *messages: tuple[Process, Piggyback]) -> None:
        """The second half of `arrives`: the messages are being processed."""

    def state(self) -> Piggyback:
        """The machine's state, for a checkpoint that was taken just now. As a `dict` it is JSON."""
        return {}

    def restore(self, state: Piggyback) -> None:
        """Takes the machine back to a checkpoint with this state. The beginning has no state to restore."""

    def marker(self, sender: Process, round_: int) -> Sequence[Action]:
        """The marker of a round has come, after all messages that the sender had sent before it.

        Raises `ValueError` if no such marker may come.
        """
        raise ValueError(f"a marker of round {round_} from {sender}: this protocol has none")


def orphans(line: Line) -> Iterator[tuple[Process, Process]]:
    """The pairs (sender, receiver) with messages that the line has as received, and not as sent.

    A message that was sent and not received is no orphan: the channel is durable, and still has it.
    """
    for receiver, at in line.items():
        for sender, count in at.received.items():
            if count > line[sender].sent:
                yield sender, receiver


def is_consistent(line: Line) -> bool:
    """Whether the line has no orphan."""
    return next(orphans(line), None) is None
