"""Flows as Spark runs them, asked between batches, but without Spark: lines are lines, and nothing is read twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from spark_cec.errors import NoLine
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Checkpoint, Piggyback, Process, is_consistent
from spark_cec.protocols.records import Record
from spark_cec.protocols.runtime import Coming, ProtocolRuntime, find_line, find_line_before
from spark_cec.protocols.spec import Spec
from tests.protocols.history import all_lines, random_inputs

INTERVAL_S = 5.0


SOURCES = "ab"
"""Of each channel that a flow reads: two, as where a query reads it twice."""

Place = dict[tuple[Process, str], int]
"""How far the sources of a flow are, as Spark has it."""


@dataclass
class Flow:
    """Its batches: what each has added; `records` of its checkpoints, oldest first, and where it was then."""

    place: Place
    channel: list[Piggyback] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)


class Run:
    """A pipeline in memory; time goes on with each step."""

    def __init__(self, protocol: Protocol, seed: int, processes: int | None = None) -> None:
        self.rng = random.Random(seed)
        count = processes or self.rng.randint(2, 4)
        inputs = random_inputs(self.rng, count, cycles=protocol is not Protocol.COORDINATED)
        self.now = 0.0
        self.spec = Spec(protocol, INTERVAL_S, inputs, 1, "run")
        self.flows = {
            name: Flow({(sender, source): -1 for sender in read for source in SOURCES}) for name, read in inputs.items()
        }
        for name, flow in self.flows.items():
            flow.records = [Record(Checkpoint(name, 0, 0, dict.fromkeys(inputs[name], 0), round=0))]
            flow.places[0] = dict(flow.place)
        self.begin()

    def begin(self) -> None:
        """All flows start from their newest checkpoints, in any order, some of them late."""
        self.runtime = ProtocolRuntime(self.spec, lambda: self.now)
        self.late = list(self.flows)
        self.rng.shuffle(self.late)
        for flow in self.flows.values():
            del flow.channel[flow.records[-1].checkpoint.sent :]
            flow.place = dict(flow.places[flow.records[-1].checkpoint.number])

    def step(self) -> None:
        """One flow looks for input, takes the checkpoint that is due, and runs a batch if there is any."""
        self.now += self.rng.random()
        if self.late and self.rng.random() < 0.5:
            name = self.late.pop()
            self.runtime.begin(name, self.flows[name].records[-1])
        name = self.rng.choice(list(self.flows))
        if self.runtime.flow(name) is None or self.rng.random() < 0.2:
            return
        flow, own = self.runtime.flow(name), self.flows[name]
        assert flow is not None
        batch, planned = len(own.channel) - 1, dict(own.place)
        news = not self.spec.inputs[name] or self.rng.random() < 0.1  # of a source of its own
        self.checkpoint(name, batch)
        for sender, source in own.place:
            planned[sender, source] = self.look(name, sender, source)
            self.checkpoint(name, batch)
        if news or planned != own.place:
            own.place = planned
            if not self.spec.readers(name) and self.rng.random() < 0.5:  # a sink of another format: nobody asks it
                own.channel.append({})
                return
            flow.has_run(batch + 1)
            own.channel.append(flow.sends())
            for sender, has_read in flow.reads.items():
                assert has_read == max(own.place[sender, source] for source in SOURCES)
                assert has_read < len(self.flows[sender].channel)

    def look(self, name: Process, sender: Process, source: str) -> int:
        """As a source does that is asked for its latest offset."""
        flow, channel = self.runtime.flow(name), self.flows[sender].channel
        assert flow is not None
        after, newest = self.flows[name].place[sender, source], len(channel) - 1
        up_to = flow.end_of(sender)
        last = max(after, min(newest, newest if up_to is None else up_to, after + self.rng.randint(1, 4)))
        added = {batch: channel[batch] for batch in range(after + 1, last + 1)}
        flow.will_read(sender, Coming(after, last, added, up_to, f"{sender}/{source}"))
        return last

    def checkpoint(self, name: Process, batch: int) -> None:
        flow = self.runtime.flow(name)
        assert flow is not None
        while flow.is_due(batch):
            record = flow.taken(int(self.now))
            self.flows[name].records.append(record)
            self.flows[name].places[record.checkpoint.number] = dict(self.flows[name].place)
            flow.go_on()

    def known(self) -> dict[Process, list[Checkpoint]]:
        return {name: [each.checkpoint for each in flow.records] for name, flow in self.flows.items()}

    def go_back(self) -> None:
        """A failure."""
        line = find_line(self.spec.protocol, self.known())
        assert is_consistent(line)
        for name, at in line.items():
            flow = self.flows[name]
            flow.records = [each for each in flow.records if each.checkpoint.number <= at.number]
        self.begin()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("protocol", [each for each in Protocol if each is not Protocol.CEC])
def test_lines_are_consistent_through_failures(protocol: Protocol, seed: int) -> None:
    """A flow that reads what was not sent any more, or reads a message twice, fails in `will_read`."""
    print(f"seed {seed}")
    run = Run(protocol, seed)
    for _ in range(400):
        run.step()
        if run.rng.random() < 0.02:
            run.go_back()
    assert is_consistent(find_line(protocol, run.known()))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("protocol", [each for each in Protocol if each not in (Protocol.CEC, Protocol.NONE)])
def test_with_all_of_the_newest_line_damaged_there_is_one(protocol: Protocol, seed: int) -> None:
    """Whatever of it is: of each flow there is an older checkpoint, though those are forgotten that no line needs."""
    print(f"seed {seed}")
    run = Run(protocol, seed)
    forgotten = 0
    for _ in range(400):
        run.step()
        known = run.known()
        line = find_line(protocol, known)
        assert is_consistent(line)
        kept = find_line_before(protocol, known, line)
        for name, flow in run.flows.items():
            forgotten += flow.records[0].checkpoint.number < kept[name].number
            flow.records = [each for each in flow.records if each.checkpoint.number >= kept[name].number]
        damaged = {name for name, at in line.items() if at.number and run.rng.random() < 0.5}
        left = {
            name: [each for each in own if not (name in damaged and each.number == line[name].number)]
            for name, own in run.known().items()
        }
        assert all(left.values()), (damaged, left)
        older = find_line(protocol, left)
        assert is_consistent(older)
        if run.rng.random() < 0.02:
            run.go_back()
    assert protocol is Protocol.UNCOORDINATED or forgotten, "this run has forgotten nothing, and says nothing"


def test_without_an_older_one_there_is_none() -> None:
    """As after more damage than that: said, and not found somewhere else."""
    ahead = {"a": [Checkpoint("a", 4, 8)], "b": [Checkpoint("b", 7, 5, {"a": 9})]}
    with pytest.raises(NoLine, match="a, b make no consistent line"):
        find_line(Protocol.UNCOORDINATED, ahead)
    rounds = {"a": [Checkpoint("a", 4, 8, round=5)], "b": [Checkpoint("b", 7, 5, {"a": 9}, round=6)]}
    with pytest.raises(NoLine):
        find_line(Protocol.COORDINATED, rounds)


@pytest.mark.parametrize("protocol", [Protocol.COORDINATED, Protocol.CIC, Protocol.BCS])
def test_lines_get_on(protocol: Protocol) -> None:
    """Else the test above would say nothing; and no flow waits for ever. Without coordination nothing is promised."""
    run = Run(protocol, seed=3, processes=4)
    for _ in range(3000):
        run.step()
    line = find_line(protocol, run.known())
    sent = {name: len(flow.channel) for name, flow in run.flows.items()}
    assert all(at.sent > 0.8 * sent[name] > 100 for name, at in line.items()), (line, sent)


@pytest.mark.parametrize("seed", range(30))
def test_a_round_is_aligned(seed: int) -> None:
    """Of each channel, all has been read that was sent before the marker, and nothing else."""
    print(f"seed {seed}")
    run = Run(Protocol.COORDINATED, seed)
    for _ in range(600):
        run.step()
    line = find_line(Protocol.COORDINATED, run.known())
    for at in line.values():
        assert all(line[sender].sent == received for sender, received in at.received.items())


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("protocol", [Protocol.CIC, Protocol.BCS])
def test_no_checkpoint_is_useless(protocol: Protocol, seed: int) -> None:
    print(f"seed {seed}")
    run = Run(protocol, seed, processes=3)
    for _ in range(90):
        run.step()
        if run.rng.random() < 0.02:
            run.go_back()
    known = run.known()
    for name, own in known.items():
        flow = run.runtime.flow(name)
        if flow is not None:
            received = {sender: batch + 1 for sender, batch in flow.reads.items()}
            own.append(Checkpoint(name, own[-1].number + 1, len(run.flows[name].channel), received))
    useful = {(name, line[name].number) for line in all_lines(known) for name in line}
    assert {(name, each.number) for name, own in known.items() for each in own} == useful


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("protocol", [each for each in Protocol if each not in (Protocol.CEC, Protocol.NONE)])
def test_flows_that_are_stopped_in_good_order_leave_a_line(protocol: Protocol, seed: int) -> None:
    """Nothing is taken back then; and after the next failure there are lines as before."""
    print(f"seed {seed}")
    run = Run(protocol, seed)
    for _ in range(200):
        run.step()
    for name in run.late:
        run.runtime.begin(name, run.flows[name].records[-1])
    for name, own in run.flows.items():
        flow = run.runtime.flow(name)
        assert flow is not None
        if flow.batch == len(own.channel) - 1:  # it has sent a batch, and Spark has not committed it
            assert not flow.is_due_at_the_end(flow.batch - 1)
        if flow.is_due_at_the_end(len(own.channel) - 1):
            own.records.append(flow.taken(int(run.now)))
            own.places[own.records[-1].checkpoint.number] = dict(own.place)
            flow.go_on()
    line = find_line(protocol, run.known())
    assert all(at.sent == len(run.flows[name].channel) for name, at in line.items())
    run.spec = replace(run.spec, number=2)
    for _ in range(3):
        run.go_back()
        for _ in range(150):
            run.step()
    assert is_consistent(find_line(protocol, run.known()))


@pytest.mark.parametrize("seed", range(10))
def test_a_round_waits_for_the_one_before(seed: int) -> None:
    """Else a flow that lags behind would find more and more of them, and the others would write for nothing."""
    print(f"seed {seed}")
    run = Run(Protocol.COORDINATED, seed, processes=4)
    lagging = next(name for name, read in run.spec.inputs.items() if read)
    run.late.remove(lagging)
    for _ in range(600):
        run.step()
    others = [name for name in run.flows if name != lagging]
    assert all(run.flows[name].records[-1].checkpoint.number <= 1 for name in others)
    for name in others:
        flow = run.runtime.flow(name)
        assert flow is not None and len(flow.markers) <= 1
    run.runtime.begin(lagging, run.flows[lagging].records[-1])
    for _ in range(1200):
        run.step()
    assert all(len(flow.records) > 5 for flow in run.flows.values())
    flows = [run.runtime.flow(name) for name in run.flows]
    assert all(flow is not None and len(flow.markers) <= 1 for flow in flows)


def test_a_round_waits_until_the_one_before_is_recorded() -> None:
    now = [0.0]
    runtime = ProtocolRuntime(Spec(Protocol.COORDINATED, INTERVAL_S, {"a": (), "b": ("a",)}, 1, "run"), lambda: now[0])
    a, b = (runtime.begin(name, Record(Checkpoint(name, 0, 0, received, round=0)))
            for name, received in (("a", {}), ("b", {"a": 0})))  # fmt: skip
    now[0] = INTERVAL_S
    assert a.is_due(0)
    a.taken(0)
    a.go_on()
    b.will_read("a", Coming(-1, 0, up_to=0))
    b.has_run(0)
    b.will_read("a", Coming(0, 0, up_to=0))
    now[0] = 3 * INTERVAL_S
    assert b.is_due(0)
    assert not a.is_due(1)
    b.taken(0)
    b.go_on()
    assert a.is_due(1)


def test_messages_force_checkpoints() -> None:
    forced = 0
    for seed in range(30):
        run = Run(Protocol.CIC, seed, processes=4)
        for _ in range(300):
            run.step()
        forced += sum(each.forced for own in run.known().values() for each in own)
    assert forced > 30


def test_who_reads_from_another_place_than_it_was_is_stopped() -> None:
    run = Run(Protocol.UNCOORDINATED, seed=0)
    name, read = next((name, read) for name, read in run.spec.inputs.items() if read)
    flow = run.runtime.begin(name, run.flows[name].records[0])
    flow.will_read(read[0], Coming(-1, 2))
    flow.has_run(0)
    with pytest.raises(ValueError, match=f"{name} reads {read[0]} after batch 4, and has read up to 2"):
        flow.will_read(read[0], Coming(4, 5))
