"""The protocols by name: the machine of each process, and the line that a failure takes everybody back to."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from spark_cec.protocols import communication_induced, coordinated, eventual, none, uncoordinated
from spark_cec.protocols.communication_induced import BCS, HMNR
from spark_cec.protocols.coordinated import CoordinatedMachine, refuse_cycles
from spark_cec.protocols.uncoordinated import UncoordinatedMachine
from spark_cec.protocols.words import Checkpoint, Line, Machine, Process

Inputs = Mapping[Process, Collection[Process]]
"""What each process reads."""


class Protocol(str, Enum):
    """How the flows of a pipeline checkpoint. `CIC` is HMNR; BCS is what came before it."""

    CEC = "cec"
    COORDINATED = "coordinated"
    UNCOORDINATED = "uncoordinated"
    CIC = "communication-induced"
    BCS = "bcs"
    NONE = "none"

    @property
    def adds_to_messages(self) -> bool:
        """Whether a message carries something of the protocol's, which its receiver has to read."""
        return self in (Protocol.CIC, Protocol.BCS)

    @property
    def keeps_messages(self) -> bool:
        """Whether what is sent is durable before it is read: else a failure takes back all who may have read it."""
        return self not in (Protocol.COORDINATED, Protocol.NONE)


class UnknownProtocol(ValueError):
    """No protocol has that name: the message has the nearest one, or all."""

    def __init__(self, name: str) -> None:
        names = [each.value for each in Protocol]
        near = difflib.get_close_matches(name, names, 1)
        super().__init__(
            f"there is no protocol {name!r}: " + (f"did you mean {near[0]}?" if near else ", ".join(names))
        )


def protocol_of(name: str) -> Protocol:
    """The protocol of that name. Raises `UnknownProtocol`."""
    try:
        return Protocol(name)
    except ValueError:
        raise UnknownProtocol(name) from None


def check_inputs(protocol: Protocol, inputs: Inputs) -> None:
    """Raises `CycleRefused` where the protocol cannot be had on that graph."""
    if protocol is Protocol.COORDINATED:
        refuse_cycles(inputs)


def machine_of(protocol: Protocol, process: Process, inputs: Inputs, readers: Iterable[Process]) -> Machine:
    """A process's part. `readers`: to whom its messages go."""
    match protocol:
        case Protocol.COORDINATED:
            return CoordinatedMachine(inputs[process])
        case Protocol.UNCOORDINATED:
            return UncoordinatedMachine()
        case Protocol.CIC:
            return HMNR(process, inputs, readers)
        case Protocol.BCS:
            return BCS()
        case Protocol.CEC:
            return eventual.EventualMachine()
        case Protocol.NONE:
            return none.NoMachine()


def recovery_line(
    protocol: Protocol, checkpoints: Mapping[Process, Sequence[Checkpoint]], now: Mapping[Process, Checkpoint],
    failed: Collection[Process],
) -> Line:  # fmt: skip
    """What every process goes back to. `checkpoints`: the durable ones, oldest first; with CEC, the last batch.

    `now`: the present states. All but CEC take back processes that have not failed, too: their states are not durable,
    and the literature has them begin from checkpoints.
    """
    match protocol:
        case Protocol.COORDINATED:
            return coordinated.recovery_line(checkpoints)
        case Protocol.NONE:
            return none.recovery_line(checkpoints)
        case Protocol.CEC:
            return eventual.recovery_line(now, {process: own[-1] for process, own in checkpoints.items()}, failed)
        case Protocol.UNCOORDINATED:
            return uncoordinated.recovery_line(checkpoints)
        case Protocol.CIC | Protocol.BCS:
            return communication_induced.recovery_line(checkpoints)
