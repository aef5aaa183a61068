"""The planner of progressive recovery: worked by hand, against its own definition, and against all plans there are."""

from __future__ import annotations

import math
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cec.recovery.progressive import Failure, Plan, Query, blocking, densest_first

FLOWS = "abcdefg"


def failure(costs: dict[str, float], *queries: tuple[str, str, float], running: str = "") -> Failure:
    """Queries as (name, letters of its flows, priority)."""
    return Failure(costs, [Query(name, frozenset(flows), prt) for name, flows, prt in queries], frozenset(running))


def test_the_papers_first_figure() -> None:
    """Q1 = {O1, O2}, Q2 = {O1, O3}: O1 is shared, so half of its cost counts for each."""
    case = failure({"1": 2.0, "2": 1.0, "3": 3.0}, ("Q1", "12", 1.0), ("Q2", "13", 1.0))
    assert densest_first(case, 3.0) == Plan(("1", "2"), ("Q1",), 3.0)
    assert densest_first(case, 6.0) == Plan(("1", "2", "3"), ("Q1", "Q2"), 6.0)
    assert densest_first(case, 2.9) == Plan((), (), 0.0)


def test_a_priority_outweighs_a_cost() -> None:
    case = failure({"a": 1.0, "b": 2.0}, ("cheap", "a", 1.0), ("dear", "b", 3.0))
    assert densest_first(case, 2.0).queries == ("dear",)
    assert densest_first(case, 3.0).queries == ("dear", "cheap")


def test_what_did_not_fit_fits_once_what_it_shares_runs() -> None:
    """`wide` costs 5 alone; when `small` has started the shared flow, it costs 1."""
    case = failure({"s": 4.0, "x": 0.5, "y": 1.0}, ("wide", "sy", 9.0), ("small", "sx", 1.0))
    assert densest_first(case, 4.9).queries == ("small",)
    assert set(densest_first(case, 5.5).queries) == {"wide", "small"}


def test_what_runs_costs_nothing() -> None:
    case = failure({"a": 5.0, "b": 1.0}, ("q", "ab", 1.0), ("whole", "a", 1.0), running="a")
    assert densest_first(case, 1.0) == Plan(("b",), ("whole", "q"), 1.0)
    assert densest_first(case, 0.0) == Plan((), ("whole",), 0.0)


def test_blocking_waits_for_room_for_all() -> None:
    case = failure({"a": 1.0, "b": 2.0}, ("p", "a", 1.0), ("q", "ab", 1.0))
    assert blocking(case, 2.9) == Plan((), (), 0.0)
    assert blocking(case, 3.0) == Plan(("a", "b"), ("p", "q"), 3.0)


def test_costs_that_add_up_to_the_room_fit() -> None:
    case = failure({"a": 0.1, "b": 0.2}, ("q", "ab", 1.0))
    assert densest_first(case, 0.3).queries == blocking(case, 0.3).queries == ("q",)


cases = st.builds(
    lambda costs, flows, priorities, running: Failure(
        dict(zip(FLOWS, costs, strict=True)),
        [Query(f"q{n}", frozenset(each), prt) for n, (each, prt) in enumerate(zip(flows, priorities, strict=False))],
        frozenset(running),
    ),
    st.lists(st.integers(1, 20).map(float), min_size=7, max_size=7),
    st.lists(st.sets(st.sampled_from(FLOWS), min_size=1), min_size=1, max_size=6),
    st.lists(st.integers(1, 9).map(float), min_size=6, max_size=6),
    st.sets(st.sampled_from(FLOWS), max_size=2),
)


def by_the_book(case: Failure, free: float) -> list[str]:
    """The paper's loop, sorted anew after each choice; the least name first among equals."""
    frequency = {flow: sum(flow in case.waiting(query) for query in case.queries) for flow in FLOWS}
    running, left, chosen, names = set(case.running), free, list[str](), {query.name: query for query in case.queries}
    while names:

        def density(query: Query, running: set[str] = running) -> float:
            share = math.fsum(case.costs[flow] / frequency[flow] for flow in query.flows - running)
            return query.priority / share if share else math.inf

        for query in sorted(names.values(), key=lambda query: (-density(query), query.name)):
            cost = case.cost(query.flows - running)
            if cost <= left:
                running |= query.flows
                left -= cost
                chosen.append(query.name)
                del names[query.name]
                break
        else:
            break
    return chosen


@given(cases, st.integers(0, 80).map(float))
@settings(deadline=None, max_examples=300)
def test_it_is_the_papers_loop(case: Failure, free: float) -> None:
    plan = densest_first(case, free)
    assert list(plan.queries) == by_the_book(case, free)
    assert plan.cost == case.cost(plan.flows) <= free
    assert not set(plan.flows) & case.running
    back = case.running | set(plan.flows)
    assert {query.name for query in case.queries if query.flows <= back} == set(plan.queries)


@given(cases, st.integers(0, 80).map(float))
@settings(deadline=None, max_examples=100)
def test_no_plan_is_better_than_the_optimum(case: Failure, free: float) -> None:
    pytest.importorskip("scipy")
    from spark_cec_lab.simulation.pipelines.optimum import optimal

    def worth(plan: Plan) -> float:
        return math.fsum(query.priority for query in case.queries if query.name in plan.queries)

    every = chain.from_iterable(combinations(case.queries, size) for size in range(len(case.queries) + 1))
    needed = ((chosen, frozenset[str]().union(*(case.waiting(query) for query in chosen))) for chosen in every)
    best = max(math.fsum(q.priority for q in chosen) for chosen, flows in needed if case.cost(flows) <= free)
    found = optimal(case, free)
    assert worth(found) == pytest.approx(best)
    assert found.cost <= free * (1 + 1e-6)
    for planner in (densest_first, blocking):
        assert worth(planner(case, free)) <= best + 1e-9
