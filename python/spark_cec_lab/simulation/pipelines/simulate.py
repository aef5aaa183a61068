"""What becomes of a pipeline after a correlated failure, by strategy: queries that are available over time.

Nodes are lost together; their replacements come one by one. Each operator has some partitions, each on some node; those
that were lost are started again, where there is room, restore their state, and then work off what has come since, at a
multiple of the rate at which it comes. A query is available once all of its operators are up to date.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from spark_cec.recovery.progressive import Failure, Plan, Planner, blocking, densest_first
from spark_cec_lab.simulation.pipelines.topologies import Topology

PAPER_ARRIVALS_S = (120.0, 360.0)
"""Attaching a new node to a cluster in a cloud took from 2 to 6 minutes (Fig. 3 of the paper)."""


class Strategy(str, Enum):
    """Who is started when: the paper's, its rival's, and what plain Spark does."""

    PROGRESSIVE = "progressive"
    BLOCKING = "blocking"
    AT_ONCE = "at-once"


class Arrivals(str, Enum):
    """When replacements come: some time between the paper's 2 and 6 minutes, or one by one at random, 1 a minute."""

    PAPER = "paper"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` of which `lost` fail at once; `load` is the share of its cores that the topology's costs add up to.

    `restore_s`: from the start of an operator to its first new tuple. `catch_up`: an operator's cost lets it work off
    its input so many times faster than it comes. `partitions` of each operator.
    """

    nodes: int = 10
    lost: int = 8
    cores: float = 4.0
    load: float = 0.8
    partitions: int = 5
    restore_s: float = 15.0
    catch_up: float = 1.5


@dataclass(frozen=True, slots=True)
class Case:
    """One failure: what is to be recovered, the room on the nodes that are left, and when cores come, in order."""

    failure: Failure
    free: float
    arrivals: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each failed query is available again, seconds after the failure, and what the planner did.

    `decided`: free capacity, the flows that ran, and the plan, for each decision.
    """

    available_s: Mapping[str, float]
    planner_s: Sequence[float] = ()
    decided: Sequence[tuple[float, frozenset[str], Plan]] = field(default=(), repr=False)

    def share(self, at_s: float) -> float:
        """The share of the failed queries that is available."""
        return sum(each <= at_s for each in self.available_s.values()) / max(len(self.available_s), 1)

    def until(self, share: float) -> float:
        """When so many of the failed queries are available, seconds."""
        times = sorted(self.available_s.values())
        return times[max(math.ceil(share * len(times)) - 1, 0)] if times else 0.0

    def mean_s(self, priorities: Mapping[str, float]) -> float:
        """The mean time without a query, weighted by priority."""
        total = math.fsum(priorities[name] for name in self.available_s)
        return math.fsum(priorities[name] * at for name, at in self.available_s.items()) / total if total else 0.0


def fail(topology: Topology, cluster: Cluster, arrivals: Arrivals, seed: int) -> Case:
    """Places the operators' partitions at random, and takes some nodes away."""
    if not 0 < cluster.lost <= cluster.nodes:
        raise ValueError(f"lost={cluster.lost} of {cluster.nodes} nodes: give 1 to {cluster.nodes}")
    rng = np.random.default_rng(seed)
    costs: dict[str, float] = {}
    survivors = 0.0
    for name, cost in topology.costs.items():
        nodes = rng.integers(cluster.nodes, size=cluster.partitions)
        gone = int((nodes < cluster.lost).sum())
        survivors += cost * (cluster.partitions - gone) / cluster.partitions
        if gone:
            costs[name] = cost * gone / cluster.partitions
    failed = [query for query in topology.queries if any(flow in costs for flow in query.flows)]
    running = frozenset(topology.costs.keys() - costs.keys())
    left = (cluster.nodes - cluster.lost) * cluster.cores
    if arrivals is Arrivals.PAPER:
        times = rng.uniform(*PAPER_ARRIVALS_S, cluster.lost)
    else:
        times = np.cumsum(rng.exponential(60.0, cluster.lost))
    return Case(
        Failure({**dict.fromkeys(running, 0.0), **costs}, failed, running),
        max(left - survivors, 0.0),
        [(float(at), cluster.cores) for at in sorted(times)],
    )


def recover(case: Case, cluster: Cluster, strategy: Strategy) -> Outcome:
    """One recovery."""
    if strategy is Strategy.AT_ONCE:
        return _at_once(case, cluster)
    return _planned(case, cluster, densest_first if strategy is Strategy.PROGRESSIVE else blocking)


def _planned(case: Case, cluster: Cluster, planner: Planner) -> Outcome:
    """The plan is made at the failure, and anew whenever a node comes."""
    running, free = case.failure.running, case.free
    started: dict[str, float] = {}
    took, decided = [], []
    for at, cores in [(0.0, 0.0), *case.arrivals]:
        free += cores
        failure = Failure(case.failure.costs, case.failure.queries, running)
        before = time.perf_counter()
        plan = planner(failure, free)
        took.append(time.perf_counter() - before)
        decided.append((free, running, plan))
        free -= plan.cost
        running |= frozenset(plan.flows)
        started.update(dict.fromkeys(plan.flows, at))
    current = {flow: _caught_up(at, cluster) for flow, at in started.items()}
    return Outcome(_available(case, current.get), took, decided)


def _caught_up(started_s: float, cluster: Cluster) -> float:
    """When an operator that was started then has worked off what came since the failure."""
    return (started_s + cluster.restore_s) * cluster.catch_up / (cluster.catch_up - 1.0)


def _at_once(case: Case, cluster: Cluster) -> Outcome:
    """All are started at once and share what there is: with too little, each of them falls further behind."""
    waiting = frozenset[str]().union(*(case.failure.waiting(query) for query in case.failure.queries))
    demand, free = case.failure.cost(waiting), case.free
    steps = [(0.0, 0.0), *case.arrivals, (math.inf, 0.0)]
    behind, restored, back = 0.0, 0.0, math.inf
    for (at, cores), (until, _) in itertools.pairwise(steps):
        free += cores
        share = min(free / demand, 1.0) if demand else 1.0
        now = at
        if share > 0 and restored < cluster.restore_s:  # restoring is work too
            end = min(now + (cluster.restore_s - restored) / share, until)
            restored += (end - now) * share
            behind += end - now
            now = end
        if restored < cluster.restore_s - 1e-9:
            behind += until - now
            continue
        gain = cluster.catch_up * share - 1.0
        if gain > 0 and now + behind / gain <= until:
            back = now + behind / gain
            break
        behind -= gain * (until - now)
    return Outcome(_available(case, lambda _: back))


def _available(case: Case, current: Callable[[str], float | None]) -> dict[str, float]:
    """A query is as far as the operator of it that is furthest behind; one that was never started never comes."""
    found = {}
    for query in case.failure.queries:
        times = [current(flow) for flow in case.failure.waiting(query)]
        found[query.name] = max((math.inf if each is None else each for each in times), default=0.0)
    return found
