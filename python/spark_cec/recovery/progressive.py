"""Which flows to bring back first when what is left of a cluster cannot carry all (Su and Zhou, progressive recovery).

A query is an output of a pipeline with all flows upstream of it: it is back when all of them run. With R for the
capacity that is free, C_k for the cost of flow k and prt_i for the priority of query i, a plan chooses flows of cost at
most R such that the sum of the priorities of the queries that are back is large. That is a set-union knapsack, and
NP-hard; the paper's answer is the profit density

    PD_i = prt_i / sum over its waiting flows k of C_k / f_k

where f_k is the number of waiting queries that share flow k. Costs and capacity are in busy cores. All functions here
are pure: the pipeline, the simulator and the tests drive the same code.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_ROUNDING = 1e-9
"""Relative: costs that add up to the capacity fit, whatever the order in which they are added."""


@dataclass(frozen=True, slots=True)
class Query:
    """An output of a pipeline: the flows that it needs, its own among them, and prt_i."""

    name: str
    flows: frozenset[str]
    priority: float = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What is to be recovered: C_k of every flow in busy cores, the queries, and the flows that run."""

    costs: Mapping[str, float]
    queries: Sequence[Query]
    running: frozenset[str] = frozenset()

    def waiting(self, query: Query) -> frozenset[str]:
        """The flows of a query that do not run."""
        return query.flows - self.running

    def cost(self, flows: Iterable[str]) -> float:
        """The sum of their C_k."""
        return math.fsum(self.costs[flow] for flow in flows)


@dataclass(frozen=True, slots=True)
class Plan:
    """Flows to start now, and the queries that are back then, both in the order in which they were chosen."""

    flows: tuple[str, ...]
    queries: tuple[str, ...]
    cost: float


class Planner(Protocol):
    """One of the functions below: what to start with so much free capacity."""

    def __call__(self, failure: Failure, free: float) -> Plan:
        """The plan; its cost is at most `free`."""


def densest_first(failure: Failure, free: float) -> Plan:
    """The paper's plan: again and again the query of highest profit density that fits, until none does.

    A chosen query's flows run from then on, so the queries that share them become cheaper, and are weighed anew. As the
    flows that leave are the same for all, f_k of the others stays what it was. O(M |Q| log M) for M queries of |Q|
    flows whose flows are shared by few, where sorting anew each time would be O(M^2 log M).
    """
    weighing = _Weighing(failure)
    chosen: list[Query] = []
    started: list[str] = []
    left = free
    while (query := weighing.densest(left)) is not None:
        flows = sorted(weighing.waiting[query.name])
        left -= failure.cost(flows)
        started += flows
        chosen.append(query)
        weighing.take(query)
    return _plan(failure, started, chosen)


def blocking(failure: Failure, free: float) -> Plan:
    """Operator-centric recovery, as most engines do it: nothing before there is room for everything."""
    waiting = frozenset[str]().union(*(failure.waiting(query) for query in failure.queries))
    if failure.cost(waiting) > free + _ROUNDING * (1.0 + free):
        return Plan((), (), 0.0)
    return _plan(failure, sorted(waiting), failure.queries)


class _Weighing:
    """The waiting queries by their profit density; entries of the heap that are out of date are passed over."""

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
        self._heap = [self._entry(name) for name in self._queries]
        heapq.heapify(self._heap)

    def densest(self, free: float) -> Query | None:
        """The query of highest density among those that fit; None if none does.

        One that does not fit comes back when it has become cheaper: the room only becomes less.
        """
        room = free + _ROUNDING * (1.0 + abs(free))
        while self._heap:
            _, name, turn = heapq.heappop(self._heap)
            if name in self._queries and turn == self._turn[name] and self._failure.cost(self.waiting[name]) <= room:
                return self._queries[name]
        return None

    def take(self, query: Query) -> None:
        """Its flows run: who shares them is weighed anew."""
        del self._queries[query.name]
        cheaper = set[str]()
        for flow in self.waiting.pop(query.name):
            for name in self._sharers.pop(flow) - {query.name}:
                self.waiting[name].discard(flow)
                cheaper.add(name)
        for name in cheaper:
            self._turn[name] += 1
            heapq.heappush(self._heap, self._entry(name))

    def _entry(self, name: str) -> tuple[float, str, int]:
        return -self._density(name), name, self._turn[name]

    def _density(self, name: str) -> float:
        costs = self._failure.costs
        share = math.fsum(costs[flow] / self._frequency[flow] for flow in self.waiting[name])
        return self._queries[name].priority / share if share > 0 else math.inf


def _plan(failure: Failure, flows: Sequence[str], queries: Collection[Query]) -> Plan:
    return Plan(tuple(flows), tuple(query.name for query in queries), failure.cost(flows))
