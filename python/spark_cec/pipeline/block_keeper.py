"""Bounds what waits for the flows of a pipeline: holds the flows upstream that write it, until less waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from spark_cec.availability.keep import (
    Blocking,
    Holds,
    choose_held,
    decide_blocking,
    settle_holds,
)
from spark_cec.pipeline.graph import Graph
from spark_cec.pipeline.query_progress import read_unread
from spark_cec.pipeline.status import HeldFor, State
from spark_cec.pipeline.supervise import Supervisor
from spark_cec.pipeline.worker import Worker

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5

_NOTHING = Blocking()


class BlockKeeper(Worker):
    """Looks now and then at what waits for each flow, and carries out the decisions of `availability.keep`."""

    def __init__(
        self, graph: Graph, keeps: Mapping[str, int], supervisors: Mapping[str, Supervisor],
        changed: Callable[[], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`keeps`: by flow that holds others, how many stored bytes may wait for it. This calls `changed` at a change.

        `supervisors`: of the flows that run here, each after those that feed it.
        """
        super().__init__("cec-pipeline-keep")
        self._pipeline = graph.name
        self._keeps = {name: each for name, each in keeps.items() if name in supervisors}
        self._inputs = {name: graph.nodes[name].inputs for name in self._keeps}
        self._upstream = {name: graph.upstream(name) for name in graph.nodes}
        self._supervisors = supervisors
        self._changed = changed
        self._clock = clock
        self._blockings = dict.fromkeys(self._keeps, _NOTHING)
        self._holds: Holds = {}
        self._ending = threading.Event()

    def held_for(self, flow: str) -> tuple[HeldFor, ...]:
        """For which flows this one is held, and what waits for each of them."""
        holds, blockings = self._holds, self._blockings
        return tuple(HeldFor(by, blockings[by].unread_bytes) for by, held in sorted(holds) if held == flow)

    def end(self) -> None:
        """Ends the thread after its present look."""
        self._ending.set()

    def run(self) -> None:
        """Looks until `end`."""
        while self._keeps and not self._ending.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # of a session that ends: its queries end, too
                _LOG.warning("pipeline %s does not know what waits", self._pipeline, exc_info=True)

    def look(self) -> None:
        """Looks once at each flow, holds those that write too much, and lets go those that need not wait."""
        self._blockings = {name: self._decide(name) for name in self._keeps}
        wanted = {
            by: [one for one in held if one in self._supervisors and not self._supervisors[one].is_over]
            for by, held in choose_held(self._blockings, self._inputs, self._upstream).items()
        }
        before, self._holds = self._holds, settle_holds(self._holds, wanted, self._clock())
        if before.keys() != self._holds.keys():
            self._carry_out(before, self._holds)

    def _decide(self, name: str) -> Blocking:
        supervisor, before = self._supervisors[name], self._blockings[name]
        query = supervisor.running_query()
        if query is not None:
            return decide_blocking(before, read_unread(query), self._keeps[name])
        # A flow that has failed stops no other. One that waits itself, for executors, reads nothing that is held.
        if supervisor.is_over or supervisor.status().state is State.WAITING:
            return _NOTHING
        return decide_blocking(before, None, self._keeps[name])

    def _carry_out(self, before: Holds, now: Holds) -> None:
        """Holds a flow before the flows that feed it, and lets it go after them."""
        self._log({held for _, held in before}, {held for _, held in now})
        order = list(self._supervisors)
        for by, held in sorted(now.keys() - before.keys(), key=lambda pair: -order.index(pair[1])):
            self._supervisors[held].hold(_name(by))
        for by, held in sorted(before.keys() - now.keys(), key=lambda pair: order.index(pair[1])):
            self._supervisors[held].let_go(_name(by))
        self._changed()

    def _log(self, before: set[str], now: set[str]) -> None:
        for flow in sorted(now - before):
            why = " and ".join(f"{each.bytes:,} bytes wait for {each.flow}" for each in self.held_for(flow))
            _LOG.warning("pipeline %s holds flow %s: %s", self._pipeline, flow, why)
        for flow in sorted(before - now):
            _LOG.warning("pipeline %s lets flow %s go on: less waits", self._pipeline, flow)


def _name(by: str) -> str:
    """Who holds a flow, for `Supervisor.hold`."""
    return f"keep of {by}"
