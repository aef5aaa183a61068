"""Chooses the flows to recover first if the remaining cluster cannot carry all (Su and Zhou, progressive recovery).

A query is an output of a pipeline with all flows upstream of it; it is recovered if all of them run. R is the free
capacity, C_k the cost of flow k, and prt_i the priority of query i. A plan chooses flows of cost at most R to maximize
the summed priority of the recovered queries. That is a set-union knapsack, and NP-hard. The paper uses the profit
density

    PD_i = prt_i / sum over its waiting flows k of C_k / f_k

where f_k is the number of waiting queries that share flow k. Costs and capacity are in busy cores. All functions here
are pure, so the pipeline, the simulator and the tests share one implementation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_ROUNDING = 1e-9
"""A relative tolerance: costs that add up to the capacity fit, in whatever order they are added."""


@dataclass(frozen=True, slots=True)
class Query:
    """An output of a pipeline: all flows that it needs, its own included, and prt_i."""

    name: str
    flows: frozenset[str]
    priority: float = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A situation to recover from: C_k of every flow in busy cores, the queries, and the running flows."""

    costs: Mapping[str, float]
    queries: Sequence[Query]
    running: frozenset[str] = frozenset()

    def waiting(self, query: Query) -> frozenset[str]:
        """The query's flows that do not run."""
        return query.flows - self.running

    def cost(self, flows: Iterable[str]) -> float:
        """The sum of the flows' C_k, in busy cores."""
        return math.fsum(self.costs[flow] for flow in flows)


@dataclass(frozen=True, slots=True)
class Plan:
    """The flows to start now, and the queries that these flows recover, both in the order of choice."""

    flows: tuple[str, ...]
    queries: tuple[str, ...]
    cost: float


class Planner(Protocol):
    """A planning function, such as `densest_first` or `blocking`."""

    def __call__(self, failure: Failure, free: float) -> Plan:
        """A plan whose cost is at most `free` busy cores."""


def densest_first(failure: Failure, free: float) -> Plan:
    """The paper's plan: takes the query with the highest profit density that fits, until none fits.

    After each choice the queries that share its flows become cheaper, and their density is computed again. f_k of the
    other flows does not change. If few queries share each flow, the cost is O(M |Q| log M) for M queries of |Q| flows.
    Sorting again after each choice would cost O(M^2 log M).
    """
    weighing = _DensityHeap(failure)
    chosen: list[Query] = []
    started: list[str] = []
    left = free
    while (query := weighing.pop_densest(left)) is not None:
        flows = sorted(weighing.waiting[query.name])
        left -= failure.cost(flows)
        started += flows
        chosen.append(query)
        weighing.take(query)
    return _make_plan(failure, started, chosen)


def blocking(failure: Failure, free: float) -> Plan:
    """Operator-centric recovery, as most engines do it: starts no flow until there is capacity for all."""
    waiting = frozenset[str]().union(*(failure.waiting(query) for query in failure.queries))
    if failure.cost(waiting) > free + _ROUNDING * (1.0 + free):
        return Plan((), (), 0.0)
    return _make_plan(failure, sorted(waiting), failure.queries)


class _DensityHeap:
    """A heap of the waiting queries by profit density; `pop_densest` skips outdated entries."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure
        self._queries = {query.name: query for query in failure.queries}
        self.waiting = {query.name: set(failure.waiting(query)) for query in failure.queries}
        self._sharers: dict[str, set[str]] = {}
        for name, flows in self.waiting.items():
            for flow in flows:
                self._sharers.setdefault(flow, set()).add(name)
        self._frequency = {flow: len(sharers) for flow, sharers in self._sharers.items()}
        self._turn = dict.fromkeys(self._queries, 0)
        self._heap = [self._make_entry(name) for name in self._queries]
        heapq.heapify(self._heap)

    def pop_densest(self, free: float) -> Query | None:
        """Removes and returns the densest query that fits into `free` busy cores; None if none fits.

        A query that does not fit needs no second look at the same cost, because the capacity only shrinks. `take`
        pushes it again when it becomes cheaper.
        """
        room = free + _ROUNDING * (1.0 + abs(free))
        while self._heap:
            _, name, turn = heapq.heappop(self._heap)
            if name in self._queries and turn == self._turn[name] and self._failure.cost(self.waiting[name]) <= room:
                return self._queries[name]
        return None

    def take(self, query: Query) -> None:
        """Marks the query's flows as running, and pushes the queries that share them again with their new density."""
        del self._queries[query.name]
        cheaper = set[str]()
        for flow in self.waiting.pop(query.name):
            for name in self._sharers.pop(flow) - {query.name}:
                self.waiting[name].discard(flow)
                cheaper.add(name)
        for name in cheaper:
            self._turn[name] += 1
            heapq.heappush(self._heap, self._make_entry(name))

    def _make_entry(self, name: str) -> tuple[float, str, int]:
        return -self._compute_density(name), name, self._turn[name]

    def _compute_density(self, name: str) -> float:
        costs = self._failure.costs
        share = math.fsum(costs[flow] / self._frequency[flow] for flow in self.waiting[name])
        return self._queries[name].priority / share if share > 0 else math.inf


def _make_plan(failure: Failure, flows: Sequence[str], queries: Collection[Query]) -> Plan:
    return Plan(tuple(flows), tuple(query.name for query in queries), failure.cost(flows))
