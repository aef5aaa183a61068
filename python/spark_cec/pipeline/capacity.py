"""Decides which flows may run on a cluster: all, until it loses many executors at once (progressive recovery).

Pure: takes the executors and the task time of each flow, and answers which flows run. A running pipeline and the tests
call it alike. Capacity and costs are in busy cores: tasks that run at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from spark_cec.pipeline.graph import Graph
from spark_cec.pipeline.release import ABREAST, Release
from spark_cec.recovery.progressive import Failure, Plan, Planner, Query, blocking, densest_first

_LOWEST = 1e-9

LEAST_COST = 0.01
"""The cost of a flow that seems to need no core: it has tasks all the same."""

MEMORY_S = 30.0
"""The time over which costs are means; older task time counts less and less."""


class RecoveryMode(str, Enum):
    """The flows that start after a loss of many executors: the densest that fit, all once all fit, or all at once."""

    PROGRESSIVE = "progressive"
    BLOCKING = "blocking"
    AT_ONCE = "at-once"


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """When a loss of executors begins a recovery, and how the recovery goes.

    It begins if `lost` or more executors, and the share `share` of all, are lost within `within_s`, and the rest cannot
    carry all flows. Flows may keep the share `fill` of the cores busy. One query runs even if it does not fit. If the
    cluster gains no core for `patience_s`, all flows start. At most `abreast` queries catch up with their inputs at a
    time, except in mode `BLOCKING`.
    """

    mode: RecoveryMode = RecoveryMode.PROGRESSIVE
    lost: int = 2
    share: float = 1 / 3
    within_s: float = 10.0
    fill: float = 0.9
    patience_s: float = 900.0
    abreast: int = ABREAST

    @property
    def planner(self) -> Planner:
        """The planner that orders the queries."""
        return blocking if self.mode is RecoveryMode.BLOCKING else densest_first


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """A look at the cluster: how many tasks each executor runs at once, and each flow's task time so far."""

    at_s: float
    executors: Mapping[str, int]
    task_s: Mapping[str, float]

    @property
    def cores(self) -> int:
        """The cores of all executors."""
        return sum(self.executors.values())


class Costs:
    """C_k of each flow: its task time per second, an exponential mean over `MEMORY_S`."""

    def __init__(self) -> None:
        self._last: ClusterLook | None = None
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def note(self, seen: ClusterLook) -> None:
        """Adds a look; ignores one that is not later than the last."""
        last, self._last = self._last, seen
        if last is None or seen.at_s <= last.at_s:
            return
        passed = seen.at_s - last.at_s
        keep = math.exp(-passed / MEMORY_S)
        self._weight = self._weight * keep + (1 - keep)
        for flow, now in seen.task_s.items():
            busy = max(now - last.task_s.get(flow, 0.0), 0.0) / passed
            self._sums[flow] = self._sums.get(flow, 0.0) * keep + busy * (1 - keep)

    def skip(self, seen: ClusterLook) -> None:
        """Leaves out the time between the last look and this one, in which executors were lost."""
        self._last = seen

    def estimate(self, flows: Iterable[str]) -> dict[str, float]:
        """C_k of these flows."""
        return {flow: max(self._sums.get(flow, 0.0) / (self._weight or 1.0), LEAST_COST) for flow in flows}


@dataclass(frozen=True, slots=True)
class CapacityStanding:
    """The executors and their cores, the busy cores that all flows want, the costs, and the flows that wait.

    `since_s`: when the executors were lost, None outside a recovery. `coming`: the queries that one more executor
    brings back.
    """

    executors: int
    cores: int
    wanted: float
    costs: Mapping[str, float]
    since_s: float | None = None
    waiting: frozenset[str] = frozenset()
    coming: tuple[str, ...] = ()


class Capacity:
    """Decides after each look at the cluster which flows run."""

    def __init__(self, graph: Graph, flows: Collection[str], policy: RecoveryPolicy) -> None:
        """`flows`: the flows of the graph that were chosen to run."""
        self._queries = find_queries(graph, flows)
        self._flows = frozenset(flows)
        self._policy = policy
        self._measured = Costs()
        self._recent: deque[ClusterLook] = deque()
        self._running = self._flows
        self._costs: dict[str, float] = {}
        self._lost_at_s: float | None = None
        self._most_cores, self._grew_at_s = 0, 0.0
        self._over = frozenset[str]()
        self._release = Release(self._flows, policy.abreast)

    def look(self, seen: ClusterLook, up: Collection[str], over: Collection[str] = ()) -> CapacityStanding:
        """Takes the next look into account; all flows that are not `waiting` in the answer must run.

        `up`: the flows that keep up with their inputs. `over`: the flows that have ended or failed.
        """
        before = self._recent[-1] if self._recent else None
        changed = before is None or before.executors.keys() != seen.executors.keys() or self._over != frozenset(over)
        self._over = frozenset(over)
        if seen.cores > self._most_cores:
            self._most_cores, self._grew_at_s = seen.cores, seen.at_s
        self._recent.append(seen)
        while self._recent[0].at_s < seen.at_s - self._policy.within_s:
            self._recent.popleft()
        if self._lost_at_s is None:
            self._notice(seen)
        elif seen.at_s - self._grew_at_s > self._policy.patience_s:
            self._running = self._flows  # whatever changes meanwhile: executors may come and go for ever
        elif changed:
            self._plan(seen)
        if self._lost_at_s is not None:
            self._release_flows(seen, up)
        return self._standing(seen)

    def _notice(self, seen: ClusterLook) -> None:
        """Begins a recovery if many executors were lost; else learns the costs of the flows."""
        most = max(self._recent, key=lambda each: each.cores)
        lost = frozenset().union(*(each.executors for each in self._recent)) - seen.executors.keys()
        if lost:
            self._measured.skip(seen)
        else:
            self._measured.note(seen)
        costs = self._measured.estimate(self._flows)
        # Flows that caught up kept all cores busy. They want at most the cores of then, or they would wait for ever.
        room_then = self._policy.fill * most.cores
        wanted = math.fsum(costs.values())
        self._costs = {flow: cost * min(1.0, room_then / wanted) for flow, cost in costs.items()} if wanted else costs
        is_large = len(lost) >= self._policy.lost and len(lost) >= self._policy.share * len(most.executors)
        if is_large and self._policy.mode is not RecoveryMode.AT_ONCE and self._lacks_room(seen):
            self._lost_at_s = seen.at_s
            self._most_cores, self._grew_at_s = seen.cores, seen.at_s
            self._plan(seen)

    def _plan(self, seen: ClusterLook) -> None:
        """Lets running flows go on if all fit, else the best of them; then adds the best flows that wait and fit."""
        room = self._room(seen.cores)
        self._costs.update(dict.fromkeys(self._over, 0.0))
        self._running = self._release.released | self._over
        if self._failure().cost(self._running) > room:
            back = [query for query in self._weighed() if query.flows <= self._running]
            kept = self._policy.planner(Failure(self._costs, back, self._over), room)
            self._running = self._over | frozenset(kept.flows)
        self._running |= frozenset(self._more(room).flows)
        if self._running <= self._over and seen.cores and self._policy.mode is RecoveryMode.PROGRESSIVE:
            # A query that does not fit is better than idle cores.
            first = self._more(math.inf).queries[:1]
            self._running |= frozenset().union(*(each.flows for each in self._queries if each.name in first))

    def _release_flows(self, seen: ClusterLook, up: Collection[str]) -> None:
        """Releases flows that fit; ends the recovery when all run."""
        self._release.hold_all_but(self._running)
        waiting = self._best_first(self._running, self._release.released)
        if self._policy.mode is RecoveryMode.PROGRESSIVE:
            while self._release.next(seen.at_s, waiting, up):
                waiting = self._best_first(self._running, self._release.released)
        else:
            self._release.released = self._running
        if self._release.released >= self._flows:
            self._end(seen)

    def _best_first(self, among: frozenset[str], running: frozenset[str]) -> list[Query]:
        """The queries among these flows that do not run yet, in the order of the plan."""
        queries = [query for query in self._weighed() if query.flows <= among and not query.flows <= running]
        order = self._policy.planner(Failure(self._costs, queries, running), math.inf).queries
        return sorted(queries, key=lambda query: order.index(query.name))

    def _more(self, room: float) -> Plan:
        failure = self._failure()
        return self._policy.planner(failure, room - failure.cost(self._running))

    def _end(self, seen: ClusterLook) -> None:
        """Ends the recovery: all flows run, and costs are learned again."""
        self._running = self._flows
        self._lost_at_s = None
        self._recent = deque([seen])
        self._measured.skip(seen)

    def _lacks_room(self, seen: ClusterLook) -> bool:
        return math.fsum(self._costs.values()) > self._room(seen.cores)

    def _room(self, cores: float) -> float:
        return self._policy.fill * cores * (1 + 1e-9)

    def _failure(self) -> Failure:
        waiting = [query for query in self._weighed() if not query.flows <= self._running]
        return Failure(self._costs, waiting, self._running)

    def _weighed(self) -> list[Query]:
        """The queries. A query whose sink is over comes last; its other flows may still feed channels."""
        return [replace(q, priority=q.priority * _LOWEST) if q.name in self._over else q for q in self._queries]

    def _standing(self, seen: ClusterLook) -> CapacityStanding:
        coming: tuple[str, ...] = ()
        if self._lost_at_s is not None:
            one = seen.cores / len(seen.executors) if seen.executors else 1.0
            coming = self._more(self._room(seen.cores + one)).queries
        wanted = math.fsum(self._costs.values())
        return CapacityStanding(
            len(seen.executors), seen.cores, wanted, dict(self._costs), self._lost_at_s,
            self._flows - self._release.released, coming,
        )  # fmt: skip


def find_queries(graph: Graph, flows: Collection[str]) -> list[Query]:
    """The queries among the chosen flows. A flow that belongs to no query gets one of its own."""
    chosen = frozenset(flows)
    found = [Query(each.name, each.flows & chosen, each.priority) for each in graph.queries() if each.name in chosen]
    covered = frozenset[str]().union(*(query.flows for query in found))
    for members in reversed(graph.order()):
        for name in members:
            if name in chosen - covered:
                found.append(Query(name, graph.upstream(name) & chosen))
                covered |= found[-1].flows
    return found
