"""Decides to which line of checkpoints the flows of a pipeline go back: facts in, orders out. Reads and writes nothing.

`pipeline.facts` reads the facts, and `pipeline.runs` carries out the orders. If no line can be reached, the decision
raises an error, whose message names the mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Process
from spark_cec.protocols.records import Record
from spark_cec.protocols.runtime import find_line
from spark_cec.recovery.reach import Reach


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """A flow that takes part in a protocol.

    `records`: its readable checkpoints, oldest first. `whole`: the batches of these checkpoints for which Spark's logs
    have all files. `reach`: the facts that bound a rollback of the flow.
    """

    records: Sequence[Record]
    whole: frozenset[int]
    reach: Reach

    @property
    def lost(self) -> list[Record]:
        """The checkpoints whose batch Spark has lost. A power loss can do that, because Spark syncs no file."""
        return [each for each in self.records if each.batch >= 0 and each.batch not in self.whole]

    def find(self, number: int) -> Record | None:
        """The checkpoint with that number; None if it is gone or unreadable."""
        return next((each for each in self.records if each.checkpoint.number == number), None)

    def find_obstacle(self, record: Record) -> str | None:
        """Why the flow cannot go back to this checkpoint; None if it can."""
        return self.reach.find_obstacle(record.batch, is_whole=record.batch in self.whole)


@dataclass(frozen=True, slots=True)
class BegunLine:
    """The line of an unfinished rollback: the number of each flow's checkpoint. `damage`: why its note is unreadable.
    """

    numbers: Mapping[Process, int] = field(default_factory=dict)
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class LineFacts:
    """All that decides to which line the flows go back. `begun` is None if every earlier rollback has ended."""

    protocol: Protocol
    flows: Mapping[Process, FlowFacts]
    begun: BegunLine | None = None


@dataclass(frozen=True, slots=True)
class LineOrders:
    """The checkpoint to which each flow goes back (`line`).

    `abandoned`: why the begun line is given up, None if it is not. `lost`: the checkpoints that were left out because
    Spark has lost their batches.
    """

    line: Mapping[Process, Record]
    abandoned: str | None = None
    lost: Mapping[Process, Sequence[Record]] = field(default_factory=dict)


def decide_line(facts: LineFacts) -> LineOrders:
    """The line of checkpoints to which all flows can go back.

    An unfinished rollback goes on if every flow can still reach its line, because some flows may be there already. Else
    the line is the newest one. Raises `NoLine` if the checkpoints make no line, and `UnsuitableCheckpoint` if a flow
    cannot reach the line.
    """
    abandoned = None
    if facts.begun is not None:
        abandoned = _find_obstacle_to_begun(facts, facts.begun)
        if abandoned is None:
            return LineOrders(_look_up(facts, facts.begun.numbers))
    lost = {name: flow.lost for name, flow in facts.flows.items()}
    usable = {
        # If Spark has lost all batches, keep them: the refusal of the line then names the files that are missing.
        name: [each for each in flow.records if each not in lost[name]] or flow.records
        for name, flow in facts.flows.items()
    }
    newest = find_line(facts.protocol, {name: [each.checkpoint for each in own] for name, own in usable.items()})
    line = _look_up(facts, {name: at.number for name, at in newest.items()})
    for name, flow in facts.flows.items():
        obstacle = flow.find_obstacle(line[name])
        if obstacle is not None:
            raise UnsuitableCheckpoint(obstacle)
    left_out = {name: each for name, each in lost.items() if each and len(each) < len(facts.flows[name].records)}
    return LineOrders(line, abandoned, left_out)


def _find_obstacle_to_begun(facts: LineFacts, begun: BegunLine) -> str | None:
    if begun.damage is not None:
        return begun.damage
    for name, flow in facts.flows.items():
        number = begun.numbers.get(name)
        if number is None:
            return f"it has no checkpoint of flow {name}"
        record = flow.find(number)
        if record is None:
            return f"checkpoint {number} of flow {name} cannot be read"
        obstacle = flow.find_obstacle(record)
        if obstacle is not None:
            return obstacle
    return None


def _look_up(facts: LineFacts, numbers: Mapping[Process, int]) -> dict[Process, Record]:
    """The records of a line, all of which the flows have."""
    return {
        name: next(each for each in flow.records if each.checkpoint.number == numbers[name])
        for name, flow in facts.flows.items()
    }
