"""The protocols by name: the machine of each process, and the line to which a failure takes all processes back."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from spark_cec.protocols import communication_induced, coordinated, eventual, none, uncoordinated
from spark_cec.protocols.communication_induced import BCS, HMNR
from spark_cec.protocols.coordinated import CoordinatedMachine, refuse_cycles
from spark_cec.protocols.messages import Checkpoint, Line, Machine, Process
from spark_cec.protocols.uncoordinated import UncoordinatedMachine

Inputs = Mapping[Process, Collection[Process]]
"""The processes that each process reads."""


class Protocol(str, Enum):
    """How the flows of a pipeline checkpoint. `CIC` is HMNR; BCS is an earlier protocol of the same family."""

    CEC = "cec"
    COORDINATED = "coordinated"
    UNCOORDINATED = "uncoordinated"
    CIC = "communication-induced"
    BCS = "bcs"
    NONE = "none"

    @property
    def adds_to_messages(self) -> bool:
        """Whether a message carries data of the protocol, which its receiver must read."""
        return self in (Protocol.CIC, Protocol.BCS)

    @property
    def keeps_messages(self) -> bool:
        """Whether a message is durable before it is read. Else a failure takes back all that may have read it."""
        return self not in (Protocol.COORDINATED, Protocol.NONE)


class UnknownProtocol(ValueError):
    """No protocol has that name. The message has the nearest name, or all names."""

    def __init__(self, name: str) -> None:
        names = [each.value for each in Protocol]
        near = difflib.get_close_matches(name, names, 1)
        super().__init__(
            f"there is no protocol {name!r}: " + (f"did you mean {near[0]}?" if near else ", ".join(names))
        )


def parse_protocol(name: str) -> Protocol:
    """The protocol of that name. Raises `UnknownProtocol`."""
    try:
        return Protocol(name)
    except ValueError:
        raise UnknownProtocol(name) from None


def check_inputs(protocol: Protocol, inputs: Inputs) -> None:
    """Raises `CycleRefused` if the protocol cannot run on that graph."""
    if protocol is Protocol.COORDINATED:
        refuse_cycles(inputs)


def make_machine(protocol: Protocol, process: Process, inputs: Inputs, readers: Iterable[Process]) -> Machine:
    """Makes the machine of a process. `readers`: the processes that read its messages."""
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
    """The checkpoint to which each process goes back.

    `checkpoints`: the durable ones, oldest first; with CEC, the last batch. `now`: the present states. All protocols
    but CEC also take back processes that have not failed: their states are not durable, and in the literature they
    begin from checkpoints.
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
