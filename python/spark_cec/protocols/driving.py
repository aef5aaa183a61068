"""One run of a pipeline's flows under a protocol, from one line to the next failure: asks the machines, does no I/O.

A flow's batch is a message, with all that its source or its inputs had for it. What a machine wants is done between two
batches of the flow: then no store is ahead of what Spark has committed. A marker is a place in a channel, behind a
batch; it lives as long as the run, since whoever would need it again goes back behind it. The machines are the same as
in the simulation (`spark_cec_lab/simulation/protocols`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_cec.protocols.choose import Protocol, machine_of, recovery_line
from spark_cec.protocols.records import Record
from spark_cec.protocols.spec import Spec
from spark_cec.protocols.words import (
    Action,
    Block,
    Checkpoint,
    Line,
    PassMarker,
    Piggyback,
    Process,
    TakeCheckpoint,
    Unblock,
)

Added = tuple[Process, Piggyback]
"""A message: its sender, and what the protocol has added to it."""


@dataclass(frozen=True, slots=True)
class Coming:
    """What the next batch of a flow will read of a channel: messages behind `after`, up to `last`.

    `added`: what the protocol has added to them, by batch. `up_to`: that it might have read no further, at a marker.
    `source`: tells the sources of a query apart, of which several may read one channel, and not be equally far.
    """

    after: int
    last: int
    added: Mapping[int, Piggyback] = field(default_factory=dict)
    up_to: int | None = None
    source: str = ""


@dataclass(slots=True)
class _Source:
    """A source of a flow: the last batch that it has `read`, and will have, with the next batch.

    `at_marker`: that there is nothing to read before the next marker.
    """

    sender: Process
    read: int
    next: int
    at_marker: bool = False


class DrivenFlow:
    """One flow: its machine, how far it has read, and what is to be done before its next batch.

    For one thread at a time. `name`; `batch`: the last one that it has run, -1 before the first; `markers`: behind
    which of its batches the marker of a round is.
    """

    def __init__(self, name: Process, drive: Drive, begin: Record) -> None:
        """The flow is as `begin` has left it."""
        spec = drive.spec
        self.name = name
        self.batch = begin.batch
        self.markers: dict[int, int] = {}
        self._drive = drive
        self._machine = machine_of(spec.protocol, name, spec.inputs, spec.readers(name))
        if begin.machine is not None:
            self._machine.restore(begin.machine)
        self._number = begin.checkpoint.number
        self._taken_at = begin.batch
        self._is_repeated = False  # whether two checkpoints are of the batch that the last one is of
        self._has_read = {each: begin.checkpoint.received.get(each, 0) - 1 for each in spec.inputs[name]}
        self._added: dict[Process, dict[int, Piggyback]] = {each: {} for each in self._has_read}
        self._sources: dict[str, _Source] = {}
        self._asked: set[str] = set()  # sources, for the next batch
        self._knows_sources = False
        self._actions: deque[Action] = deque()
        self._timer_s = drive.clock() + spec.interval_s
        self._due_s = 0.0

    @property
    def reads(self) -> Mapping[Process, int]:
        """The last batch that it has read of each input, -1 for none."""
        return dict(self._has_read)

    @property
    def round(self) -> int:
        """The last one that it has checkpointed for, where there are any."""
        return self._machine.round or 0

    def has_completed(self, round_: int) -> bool:
        """Whether its checkpoint for that round is recorded."""
        is_owed = any(isinstance(each, TakeCheckpoint) for each in self._actions)
        return self.round > round_ or (self.round == round_ and not is_owed)

    def end_of(self, sender: Process) -> int | None:
        """Behind which batch of a channel it may not read now; None: it may read all."""
        found = None if self._machine.round is None else self._drive.flow(sender)
        return None if found is None else found.markers.get(self.round + 1)

    def will_read(self, sender: Process, coming: Coming) -> None:
        """Spark plans a batch, and asks a source what there is: it will read that, or more, if it asks again.

        What one of several sources of a channel has read is received. `ValueError` if the source is elsewhere than the
        last batch has left it.
        """
        if sender not in self._has_read:
            return
        known, source = self._has_read[sender], self._sources.get(coming.source)
        if (source.read if source else coming.after) != coming.after or (coming.after > known >= 0):
            where = source.read if source else known
            raise ValueError(f"flow {self.name} reads {sender} behind batch {coming.after}, and has read up to {where}")
        if coming.source in self._asked:  # for the next batch now: all of them were asked for this one
            self._asked.clear()
            self._knows_sources = True
        self._asked.add(coming.source)
        # Batches without rows may wait for one with some, which is behind the marker.
        at_marker = coming.last == coming.after and coming.up_to is not None
        self._sources[coming.source] = _Source(sender, coming.after, coming.last, at_marker)
        known = self._has_read[sender] = max(coming.after, known)
        self._added[sender].update({batch: each for batch, each in coming.added.items() if batch > known})
        if not self._actions:
            self._actions.extend(self._machine.force(*self._messages()))

    def is_due(self, batch: int) -> bool:
        """Whether a checkpoint is to be taken now, behind `batch`, which the flow has committed."""
        self.has_run(batch)
        if not self._actions:
            self._ask_timer()
        self._meet_markers()
        self._go_on()
        if self._actions and not self._due_s:
            self._due_s = self._drive.clock()
        return bool(self._actions)

    def is_due_at_the_end(self, batch: int) -> bool:
        """The same where the flow is stopped in good order; not behind a batch that it has sent, and not committed."""
        self.has_run(batch)
        if self.batch > batch:
            return False
        changed = self.batch > self._taken_at or self._machine.round is not None
        self._actions = deque(self._machine.stop(self._drive.spec.number) if changed else ())
        self._due_s = self._drive.clock()
        return bool(self._actions)

    def taken(self, wall_ms: int) -> Record:
        """The checkpoint that was due is durable: answers it, to be recorded before anything else happens."""
        action = self._actions[0]
        assert isinstance(action, TakeCheckpoint)
        received = {sender: batch + 1 for sender, batch in self._has_read.items()}
        at = Checkpoint(self.name, self._number + 1, self.batch + 1, received, action.forced, action.round)
        took_ms = 1000 * (self._drive.clock() - self._due_s)
        return Record(at, self.batch, dict(self._machine.state()), wall_ms, took_ms)

    def go_on(self) -> None:
        """The checkpoint is recorded."""
        self._actions.popleft()
        self._number += 1
        self._is_repeated = self.batch == self._taken_at
        self._taken_at, self._due_s = self.batch, 0.0
        self._go_on()

    def has_run(self, batch: int) -> None:
        """The flow has run that batch, if that is news: what it was to read it has read."""
        if batch <= self.batch:
            return
        self.batch = batch
        self._machine.learn(*self._messages())
        for source in self._sources.values():
            source.read = source.next
            self._has_read[source.sender] = max(self._has_read[source.sender], source.read)
        for each in self._added.values():
            each.clear()

    def sends(self) -> Piggyback:
        """The last batch goes to all readers: what to add to it, JSON."""
        return dict(self._machine.sends()) if self._drive.spec.readers(self.name) else {}

    def _messages(self) -> list[Added]:
        return [(sender, each) for sender, found in self._added.items() for each in found.values()]

    def _ask_timer(self) -> None:
        now = self._drive.clock()
        if now < self._timer_s or self._drive.is_under_way(self._machine.round):
            return
        self._timer_s = now + self._drive.spec.interval_s
        # A round goes through all flows, also through those that had nothing to do. Where there are none, a flow that
        # has come to rest takes one more: the line before the newest one, which has no checkpoint of that, would have
        # this flow as it was before its last messages, and whoever has received them as it was then, for ever.
        has_news = self.batch > self._taken_at or (self.batch >= 0 and not self._is_repeated)
        if self._machine.round is not None or has_news:
            self._actions.extend(self._machine.timer())

    def _meet_markers(self) -> None:
        """Takes in the markers that it has come to."""
        for sender in self._has_read:
            end = self.end_of(sender)
            if self._actions or end is None or sender in self._drive.blocked(self.name):
                continue
            sources = [each for each in self._sources.values() if each.sender == sender]
            if self._knows_sources and all(each.at_marker or each.read >= end for each in sources):
                self._actions.extend(self._machine.marker(sender, self.round + 1))
                self._go_on()

    def _go_on(self) -> None:
        """Does what needs no checkpoint before it."""
        while self._actions and not isinstance(self._actions[0], TakeCheckpoint):
            match self._actions.popleft():
                case PassMarker(round_):
                    self.markers[round_] = self.batch
                    readers = self._drive.spec.readers(self.name)
                    needed = self._drive.oldest_round(readers) if readers else round_
                    self.markers = {each: behind for each, behind in self.markers.items() if each > needed}
                case Block(sender):
                    self._drive.blocked(self.name).add(sender)
                case Unblock():
                    self._drive.blocked(self.name).clear()
                    for source in self._sources.values():
                        source.at_marker = False


class Drive:
    """All flows of one run. `spec`; `clock` in seconds."""

    def __init__(self, spec: Spec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.clock = clock
        self._flows: dict[Process, DrivenFlow] = {}
        self._blocked: dict[Process, set[Process]] = {name: set() for name in spec.inputs}

    def begin(self, name: Process, at: Record) -> DrivenFlow:
        """A flow starts from a checkpoint of the line."""
        self._flows[name] = DrivenFlow(name, self, at)
        return self._flows[name]

    def flow(self, name: Process) -> DrivenFlow | None:
        """None while it has not begun."""
        return self._flows.get(name)

    def oldest_round(self, names: Iterable[Process]) -> int:
        """The least of the last rounds that these flows have checkpointed for; 0 where one has not begun."""
        return min((each.round if (each := self.flow(name)) is not None else 0 for name in names), default=0)

    def is_under_way(self, round_: int | None) -> bool:
        """Whether some flow has yet to checkpoint for that round: the next one waits, else markers would pile up."""
        flows = [self.flow(name) for name in self.spec.inputs]
        return round_ is not None and not all(each is not None and each.has_completed(round_) for each in flows)

    def blocked(self, name: Process) -> set[Process]:
        """The inputs of which a flow processes nothing now."""
        return self._blocked[name]


def line_of(protocol: Protocol, checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> Line:
    """What all flows would go back to now. With CEC that is not asked: each comes back by itself.

    `NoLine` where checkpoints that should be there are not.
    """
    return recovery_line(protocol, checkpoints, {}, ())


def line_before(protocol: Protocol, checkpoints: Mapping[Process, Sequence[Checkpoint]], line: Line) -> Line:
    """The newest line without any checkpoint of `line`, but for beginnings: should what that rests on be damaged.

    `NoLine` where one is damaged already.
    """
    older = {
        name: [each for each in own if each.number < line[name].number] or own[:1] for name, own in checkpoints.items()
    }
    return line_of(protocol, older)
