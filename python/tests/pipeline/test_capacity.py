"""Which flows run on what executors there are: pure, driven by looks that are made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.pipeline.capacity import Capacity, CapacityStanding, ClusterLook, RecoveryMode, RecoveryPolicy
from spark_cec.pipeline.graph import Graph, Node
from spark_cec.pipeline.release import AT_MOST_S, keeps_up
from spark_cec.pipeline.status import FlowStatus, State

TEN = [f"e{i}" for i in range(10)]


def shop() -> Graph:
    """source -> parser -> windows a and b; sinks cheap (of a), dear (of b), both; what each is worth."""
    nodes = (
        *(Node("source"), Node("parser", ("source",)), Node("a", ("parser",)), Node("b", ("parser",))),
        Node("cheap", ("a",), is_sink=True, priority=5.0),
        Node("dear", ("b",), is_sink=True, priority=2.0),
        Node("both", ("a", "b"), is_sink=True),
    )
    return Graph("shop", {node.name: node for node in nodes})


COSTS = {"source": 0.5, "parser": 0.5, "a": 1.0, "b": 3.0, "cheap": 0.5, "dear": 1.0, "both": 1.0}
"""7.5 of 10 cores; cheap with all that feeds it needs 2.5."""


@dataclass
class Driven:
    """A capacity that is looked at every second; the flows that run are as busy as they cost.

    Those that are let go keep up at once, but for the `slow`.
    """

    graph: Graph = field(default_factory=shop)
    costs: Mapping[str, float] = field(default_factory=lambda: COSTS)
    policy: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    only: Iterable[str] | None = None
    at_s: float = 0.0
    slow: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        flows = list(self.graph.nodes) if self.only is None else list(self.only)
        self.capacity = Capacity(self.graph, flows, self.policy)
        self.task_s = dict.fromkeys(flows, 0.0)
        self.waiting = frozenset[str]()

    def look(self, executors: Iterable[str], seconds: int = 1, over: Iterable[str] = ()) -> CapacityStanding:
        slots = dict.fromkeys(executors, 1)
        for _ in range(seconds):
            self.at_s += 1.0
            for flow in self.task_s.keys() - self.waiting:
                self.task_s[flow] += self.costs[flow]
            seen = ClusterLook(self.at_s, slots, dict(self.task_s))
            standing = self.capacity.look(seen, self.up(), list(over))
            while standing.waiting != self.waiting:
                self.waiting = standing.waiting
                standing = self.capacity.look(seen, self.up(), list(over))
        return standing

    def up(self) -> frozenset[str]:
        return frozenset(self.task_s) - self.waiting - self.slow

    def running_cost(self) -> float:
        return sum(self.costs[flow] for flow in self.task_s.keys() - self.waiting)


def test_all_flows_run_while_no_executor_is_lost() -> None:
    standing = Driven().look(TEN, 60)
    assert not standing.waiting
    assert standing.since_s is None
    assert standing.costs == pytest.approx(COSTS, abs=0.01)
    assert (standing.executors, standing.cores) == (10, 10)


@pytest.mark.parametrize("left", [9, 8, 7])
def test_few_losses_stop_nothing(left: int) -> None:
    """One, or less than a third of all, is no correlated failure, whatever fits."""
    driven = Driven()
    driven.look(TEN, 60)
    assert not driven.look(TEN[:left], 20).waiting


def test_losses_far_apart_stop_nothing() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    for left in range(9, 0, -1):
        assert not driven.look(TEN[:left], 15).waiting


def test_losses_that_leave_enough_stop_nothing() -> None:
    driven = Driven(costs={flow: cost / 10 for flow, cost in COSTS.items()})
    driven.look(TEN, 60)
    assert not driven.look(TEN[:2]).waiting


def test_executors_that_are_replaced_at_once_stop_nothing() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    assert not driven.look([f"new{i}" for i in range(10)], 5).waiting


def test_the_densest_query_runs_first_and_each_executor_brings_more() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    assert driven.look(TEN[:2]).waiting == {"b", "dear", "both"}, "more than there is room for is better than nothing"
    third = driven.look(TEN[:3])
    assert third.waiting == {"b", "dear", "both"}, "2.7 cores carry cheap, which needs 2.5"
    assert third.coming == ()
    assert driven.look(TEN[:7]).coming == ("dear",)
    assert driven.look(TEN[:8]).waiting == {"both"}
    last = driven.look(TEN[:9])
    assert not last.waiting
    assert last.since_s is None


def test_what_ran_goes_on_if_executors_are_lost_in_the_middle_of_a_recovery() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    driven.look(TEN[:3])
    assert driven.look(TEN[:8]).waiting == {"both"}
    assert driven.look(TEN[:7]).waiting == {"dear", "both", "b"}, "only what does not fit any more"
    assert driven.look(TEN[:3]).waiting == {"dear", "both", "b"}, "cheap fits still, and is not touched"


def test_blocking_waits_for_all() -> None:
    driven = Driven(policy=RecoveryPolicy(RecoveryMode.BLOCKING))
    driven.look(TEN, 60)
    for left in range(2, 9):
        assert driven.look(TEN[:left]).waiting == frozenset(COSTS)
    assert not driven.look(TEN[:9]).waiting


def test_at_once_is_what_spark_does() -> None:
    driven = Driven(policy=RecoveryPolicy(RecoveryMode.AT_ONCE))
    driven.look(TEN, 60)
    assert not driven.look(TEN[:1], 30).waiting


def test_flows_that_kept_all_cores_busy_come_back_with_the_cores() -> None:
    """As they catch up, all cores are busy: that is no reason to let some of them wait for ever."""
    driven = Driven(costs={flow: cost * 10 for flow, cost in COSTS.items()})
    driven.look(TEN, 60)
    assert driven.look(TEN[:2]).waiting
    assert not driven.look(TEN).waiting


def test_a_cluster_that_stays_small_runs_all_in_the_end() -> None:
    driven = Driven(policy=RecoveryPolicy(patience_s=100))
    driven.look(TEN, 60)
    assert driven.look(TEN[:2], 90).waiting
    assert driven.look(TEN[:3], 90).waiting, "an executor came: that is worth waiting for more"
    assert not driven.look(TEN[:3], 20).waiting
    assert not driven.look(TEN[:3], 200).waiting


def test_an_executor_that_comes_and_goes_is_no_reason_to_wait_for_ever() -> None:
    driven = Driven(policy=RecoveryPolicy(patience_s=300))
    driven.look(TEN, 60)
    driven.look(TEN[:3])
    for number in range(5):
        assert driven.look([*TEN[:2], f"again{number}"], 50).waiting
    driven.look([*TEN[:2], "again"], 60)
    assert not driven.waiting


def test_a_pipeline_of_one_query_is_not_held_back() -> None:
    """All would wait, and the cores that are left would have nothing to do."""
    driven = Driven(only=["source", "parser", "a", "cheap"], costs={**COSTS, "a": 6.0})
    driven.look(TEN, 60)
    assert not driven.look(TEN[:3], 5).waiting


def test_flows_that_are_over_take_no_room() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    assert driven.look(TEN[:4]).waiting == {"b", "dear", "both"}
    assert driven.look(TEN[:4], over=["cheap"]).waiting == {"b", "dear", "both"}
    assert driven.look(TEN[:5], over=["b"]).waiting == frozenset(), "4.5 cores without it"


def test_no_executor_is_left() -> None:
    driven = Driven()
    driven.look(TEN, 60)
    assert driven.look([]).waiting == frozenset(COSTS)
    assert driven.look(TEN[:3]).waiting == {"b", "dear", "both"}


def test_flows_without_a_sink_wait_and_come_back() -> None:
    driven = Driven(only=["source", "parser", "a", "b"])
    driven.look(TEN, 60)
    assert driven.look([]).waiting == {"source", "parser", "a", "b"}
    assert driven.look(TEN[:3]).waiting == {"b"}
    assert not driven.look(TEN).waiting


def fan(sinks: int) -> Graph:
    """A source and so many sinks of it, q0 worth most."""
    each = (Node(f"q{n}", ("source",), is_sink=True, priority=float(sinks - n)) for n in range(sinks))
    return Graph("fan", {node.name: node for node in (Node("source"), *each)})


def _fan_that_waits(sinks: int = 6, **policy: Any) -> Driven:
    costs = {"source": 1.0} | {f"q{n}": 1.0 for n in range(sinks)}
    driven = Driven(fan(sinks), costs, RecoveryPolicy(**policy))
    driven.look(TEN, 60)
    assert driven.look(TEN[:3]).waiting == {f"q{n}" for n in range(1, sinks)}
    return driven


def test_two_queries_come_back_at_a_time() -> None:
    """The next one is let go when one of them keeps up with its inputs, the best first."""
    driven = _fan_that_waits()
    driven.slow = frozenset(driven.task_s)
    assert driven.look(TEN, 5).waiting == {"q3", "q4", "q5"}
    driven.slow -= {"q2"}
    assert driven.look(TEN, 5).waiting == {"q4", "q5"}
    driven.slow -= {"q1", "q3"}
    standing = driven.look(TEN, 5)
    assert not standing.waiting
    assert standing.since_s is None


def test_a_query_that_never_keeps_up_does_not_hold_back_the_others_for_ever() -> None:
    driven = _fan_that_waits()
    driven.slow = frozenset(driven.task_s)
    driven.look(TEN, round(AT_MOST_S) - 1)
    assert driven.waiting == {"q3", "q4", "q5"}
    assert driven.look(TEN, 2).waiting == {"q5"}
    assert not driven.look(TEN, round(AT_MOST_S)).waiting


def test_what_was_not_let_go_yet_is_no_loss_when_more_executors_are_lost() -> None:
    driven = _fan_that_waits()
    driven.slow = frozenset(driven.task_s)
    driven.look(TEN)
    assert driven.look(TEN[:5]).waiting == {"q3", "q4", "q5"}, "room for what runs, and no more"
    assert driven.look(TEN[:4]).waiting == {"q2", "q3", "q4", "q5"}


def test_all_that_waited_for_all_come_at_once() -> None:
    driven = Driven(policy=RecoveryPolicy(RecoveryMode.BLOCKING))
    driven.look(TEN, 60)
    driven.look(TEN[:2])
    driven.slow = frozenset(driven.task_s)
    assert not driven.look(TEN).waiting


def test_a_cluster_that_stays_small_lets_them_go_one_after_the_other_too() -> None:
    driven = _fan_that_waits(patience_s=100, abreast=1)
    driven.slow = frozenset(driven.task_s)
    assert driven.look(TEN[:3], 99).waiting == {f"q{n}" for n in range(1, 6)}
    assert driven.look(TEN[:3], 3).waiting == {f"q{n}" for n in range(2, 6)}
    driven.slow = frozenset()
    assert not driven.look(TEN[:3]).waiting


def test_executors_that_come_and_go_hold_nothing_back_for_ever() -> None:
    """Flows that are let go after all that time stay so, also where none ever keeps up."""
    driven = _fan_that_waits(patience_s=100, abreast=1)
    driven.slow = frozenset(driven.task_s)
    for number in range(12):
        driven.look([*TEN[:2], f"spot{number}"], round(AT_MOST_S))
    assert not driven.waiting


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (FlowStatus("f", State.RUNNING, batch=3, behind=0), True),
        (FlowStatus("f", State.RUNNING, batch=3, behind=1), False),
        (FlowStatus("f", State.RUNNING), False),
        (FlowStatus("f", State.REPLAYING, batch=3, behind=0), False),
        (FlowStatus("f", State.WAITING, batch=3, behind=0), False),
        (FlowStatus("f", State.STARTING), False),
        (FlowStatus("f", State.RESTARTING), False),
        (FlowStatus("f", State.FAILED), True),
        (FlowStatus("f", State.ENDED), True),
    ],
)
def test_who_keeps_up(status: FlowStatus, answer: bool) -> None:
    assert keeps_up(status) is answer


@given(
    executors=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    costs=st.lists(st.floats(0.05, 4.0), min_size=7, max_size=7),
    mode=st.sampled_from([RecoveryMode.PROGRESSIVE, RecoveryMode.BLOCKING]),
)
def test_whatever_comes_and_goes(executors: list[int], costs: list[float], mode: RecoveryMode) -> None:
    """In a recovery what runs fits; who runs has all that feeds it; with all executors there nobody waits."""
    driven = Driven(costs=dict(zip(COSTS, costs, strict=True)), policy=RecoveryPolicy(mode))
    graph = driven.graph
    driven.look(TEN, 200)
    scale = min(1.0, 9.0 / sum(costs))
    for count in executors:
        standing = driven.look([f"e{i}" for i in range(count)])
        running = driven.task_s.keys() - standing.waiting
        if standing.since_s is not None:
            one = any(query.flows == running for query in graph.queries())
            assert driven.running_cost() * scale <= 0.9 * count * 1.02 or (one and mode is RecoveryMode.PROGRESSIVE)
            assert standing.waiting
        for flow in running:
            assert graph.upstream(flow) <= running
    assert not driven.look([f"e{i}" for i in range(12)]).waiting
