"""Keeps the flows of a pipeline within the capacity of its cluster: holds them, and lets them go."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping

from spark_cec.pipeline.capacity import Capacity, CapacityStanding
from spark_cec.pipeline.cluster import Cluster
from spark_cec.pipeline.release import keeps_up
from spark_cec.pipeline.supervise import Supervisor
from spark_cec.pipeline.worker import Worker

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class CapacityKeeper(Worker):
    """Looks at the executors now and then, and carries out the decisions of `Capacity`.

    Also gives tasks of flows that keep up the next free core, unless the policy leaves the order to Spark.
    """

    def __init__(
        self, pipeline: str, cluster: Cluster, capacity: Capacity, supervisors: Mapping[str, Supervisor],
        news: threading.Event, *, prioritizes: bool, corrects: Callable[[str], bool] = lambda _: False,
    ) -> None:  # fmt: skip
        """`pipeline`: its name. `supervisors`: each after those that feed it. `news`: this sets it at a change.

        `corrects`: whether a flow gives out the rows that replace tentative ones.
        """
        super().__init__("cec-pipeline-capacity")
        self._pipeline = pipeline
        self._cluster = cluster
        self._capacity = capacity
        self._supervisors = supervisors
        self._news = news
        self._prioritizes = prioritizes
        self._corrects = corrects
        self._prior: dict[str, bool] = {}
        self._standing: CapacityStanding | None = None
        self._ending = threading.Event()

    @property
    def standing(self) -> CapacityStanding | None:
        """How the executors stood at the last look; None before the first one."""
        return self._standing

    def run(self) -> None:
        """Looks until `end`, and detaches from the cluster then."""
        while not self._ending.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # of a session that ends: its queries end, too
                _LOG.warning("pipeline %s does not know its executors", self._pipeline, exc_info=True)
        with contextlib.suppress(Exception):
            self._cluster.detach()

    def end(self) -> None:
        """Ends the thread after its present look."""
        self._ending.set()

    def look(self) -> None:
        """Looks at the executors once, holds the flows that now have to wait, and lets go those that need not."""
        self.prioritize_caught_up_flows()
        queries = {query: name for name, each in self._supervisors.items() if (query := each.query_id()) is not None}
        flows = [each.status() for each in self._supervisors.values()]
        caught_up = [each.name for each in flows if keeps_up(each)]
        over = [each.name for each in flows if each.state.is_over]
        before, now = self._standing, self._capacity.look(self._cluster.look(queries), caught_up, over)
        self._standing = now
        waited = frozenset[str]() if before is None else before.waiting
        if waited == now.waiting:
            return
        _LOG.warning("pipeline %s: %s", self._pipeline, _describe(now))
        # Hold a flow before the flows that feed it, and let it go after them.
        for name, each in reversed(list(self._supervisors.items())):
            if name in now.waiting - waited:
                each.hold()
        for name, each in self._supervisors.items():
            if name in waited - now.waiting:
                each.let_go()
        self._news.set()

    def prioritize_caught_up_flows(self) -> None:
        """Gives tasks of flows that are not behind the next core.

        A flow that catches up has many long tasks. It gets the cores that the others leave, so it does not stop them.
        But if it replaces tentative rows, its own epoch must not slow it down, so it keeps its place.
        """
        if not self._prioritizes:
            return
        for name, each in self._supervisors.items():
            is_prior = each.status().behind == 0 or self._corrects(name)
            if self._prior.get(name) is not is_prior:
                self._prior[name] = is_prior
                self._cluster.precede(name, is_prior)


def _describe(standing: CapacityStanding) -> str:
    has = f"{standing.executors} executors with {standing.cores} cores, {standing.wanted:.1f} wanted"
    if not standing.waiting:
        return f"{has}: all flows run"
    more = f"; one more executor brings back {', '.join(standing.coming)}" if standing.coming else ""
    return f"{has}: {len(standing.waiting)} flows wait{more}"
