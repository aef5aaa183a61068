"""To which line flows go back, from facts alone: no storage here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.errors import NoLine, UnsuitableCheckpoint
from spark_cec.pipeline.decide import BegunLine, FlowFacts, LineFacts, decide_line
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Checkpoint, is_consistent
from spark_cec.protocols.records import Record
from spark_cec.recovery.query_files import Rollback
from spark_cec.recovery.reach import Reach

BATCHES = 6
"""Each flow has committed batches 0 to 5, and Spark keeps all of them."""


def reach(name: str) -> Reach:
    return Reach(f"/shop/flows/{name}", f"/shop/flows/{name}/cec", range(BATCHES))


def record(name: str, number: int, sent: int, received: Mapping[str, int]) -> Record:
    """A checkpoint after the batch that the flow sent last."""
    return Record(Checkpoint(name, number, sent, received), sent - 1)


A = FlowFacts(
    (record("a", 0, 0, {}), record("a", 1, 3, {}), record("a", 2, 5, {})), frozenset({2, 4}), reach("a")
)  # fmt: skip
B = FlowFacts(
    (
        record("b", 0, 0, {"a": 0}), record("b", 1, 2, {"a": 2}), record("b", 2, 4, {"a": 5}),
        record("b", 3, 6, {"a": 6}),  # it has received what a sent after its last checkpoint
    ),
    frozenset({1, 3, 5}),
    reach("b"),
)  # fmt: skip
FACTS = LineFacts(Protocol.UNCOORDINATED, {"a": A, "b": B})


def facts(a: FlowFacts = A, b: FlowFacts = B, begun: BegunLine | None = None) -> LineFacts:
    return LineFacts(Protocol.UNCOORDINATED, {"a": a, "b": b}, begun)


def without(flow: FlowFacts, numbers: Collection[int]) -> FlowFacts:
    """The flow, whose checkpoints of these numbers are unreadable."""
    return replace(flow, records=[each for each in flow.records if each.checkpoint.number not in numbers])


def bounded(flow: FlowFacts, **bounds: object) -> FlowFacts:
    return replace(flow, reach=replace(flow.reach, **bounds))  # type: ignore[arg-type]


def line_of(decided: LineFacts) -> dict[str, int]:
    return {name: each.checkpoint.number for name, each in decide_line(decided).line.items()}


@pytest.mark.parametrize(("given_facts", "line"), [
    pytest.param(facts(), {"a": 2, "b": 2}, id="the newest consistent line"),
    pytest.param(facts(b=without(B, [2])), {"a": 2, "b": 1}, id="a damaged checkpoint is none"),
    pytest.param(facts(a=replace(A, whole=frozenset({2}))), {"a": 1, "b": 1}, id="spark has lost batch 4 of a"),
    pytest.param(facts(a=replace(A, whole=frozenset())), {"a": 0, "b": 0}, id="spark has lost all batches of a"),
    pytest.param(facts(begun=BegunLine({"a": 1, "b": 1})), {"a": 1, "b": 1}, id="a begun line goes on"),
    pytest.param(facts(begun=BegunLine({"a": 2, "b": 2})), {"a": 2, "b": 2}, id="a begun line that is the newest"),
    pytest.param(
        facts(begun=BegunLine({"a": 1, "b": 1, "gone": 9})), {"a": 1, "b": 1}, id="a flow that takes no part now"
    ),
    pytest.param(
        facts(a=bounded(replace(A, whole=frozenset()), pending=Rollback(2, 3)), begun=BegunLine({"a": 1, "b": 1})),
        {"a": 1, "b": 1}, id="a flow whose logs are being cut for the begun line",
    ),
])  # fmt: skip
def test_the_line(given_facts: LineFacts, line: dict[str, int]) -> None:
    assert line_of(given_facts) == line
    assert decide_line(given_facts).abandoned is None


@pytest.mark.parametrize(("given_facts", "line", "why"), [
    (facts(begun=BegunLine(damage="it is damaged")), {"a": 2, "b": 2}, "it is damaged"),
    (facts(begun=BegunLine({"a": 1})), {"a": 2, "b": 2}, "it has no checkpoint of flow b"),
    (facts(b=without(B, [2]), begun=BegunLine({"a": 2, "b": 2})), {"a": 2, "b": 1}, "2 of flow b cannot be read"),
    (facts(a=replace(A, whole=frozenset({2})), begun=BegunLine({"a": 2, "b": 2})), {"a": 1, "b": 1}, "to batch 4"),
])  # fmt: skip
def test_a_begun_line_out_of_reach_is_given_up(given_facts: LineFacts, line: dict[str, int], why: str) -> None:
    assert line_of(given_facts) == line
    assert why in str(decide_line(given_facts).abandoned)


@pytest.mark.parametrize(("given_facts", "message"), [
    (facts(a=bounded(A, kept_from=6)), "flows/a cannot be taken back to batch 4: its output is kept from batch 6 on"),
    (facts(a=bounded(without(A, [1, 2]), planned=range(3, 6))), "flows/a cannot be taken back to its beginning"),
    (facts(a=without(replace(A, whole=frozenset()), [0]), b=without(B, [0, 1])), "Spark keeps batches 0 to 5"),
    (facts(a=bounded(A, pending=Rollback(2, 3), begun=Rollback(2, 3))), "end of batch 2, which is before batch 4: run"),
    (facts(b=bounded(B, begun=Rollback(1, 3), is_flow=True)), "before batch 3: start the pipeline that it belongs"),
])  # fmt: skip
def test_a_line_out_of_reach_is_refused(given_facts: LineFacts, message: str) -> None:
    with pytest.raises(UnsuitableCheckpoint, match=message):
        decide_line(given_facts)


def test_checkpoints_without_a_line_are_refused() -> None:
    with pytest.raises(NoLine):
        decide_line(facts(without(A, [0, 2]), without(B, [0, 1])))


def test_lost_checkpoints_are_named() -> None:
    decided = decide_line(facts(a=replace(A, whole=frozenset({2}))))
    assert {name: [each.batch for each in lost] for name, lost in decided.lost.items()} == {"a": [4]}


def test_protocol_none_goes_to_the_beginning() -> None:
    assert line_of(replace(FACTS, protocol=Protocol.NONE)) == {"a": 0, "b": 0}


@st.composite
def histories(draw: st.DrawFn) -> LineFacts:
    """Two flows that read each other's channels or not, with damage, lost batches and a begun line."""
    flows = {}
    for name, other in (("a", "b"), ("b", "a")):
        records, sent, received = [record(name, 0, 0, {other: 0})], 0, 0
        for number in range(1, draw(st.integers(1, 5))):
            sent, received = sent + draw(st.integers(0, 3)), received + draw(st.integers(0, 3))
            records.append(record(name, number, sent, {other: received}))
        damaged = draw(st.sets(st.integers(1, 5)))
        kept = [each for each in records if each.checkpoint.number not in damaged]
        batches = {each.batch for each in kept if each.batch >= 0}
        whole = frozenset(each for each in batches if draw(st.booleans()))
        flows[name] = FlowFacts(kept, whole, reach(name))
    begun = draw(st.none() | st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.integers(0, 5)}))
    return LineFacts(Protocol.UNCOORDINATED, flows, None if begun is None else BegunLine(begun))


@given(histories())
def test_a_line_is_begun_or_consistent_and_within_reach(drawn: LineFacts) -> None:
    """The beginning is always a line, so that each of these histories has one."""
    orders = decide_line(drawn)
    for name, flow in drawn.flows.items():
        assert orders.line[name] in flow.records
        assert flow.find_obstacle(orders.line[name]) is None
    if drawn.begun is not None and orders.abandoned is None:
        assert {name: each.checkpoint.number for name, each in orders.line.items()} == drawn.begun.numbers
    else:
        assert is_consistent({name: each.checkpoint for name, each in orders.line.items()})


@given(histories())
def test_no_newer_checkpoint_could_join_the_line(drawn: LineFacts) -> None:
    """The newest line is the one that has, of each flow, the newest checkpoint that any line within reach has."""
    fresh = replace(drawn, begun=None)
    line = decide_line(fresh).line
    for a in fresh.flows["a"].records:
        for b in fresh.flows["b"].records:
            pair = {"a": a, "b": b}
            if any(fresh.flows[name].find_obstacle(each) for name, each in pair.items()):
                continue
            if is_consistent({name: each.checkpoint for name, each in pair.items()}):
                assert all(each.checkpoint.number <= line[name].checkpoint.number for name, each in pair.items())


@given(histories())
def test_the_next_start_goes_on_with_the_noted_line(drawn: LineFacts) -> None:
    """After a crash the flows are at or before the line: later checkpoints and batches are gone."""
    line = decide_line(drawn).line
    noted = BegunLine({name: each.checkpoint.number for name, each in line.items()})
    flows = {
        name: replace(flow, records=[each for each in flow.records if each.checkpoint.number <= noted.numbers[name]])
        for name, flow in drawn.flows.items()
    }
    assert decide_line(replace(drawn, flows=flows, begun=noted)).line == line
