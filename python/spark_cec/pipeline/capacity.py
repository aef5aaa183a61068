"""Which flows may run on what a cluster has: all of them, until many executors are lost at once (progressive recovery).

Pure: it is told what the executors are and how long the tasks of each flow have taken, and answers which flows run. The
pipeline that runs, and the tests, drive it alike. Capacity and costs are in busy cores: tasks that run at once.
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

_LAST = 1e-9

LEAST_COST = 0.01
"""Busy cores of a flow that seems to need none: it has tasks all the same."""

MEMORY_S = 30.0
"""Costs are means over the last so many seconds, older ones counting for less and less."""


class RecoveryMode(str, Enum):
    """Who is started when many executors were lost: the densest queries that fit, all once all fit, or all at once."""

    PROGRESSIVE = "progressive"
    BLOCKING = "blocking"
    AT_ONCE = "at-once"


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """When executors are lost in numbers, and what is done then.

    That is: `lost` or more of them, and `share` of all, within `within_s`; and what is left, of which flows may keep
    the share `fill` busy, cannot carry all flows. One query runs whether it fits or not. Flows that wait are started,
    whether they fit or not, when no core has been gained for `patience_s`: then the cluster is what it is. No more than
    `abreast` queries catch up with their inputs at a time (not so where all wait for all).
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
        """Which flows come first."""
        return blocking if self.mode is RecoveryMode.BLOCKING else densest_first


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at the cluster: tasks that each executor runs at once, and each flow's task time so far, in seconds."""

    at_s: float
    executors: Mapping[str, int]
    task_s: Mapping[str, float]

    @property
    def cores(self) -> int:
        """Of all executors."""
        return sum(self.executors.values())


class Costs:
    """C_k of each flow: its task time per second, as a mean over `MEMORY_S` that forgets exponentially."""

    def __init__(self) -> None:
        self._last: Seen | None = None
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def note(self, seen: Seen) -> None:
        """Learns from a look that was later than the last."""
        last, self._last = self._last, seen
        if last is None or seen.at_s <= last.at_s:
            return
        passed = seen.at_s - last.at_s
        keep = math.exp(-passed / MEMORY_S)
        self._weight = self._weight * keep + (1 - keep)
        for flow, now in seen.task_s.items():
            busy = max(now - last.task_s.get(flow, 0.0), 0.0) / passed
            self._sums[flow] = self._sums.get(flow, 0.0) * keep + busy * (1 - keep)

    def pass_over(self, seen: Seen) -> None:
        """What lies between the last look and this one is not as it is on other days."""
        self._last = seen

    def of(self, flows: Iterable[str]) -> dict[str, float]:
        """C_k of these."""
        return {flow: max(self._sums.get(flow, 0.0) / (self._weight or 1.0), LEAST_COST) for flow in flows}


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands: the executors and their cores, busy cores that all flows want, and, in a recovery, what waits.

    `since_s` is when the executors were lost, None when nothing waits; `coming` are the queries that one more executor
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
    """Told of the cluster now and then, decides which flows run."""

    def __init__(self, graph: Graph, flows: Collection[str], policy: RecoveryPolicy) -> None:
        """`flows`: those of the graph that were chosen to run."""
        self._queries = queries_of(graph, flows)
        self._flows = frozenset(flows)
        self._policy = policy
        self._measured = Costs()
        self._recent: deque[Seen] = deque()
        self._running = self._flows
        self._costs: dict[str, float] = {}
        self._lost_at_s: float | None = None
        self._most_cores, self._grew_at_s = 0, 0.0
        self._over = frozenset[str]()
        self._release = Release(self._flows, policy.abreast)

    def look(self, seen: Seen, up: Collection[str], over: Collection[str] = ()) -> Standing:
        """The next look; what is not `waiting` in the answer is to run.

        `up`: flows that keep up with their inputs; `over`: those that have ended, or failed.
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
            self._running = self._flows  # whatever changes meanwhile, as where executors come and go for ever
        elif changed:
            self._plan(seen)
        if self._lost_at_s is not None:
            self._let_go(seen, up)
        return self._standing(seen)

    def _notice(self, seen: Seen) -> None:
        """Begins a recovery if executors were lost in numbers; else learns what flows cost."""
        most = max(self._recent, key=lambda each: each.cores)
        lost = frozenset().union(*(each.executors for each in self._recent)) - seen.executors.keys()
        if lost:
            self._measured.pass_over(seen)
        else:
            self._measured.note(seen)
        costs = self._measured.of(self._flows)
        # Flows that kept all cores busy, catching up, want what there was: else they would wait for ever.
        room_then = self._policy.fill * most.cores
        wanted = math.fsum(costs.values())
        self._costs = {flow: cost * min(1.0, room_then / wanted) for flow, cost in costs.items()} if wanted else costs
        in_numbers = len(lost) >= self._policy.lost and len(lost) >= self._policy.share * len(most.executors)
        if in_numbers and self._policy.mode is not RecoveryMode.AT_ONCE and self._lack(seen):
            self._lost_at_s = seen.at_s
            self._most_cores, self._grew_at_s = seen.cores, seen.at_s
            self._plan(seen)

    def _plan(self, seen: Seen) -> None:
        """Who runs goes on if there is room for all of them; then the best of those that wait."""
        room = self._room(seen.cores)
        self._costs.update(dict.fromkeys(self._over, 0.0))
        self._running = self._release.let_go | self._over
        if self._failure().cost(self._running) > room:
            back = [query for query in self._weighed() if query.flows <= self._running]
            kept = self._policy.planner(Failure(self._costs, back, self._over), room)
            self._running = self._over | frozenset(kept.flows)
        self._running |= frozenset(self._more(room).flows)
        if self._running <= self._over and seen.cores and self._policy.mode is RecoveryMode.PROGRESSIVE:
            # More than there is room for is better than cores that have nothing to do.
            first = self._more(math.inf).queries[:1]
            self._running |= frozenset().union(*(each.flows for each in self._queries if each.name in first))

    def _let_go(self, seen: Seen, up: Collection[str]) -> None:
        """Of those that there is room for; when all run, it is over."""
        self._release.hold_all_but(self._running)
        waiting = self._best_first(self._running, self._release.let_go)
        if self._policy.mode is RecoveryMode.PROGRESSIVE:
            while self._release.next(seen.at_s, waiting, up):
                waiting = self._best_first(self._running, self._release.let_go)
        else:
            self._release.let_go = self._running
        if self._release.let_go >= self._flows:
            self._end(seen)

    def _best_first(self, among: frozenset[str], running: frozenset[str]) -> list[Query]:
        """The queries of these flows that do not run yet, in the order of the plan."""
        queries = [query for query in self._weighed() if query.flows <= among and not query.flows <= running]
        order = self._policy.planner(Failure(self._costs, queries, running), math.inf).queries
        return sorted(queries, key=lambda query: order.index(query.name))

    def _more(self, room: float) -> Plan:
        failure = self._failure()
        return self._policy.planner(failure, room - failure.cost(self._running))

    def _end(self, seen: Seen) -> None:
        """All run: costs are learned from here on."""
        self._running = self._flows
        self._lost_at_s = None
        self._recent = deque([seen])
        self._measured.pass_over(seen)

    def _lack(self, seen: Seen) -> bool:
        return math.fsum(self._costs.values()) > self._room(seen.cores)

    def _room(self, cores: float) -> float:
        return self._policy.fill * cores * (1 + 1e-9)

    def _failure(self) -> Failure:
        waiting = [query for query in self._weighed() if not query.flows <= self._running]
        return Failure(self._costs, waiting, self._running)

    def _weighed(self) -> list[Query]:
        """The queries; those whose sink is over come last, for what feeds it."""
        return [replace(q, priority=q.priority * _LAST) if q.name in self._over else q for q in self._queries]

    def _standing(self, seen: Seen) -> Standing:
        coming: tuple[str, ...] = ()
        if self._lost_at_s is not None:
            one = seen.cores / len(seen.executors) if seen.executors else 1.0
            coming = self._more(self._room(seen.cores + one)).queries
        wanted = math.fsum(self._costs.values())
        return Standing(
            len(seen.executors), seen.cores, wanted, dict(self._costs), self._lost_at_s,
            self._flows - self._release.let_go, coming,
        )  # fmt: skip


def queries_of(graph: Graph, flows: Collection[str]) -> list[Query]:
    """The queries among some of a graph's flows; one of its own for a flow that belongs to none."""
    chosen = frozenset(flows)
    found = [Query(each.name, each.flows & chosen, each.priority) for each in graph.queries() if each.name in chosen]
    covered = frozenset[str]().union(*(query.flows for query in found))
    for members in reversed(graph.order()):
        for name in members:
            if name in chosen - covered:
                found.append(Query(name, graph.upstream(name) & chosen))
                covered |= found[-1].flows
    return found
