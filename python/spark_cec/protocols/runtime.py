"""One run of a pipeline's flows under a protocol, from one line to the next failure: asks the machines, does no I/O.

A flow's batch is a message. The actions of a machine are carried out between two batches of the flow, because then no
store is ahead of Spark's commits. A marker is a place in a channel, after a batch. It lives as long as the run, as a
rollback goes back before it. The simulation (`spark_cec_lab/simulation/protocols`) runs the same machines.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_cec.protocols.choose import Protocol, make_machine, recovery_line
from spark_cec.protocols.messages import (
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
from spark_cec.protocols.records import Record
from spark_cec.protocols.spec import Spec

Added = tuple[Process, Piggyback]
"""A message: its sender, and the data that the protocol has added to it."""


@dataclass(frozen=True, slots=True)
class Coming:
    """The messages of a channel that a flow's next batch will read: those after `after`, up to `last`.

    `added`: the protocol's data in them, by batch. `up_to`: the marker that ended the read, None without a marker.
    `source`: the source of the query; several sources may read one channel, each at its own place.
    """

    after: int
    last: int
    added: Mapping[int, Piggyback] = field(default_factory=dict)
    up_to: int | None = None
    source: str = ""


@dataclass(slots=True)
class _Source:
    """A source of a flow: the last batch that it has `read`, and will have read with the next batch (`next`).

    `at_marker`: it has nothing to read before the next marker.
    """

    sender: Process
    read: int
    next: int
    at_marker: bool = False


class FlowRuntime:
    """One flow: its machine, its reads, and the actions before its next batch. For one thread at a time.

    `name`. `batch`: the last batch that it has run, -1 before the first. `markers`: by round, the batch after which
    the flow has put its marker.
    """

    def __init__(self, name: Process, runtime: ProtocolRuntime, begin: Record) -> None:
        """Begins a flow at the checkpoint `begin`."""
        spec = runtime.spec
        self.name = name
        self.batch = begin.batch
        self.markers: dict[int, int] = {}
        self._runtime = runtime
        self._machine = make_machine(spec.protocol, name, spec.inputs, spec.readers(name))
        if begin.machine is not None:
            self._machine.restore(begin.machine)
        self._number = begin.checkpoint.number
        self._taken_at = begin.batch
        self._is_repeated = False  # whether the last two checkpoints are after the same batch
        self._has_read = {each: begin.checkpoint.received.get(each, 0) - 1 for each in spec.inputs[name]}
        self._added: dict[Process, dict[int, Piggyback]] = {each: {} for each in self._has_read}
        self._sources: dict[str, _Source] = {}
        self._asked: set[str] = set()  # sources that Spark has asked for the next batch
        self._knows_sources = False
        self._actions: deque[Action] = deque()
        self._timer_s = runtime.clock() + spec.interval_s
        self._due_s = 0.0

    @property
    def reads(self) -> Mapping[Process, int]:
        """The last batch that it has read of each input, -1 for none."""
        return dict(self._has_read)

    @property
    def round(self) -> int:
        """The last round for which it has checkpointed, 0 if the protocol has no rounds."""
        return self._machine.round or 0

    def has_completed(self, round_: int) -> bool:
        """Whether its checkpoint for that round is recorded."""
        is_due = any(isinstance(each, TakeCheckpoint) for each in self._actions)
        return self.round > round_ or (self.round == round_ and not is_due)

    def end_of(self, sender: Process) -> int | None:
        """The last batch of a channel that it may read now; None if it may read all."""
        found = None if self._machine.round is None else self._runtime.flow(sender)
        return None if found is None else found.markers.get(self.round + 1)

    def will_read(self, sender: Process, coming: Coming) -> None:
        """Spark plans a batch, and asks a source for its newest offset. The batch reads up to there.

        If Spark asks the source again, the new answer counts. A message counts as received when one of several sources
        of a channel has read it. Raises `ValueError` if the source is not where the last batch left it.
        """
        if sender not in self._has_read:
            return
        known, source = self._has_read[sender], self._sources.get(coming.source)
        if (source.read if source else coming.after) != coming.after or (coming.after > known >= 0):
            where = source.read if source else known
            raise ValueError(f"flow {self.name} reads {sender} after batch {coming.after}, and has read up to {where}")
        if coming.source in self._asked:  # Spark has asked all sources once, and now asks again
            self._asked.clear()
            self._knows_sources = True
        self._asked.add(coming.source)
        # Batches without rows may wait for a batch with rows after the marker.
        at_marker = coming.last == coming.after and coming.up_to is not None
        self._sources[coming.source] = _Source(sender, coming.after, coming.last, at_marker)
        known = self._has_read[sender] = max(coming.after, known)
        self._added[sender].update({batch: each for batch, each in coming.added.items() if batch > known})
        if not self._actions:
            self._actions.extend(self._machine.force(*self._messages()))

    def is_due(self, batch: int) -> bool:
        """Whether a checkpoint is due now, after `batch`, the flow's last committed one."""
        self.has_run(batch)
        if not self._actions:
            self._ask_timer()
        self._meet_markers()
        self._go_on()
        if self._actions and not self._due_s:
            self._due_s = self._runtime.clock()
        return bool(self._actions)

    def is_due_at_the_end(self, batch: int) -> bool:
        """As `is_due`, if the flow stops in good order. False if the flow has sent a batch and not committed it."""
        self.has_run(batch)
        if self.batch > batch:
            return False
        changed = self.batch > self._taken_at or self._machine.round is not None
        self._actions = deque(self._machine.stop(self._runtime.spec.number) if changed else ())
        self._due_s = self._runtime.clock()
        return bool(self._actions)

    def taken(self, wall_ms: int) -> Record:
        """Makes the record of the due checkpoint, which is durable. The caller records it before the next step."""
        action = self._actions[0]
        assert isinstance(action, TakeCheckpoint)
        received = {sender: batch + 1 for sender, batch in self._has_read.items()}
        at = Checkpoint(self.name, self._number + 1, self.batch + 1, received, action.forced, action.round)
        took_ms = 1000 * (self._runtime.clock() - self._due_s)
        return Record(at, self.batch, dict(self._machine.state()), wall_ms, took_ms)

    def go_on(self) -> None:
        """The caller has recorded the checkpoint: goes on with the next actions."""
        self._actions.popleft()
        self._number += 1
        self._is_repeated = self.batch == self._taken_at
        self._taken_at, self._due_s = self.batch, 0.0
        self._go_on()

    def has_run(self, batch: int) -> None:
        """The flow has run that batch, so it has read the coming messages. Does nothing for a known batch."""
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
        """The data to add to the last batch, which goes to all readers, as JSON."""
        return dict(self._machine.sends()) if self._runtime.spec.readers(self.name) else {}

    def _messages(self) -> list[Added]:
        return [(sender, each) for sender, found in self._added.items() for each in found.values()]

    def _ask_timer(self) -> None:
        now = self._runtime.clock()
        if now < self._timer_s or self._runtime.is_under_way(self._machine.round):
            return
        self._timer_s = now + self._runtime.spec.interval_s
        # A round goes through all flows, also through idle ones. Without rounds an idle flow takes one more checkpoint.
        # The line before the newest one has no checkpoint of the newest. So without one more it would keep this flow
        # before its last messages for ever, and with it all their receivers.
        has_news = self.batch > self._taken_at or (self.batch >= 0 and not self._is_repeated)
        if self._machine.round is not None or has_news:
            self._actions.extend(self._machine.timer())

    def _meet_markers(self) -> None:
        """Gives the machine the markers that the flow has reached."""
        for sender in self._has_read:
            end = self.end_of(sender)
            if self._actions or end is None or sender in self._runtime.blocked(self.name):
                continue
            sources = [each for each in self._sources.values() if each.sender == sender]
            if self._knows_sources and all(each.at_marker or each.read >= end for each in sources):
                self._actions.extend(self._machine.marker(sender, self.round + 1))
                self._go_on()

    def _go_on(self) -> None:
        """Carries out the actions up to the next checkpoint."""
        while self._actions and not isinstance(self._actions[0], TakeCheckpoint):
            match self._actions.popleft():
                case PassMarker(round_):
                    self.markers[round_] = self.batch
                    readers = self._runtime.spec.readers(self.name)
                    needed = self._runtime.oldest_round(readers) if readers else round_
                    self.markers = {each: behind for each, behind in self.markers.items() if each > needed}
                case Block(sender):
                    self._runtime.blocked(self.name).add(sender)
                case Unblock():
                    self._runtime.blocked(self.name).clear()
                    for source in self._sources.values():
                        source.at_marker = False


class ProtocolRuntime:
    """All flows of one run. Attributes: `spec`; `clock`, in seconds."""

    def __init__(self, spec: Spec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.clock = clock
        self._flows: dict[Process, FlowRuntime] = {}
        self._blocked: dict[Process, set[Process]] = {name: set() for name in spec.inputs}

    def begin(self, name: Process, at: Record) -> FlowRuntime:
        """Begins a flow at its checkpoint of the line."""
        self._flows[name] = FlowRuntime(name, self, at)
        return self._flows[name]

    def flow(self, name: Process) -> FlowRuntime | None:
        """The flow; None until it has begun."""
        return self._flows.get(name)

    def oldest_round(self, names: Iterable[Process]) -> int:
        """The oldest of these flows' last rounds; 0 if a flow has not begun."""
        return min((each.round if (each := self.flow(name)) is not None else 0 for name in names), default=0)

    def is_under_way(self, round_: int | None) -> bool:
        """Whether a flow still has to checkpoint for that round; until then the next round waits."""
        flows = [self.flow(name) for name in self.spec.inputs]
        return round_ is not None and not all(each is not None and each.has_completed(round_) for each in flows)

    def blocked(self, name: Process) -> set[Process]:
        """The inputs that are blocked for a flow now."""
        return self._blocked[name]


def find_line(protocol: Protocol, checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> Line:
    """The line to which all flows would go back now. With CEC no caller asks, because each flow recovers by itself.

    Raises `NoLine` if the checkpoints make no line, because some are missing.
    """
    return recovery_line(protocol, checkpoints, {}, ())


def find_line_before(protocol: Protocol, checkpoints: Mapping[Process, Sequence[Checkpoint]], line: Line) -> Line:
    """The newest line that shares only beginnings with `line`, for the case that data of `line` is damaged.

    Raises `NoLine` if checkpoints are damaged already.
    """
    older = {
        name: [each for each in own if each.number < line[name].number] or own[:1] for name, own in checkpoints.items()
    }
    return find_line(protocol, older)
