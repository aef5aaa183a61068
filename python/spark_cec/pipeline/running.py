"""A pipeline that runs: its flows' supervisors, who of them may run, the status that it writes, and its end."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cec.errors import CecError, DamagedLog, UnsuitableCheckpoint
from spark_cec.pipeline.capacity import Capacity, RecoveryMode, RecoveryPolicy, Standing
from spark_cec.pipeline.cluster import Cluster
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.flows import Flows
from spark_cec.pipeline.graph import Graph, GraphError, nearest
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.release import keeps_up
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.pipeline.status import CapacityStatus, PipelineStatus, starving
from spark_cec.pipeline.supervise import Patience, Supervisor, batch_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)

TOLD_EVERY_S = 1.0
"""How old the status in the home may be while the pipeline runs."""

LOOKS_EVERY_S = 0.5
"""At the executors."""


class PipelineFailed(CecError):
    """Flows have failed for good: the message has the error of each. Attribute: `status`."""

    def __init__(self, status: PipelineStatus) -> None:
        each = "; ".join(f"flow {flow.name} has failed: {flow.error}" for flow in status.failed)
        super().__init__(f"pipeline {status.name}: {each}")
        self.status = status


def chosen(graph: Graph, only: Collection[str] | None) -> frozenset[str]:
    """The flows to run, of one in several instances all of them. Raises `GraphError` for names that are none."""
    if only is None:
        return frozenset(graph.nodes)
    known = frozenset[str]().union(*(node.is_called for node in graph.nodes.values()))
    unknown = [f"there is no flow {name}: {nearest(name, known)}" for name in sorted(frozenset(only) - known)]
    if unknown or not only:
        raise GraphError(graph.name, unknown or ["no flow was chosen to run"])
    return frozenset(node.name for node in graph.nodes.values() if node.is_called & frozenset(only))


class RunningPipeline:
    """All flows of a pipeline in one application, each started again alone when it fails."""

    def __init__(
        self, pipeline: Declaration, spark: SparkSession, patience: Patience | None = None,
        only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None,
    ) -> None:  # fmt: skip
        """Starts it; see `Pipeline.start`."""
        self._graph = pipeline.graph()
        self._chosen = chosen(self._graph, only)
        self._home = PipelineHome(pipeline.home)
        checkpointing = pipeline.checkpointing
        if not checkpointing.is_cec and self._chosen != frozenset(self._graph.nodes):
            only_all = f"under protocol={checkpointing.protocol.value!r} all flows run, or none"
            raise GraphError(self._graph.name, [f"{len(self._chosen)} of its flows were chosen: {only_all}"])
        self._lines = None if checkpointing.is_cec else ProtocolRuns(pipeline.home, self._graph, checkpointing)
        self._broken: set[str] = set()
        flows = Flows(spark, self._graph, pipeline.flows, self._home, self._lines)
        self._over = threading.Event()
        self._news = threading.Event()
        self._supervisors = {
            name: Supervisor(
                name, lambda name=name: flows.start(name), patience or Patience(), self._news.set,  # type: ignore[misc]
                failed=self._lines_are_broken,
            )
            for members in self._graph.order()
            for name in members
            if name in self._chosen
        }
        self._cluster = Cluster(spark)
        policy = recovery or RecoveryPolicy()
        self._precedence = policy.mode is not RecoveryMode.AT_ONCE
        if self._cluster.is_elastic or self._lines is not None:
            policy = replace(policy, mode=RecoveryMode.AT_ONCE)
        self._capacity = Capacity(self._graph, self._chosen, policy)
        self._standing: Standing | None = None
        self._first: dict[str, bool] = {}
        self._teller = threading.Thread(target=self._tell, name="cec-pipeline-status", daemon=True)
        self._takes_back = threading.Thread(target=self._go_back_to_lines, name="cec-pipeline-lines", daemon=True)
        self._keeper = threading.Thread(target=self._keep_within_capacity, name="cec-pipeline-capacity", daemon=True)
        try:
            self._home.take(self._graph, flows.schemas(), checkpointing)
        except BaseException:
            self._cluster.detach()
            raise
        try:
            if self._lines is not None:
                self._lines.begin_run()
            self._let_those_that_are_not_behind_go_first()
        except BaseException:
            self._home.release()
            self._cluster.detach()
            raise
        for supervisor in self._supervisors.values():
            supervisor.start()
        self._teller.start()
        self._keeper.start()
        if self._lines is not None:
            self._takes_back.start()

    def status(self) -> PipelineStatus:
        """What each flow does now, in the order of the graph."""
        standing = self._standing
        costs = {} if standing is None else standing.costs
        told = [replace(each.status(), cores=_rounded(costs.get(name))) for name, each in self._supervisors.items()]
        return PipelineStatus(
            self._graph.name, self._home.home, os.getpid(), int(time.time() * 1000), starving(self._graph, told),
            None if standing is None else _capacity(standing),
            *(("cec", 0) if self._lines is None else (self._lines.checkpointing.protocol.value, self._lines.rollbacks)),
        )  # fmt: skip

    def queries(self) -> dict[str, StreamingQuery]:
        """Spark's query of each flow, the newest that was started: for its progress, not to stop it."""
        return {name: query for name, each in self._supervisors.items() if (query := each.query()) is not None}

    def wait(self, timeout_s: float | None = None) -> PipelineStatus:
        """Until no flow runs, nor will, or for so long; an interruption stops them all.

        Raises `PipelineFailed` if all are over and one has failed.
        """
        try:
            self._over.wait(timeout_s)
        except BaseException:
            self.stop()
            raise
        status = self.status()
        if self._over.is_set() and status.failed:
            raise PipelineFailed(status)
        return status

    def stop(self) -> PipelineStatus:
        """Stops all flows, sinks first, and gives the home back; answers what they were at the end."""
        if self._lines is not None and not self._over.is_set():
            try:
                self._lines.note_stop()
            except Exception:  # of a storage: then the next start goes back to the last line
                _LOG.warning("that pipeline %s stops in good order is not noted", self._graph.name, exc_info=True)
        for supervisor in reversed(self._supervisors.values()):
            supervisor.stop()
        for supervisor in self._supervisors.values():
            supervisor.join()
        self._teller.join()
        self._keeper.join()
        return self.status()

    @property
    def is_over(self) -> bool:
        """Whether no flow runs, nor will, and the home is given back."""
        return self._over.is_set()

    def _keep_within_capacity(self) -> None:
        """Looks at the executors now and then, and holds flows back, or lets them go, as the capacity has it."""
        while not self._over.wait(LOOKS_EVERY_S):
            try:
                self._look()
            except Exception:  # of a session that ends: then its queries do, too
                _LOG.warning("pipeline %s does not know its executors", self._graph.name, exc_info=True)
        with contextlib.suppress(Exception):
            self._cluster.detach()

    def _look(self) -> None:
        if self._lines is not None:
            for name, newest in self.queries().items():
                self._lines.warn_of_long_batch(name, batch_ms(newest))
        ids = {query: name for name, each in self._supervisors.items() if (query := each.query_id()) is not None}
        self._let_those_that_are_not_behind_go_first()
        told = [each.status() for each in self._supervisors.values()]
        up, over = [each.name for each in told if keeps_up(each)], [each.name for each in told if each.state.is_over]
        before, now = self._standing, self._capacity.look(self._cluster.look(ids), up, over)
        self._standing = now
        was, waiting = frozenset[str]() if before is None else before.waiting, now.waiting
        if was == waiting:
            return
        _LOG.warning("pipeline %s: %s", self._graph.name, _told(now))
        # What is fed is held before what feeds it, and let go after it.
        for name, each in reversed(self._supervisors.items()):
            if name in waiting - was:
                each.hold()
        for name, each in self._supervisors.items():
            if name in was - waiting:
                each.let_go()
        self._news.set()

    def _lines_are_broken(self, failed: str) -> None:
        """In the thread of a flow that has failed: all that would have to go back are held before it starts again."""
        if self._lines is None or not self._lines.takes_part(failed):
            return
        for name, each in reversed(self._supervisors.items()):
            if self._lines.takes_part(name):
                each.hold()
        self._broken.add(failed)

    def _go_back_to_lines(self) -> None:
        """Whenever a flow has failed: waits until none of those that take part runs, and takes them back together."""
        lines = self._lines
        assert lines is not None
        together = [each for name, each in self._supervisors.items() if lines.takes_part(name)]
        while any(each.is_alive() for each in self._supervisors.values()):
            if self._over.wait(LOOKS_EVERY_S / 5):
                return
            if not self._broken or not all(each.is_at_rest for each in together):
                continue
            failed = frozenset(self._broken)
            try:
                if all(each.is_alive() for each in together):
                    lines.begin_run(failed)
                else:  # one has failed for good: the others would wait for it
                    self._stop_all()
            except (UnsuitableCheckpoint, DamagedLog) as error:
                for supervisor in together:
                    supervisor.give_up(f"the flows cannot go back to one line: {error}")
                self._stop_all()
            except Exception:  # of a storage, or of a lease that is still there: the same steps again
                _LOG.warning("the flows of pipeline %s are not back at one line yet", self._graph.name, exc_info=True)
                self._over.wait(TOLD_EVERY_S)
                continue
            self._broken -= failed
            for supervisor in together:
                supervisor.let_go()

    def _stop_all(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.stop()

    def _let_those_that_are_not_behind_go_first(self) -> None:
        """What catches up has long tasks, many at a time: with what the others leave, it does not stop these."""
        if not self._precedence:
            return
        for name, each in self._supervisors.items():
            first = each.status().behind == 0
            if self._first.get(name) is not first:
                self._first[name] = first
                self._cluster.precede(name, first)

    def _tell(self) -> None:
        """Writes the status when there is news, and now and then, until all is over."""
        try:
            while True:
                self._news.wait(TOLD_EVERY_S)
                self._news.clear()
                # Seen before the status is: what ends after that is told in the next round.
                over = not any(each.is_alive() for each in self._supervisors.values())
                try:
                    self._home.tell(self.status())
                except Exception:  # of a storage: the flows have errors of their own where they need it
                    _LOG.warning("the status of pipeline %s was not written", self._graph.name, exc_info=True)
                if over:
                    return
        finally:
            if self._takes_back.is_alive():  # the next driver must not find it at work
                self._takes_back.join()
            self._home.release()
            self._over.set()


def _capacity(standing: Standing) -> CapacityStatus:
    since = standing.since_s
    recovering = None if since is None else round(time.monotonic() - since, 1)
    return CapacityStatus(
        standing.executors, standing.cores, round(standing.wanted, 2), recovering, standing.coming
    )  # fmt: skip


def _told(standing: Standing) -> str:
    has = f"{standing.executors} executors with {standing.cores} cores, {standing.wanted:.1f} wanted"
    if not standing.waiting:
        return f"{has}: all flows run"
    more = f"; one more executor brings back {', '.join(standing.coming)}" if standing.coming else ""
    return f"{has}: {len(standing.waiting)} flows wait{more}"


def _rounded(cores: float | None) -> float | None:
    return None if cores is None else round(cores, 2)
