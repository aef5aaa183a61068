"""A pipeline that runs: its flows' supervisors, the status that it writes into its home, and its end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_cec.errors import CecError
from spark_cec.pipeline.block_keeper import BlockKeeper
from spark_cec.pipeline.capacity import CapacityStanding
from spark_cec.pipeline.capacity_keeper import CapacityKeeper
from spark_cec.pipeline.epoch_keeper import EpochKeeper
from spark_cec.pipeline.graph import Graph
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.joint_recovery import JointRecovery
from spark_cec.pipeline.query_progress import batch_ms, read_wait
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.pipeline.sink_keeper import SinkKeeper
from spark_cec.pipeline.status import (
    CapacityStatus,
    FlowStatus,
    PipelineStatus,
    State,
    mark_given_up,
    mark_starving,
    mark_waiting,
)
from spark_cec.pipeline.supervise import Supervisor
from spark_cec.pipeline.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)

STATUS_EVERY_S = 1.0
"""The greatest age of the status in the home while the pipeline runs."""

_LEASE_WAIT_S = 2.0
"""How long an end waits until the lease of the sinks is given back. One that waits for the lease has none."""

FindBlocked = Callable[[str, Collection[str]], tuple[str, ...]]


class PipelineFailed(CecError):
    """Flows have failed for good: the message has the error of each. Attribute: `status`."""

    def __init__(self, status: PipelineStatus) -> None:
        each = "; ".join(f"flow {flow.name} has failed: {flow.error}" for flow in status.failed)
        super().__init__(f"pipeline {status.name}: {each}")
        self.status = status


class RunningPipeline:
    """All flows of a pipeline in one application; `start_pipeline` makes one. A flow that fails starts again alone."""

    def __init__(
        self, graph: Graph, home: PipelineHome, supervisors: Mapping[str, Supervisor], keeper: CapacityKeeper,
        news: threading.Event, runs: ProtocolRuns | None, recovery: JointRecovery | None,
        epochs: Mapping[str, EpochKeeper], find_blocked: FindBlocked, blocks: BlockKeeper,
        sinks: SinkKeeper | None = None,
    ) -> None:  # fmt: skip
        """Starts nothing. `supervisors`: each after those that feed it. `news`: set when the status changes.

        `runs` and `recovery`: None if each flow recovers by itself. `epochs`: of the flows that answer within X.
        `find_blocked`: by a flow and the inputs that are away, the inputs that wait for them in a join. `blocks`: it
        holds flows upstream of those that keep too much. `sinks`: of a replica, None without replicas.
        """
        self._graph = graph
        self._home = home
        self._supervisors = supervisors
        self._keeper = keeper
        self._news = news
        self._runs = runs
        self._recovery = recovery
        self._epochs = epochs
        self._find_blocked = find_blocked
        self._blocks = blocks
        self._sinks = sinks
        self._over = threading.Event()
        self._is_given_up = False
        self._status_writer = _StatusWriter(self._write_statuses)

    def start_threads(self) -> None:
        """Starts all threads; if one cannot start, stops the flows that run, and waits for their end."""
        self._keeper.prioritize_caught_up_flows()
        workers = self._list_workers()
        workers.extend(each for each in (self._recovery, self._sinks) if each is not None)
        try:
            for each in workers:
                each.start()
        except BaseException:
            self._stop_flows()
            self._end_watchers()
            for each in workers:
                if each.is_alive():
                    each.join()
            raise

    def status(self) -> PipelineStatus:
        """What each flow does now, in the order of the graph."""
        standing = self._keeper.standing
        costs = {} if standing is None else standing.costs
        flows = [
            self._add_standby(_add_tentative(
                replace(each.status(), cores=_round(costs.get(name)), held_for=self._blocks.held_for(name)),
                self._epochs.get(name), self._find_blocked,
            ))
            for name, each in self._supervisors.items()
        ]  # fmt: skip
        waits = {name: read_wait(query) for name, query in self.queries().items()}
        flows = mark_given_up(flows, {name: each.given_up for name, each in waits.items()})
        held = {name: each.long_waited_for for name, each in waits.items()}
        marked = mark_waiting(self._graph, mark_starving(self._graph, flows), held)
        return PipelineStatus(
            self._graph.name, self._home.home, os.getpid(), int(time.time() * 1000), marked,
            None if standing is None else _describe_capacity(standing),
            *(("cec", 0) if self._runs is None else (self._runs.checkpointing.protocol.value, self._runs.rollbacks)),
        )  # fmt: skip

    def _add_standby(self, flow: FlowStatus) -> FlowStatus:
        stands_by = self._sinks is not None and self._sinks.stands_by(flow.name)
        return replace(flow, state=State.STANDBY) if stands_by and flow.state is State.WAITING else flow

    def queries(self) -> dict[str, StreamingQuery]:
        """Spark's newest query of each flow: for its progress, not to stop it."""
        return {name: query for name, each in self._supervisors.items() if (query := each.query()) is not None}

    def wait(self, timeout_s: float | None = None) -> PipelineStatus:
        """Waits until all flows are over, or for so long; an interruption stops all flows.

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
        """Stops all flows, sinks first, and gives the home back; answers the last status."""
        if self._runs is not None and not self._over.is_set():
            try:
                self._runs.note_stop()
            except Exception:  # of a storage: the next start then goes back to the last line
                _LOG.warning("the stop of pipeline %s was not noted", self._graph.name, exc_info=True)
        self._stop_flows()
        for each in self._list_workers():
            each.join()
        return self.status()

    @property
    def is_over(self) -> bool:
        """Whether all flows are over, and the home is given back."""
        return self._over.is_set()

    def _list_workers(self) -> list[Worker]:
        """The threads that end with the flows."""
        watchers = self._status_writer, self._keeper, self._blocks, *self._epochs.values()
        return [*self._supervisors.values(), *watchers]

    def _end_watchers(self) -> None:
        self._keeper.end()
        self._blocks.end()
        if self._sinks is not None:
            self._sinks.end()
        for epochs in self._epochs.values():
            epochs.end()

    def _stop_flows(self) -> None:
        for supervisor in reversed(list(self._supervisors.values())):
            supervisor.stop()

    def _write_statuses(self) -> None:
        """Writes the status at each change, and once a second, until all flows are over; then gives the home back."""
        try:
            while True:
                self._news.wait(STATUS_EVERY_S)
                self._news.clear()
                # Look before the status is made: the next round writes the end of a flow that ends meanwhile.
                over = not any(each.is_alive() for each in self._supervisors.values())
                try:
                    status = self.status()
                    self._home.confirm()
                    self._home.write_status(status)
                    self._warn_of_long_batches()
                except Exception:  # of a storage: the flows raise their own errors if they need it
                    if self._home.is_lost:
                        self._give_up_flows()
                    else:
                        _LOG.warning("the status of pipeline %s was not written", self._graph.name, exc_info=True)
                if over:
                    return
        finally:
            if self._recovery is not None and self._recovery.is_alive():  # it writes into the flows' folders
                self._recovery.join()
            self._end_watchers()
            for epochs in self._epochs.values():  # they write into the flows' folders
                if epochs.is_alive():
                    epochs.join()
            if self._sinks is not None and self._sinks.is_alive():
                self._sinks.join(_LEASE_WAIT_S)
            self._home.release()
            self._over.set()

    def _give_up_flows(self) -> None:
        """Ends all flows, because another driver runs them by now: this one was away for long, as in a pause."""
        if self._is_given_up:
            return
        self._is_given_up = True
        self._end_watchers()
        for supervisor in reversed(list(self._supervisors.values())):
            if not supervisor.is_over:
                supervisor.give_up(f"another driver runs the pipeline at {self._home.home}, so this one stops")

    def _warn_of_long_batches(self) -> None:
        if self._runs is not None:
            for name, query in self.queries().items():
                self._runs.warn_of_long_batch(name, batch_ms(query))


class _StatusWriter(Worker):
    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__("cec-pipeline-status")
        self._write = write

    def run(self) -> None:
        self._write()


def _describe_capacity(standing: CapacityStanding) -> CapacityStatus:
    since = standing.since_s
    recovering = None if since is None else round(time.monotonic() - since, 1)
    return CapacityStatus(
        standing.executors, standing.cores, round(standing.wanted, 2), recovering, standing.coming
    )  # fmt: skip


def _add_tentative(flow: FlowStatus, epochs: EpochKeeper | None, find_blocked: FindBlocked) -> FlowStatus:
    standing = None if epochs is None else epochs.standing
    if standing is None or standing.epoch is None or flow.state.is_over:
        return flow
    blocked = find_blocked(flow.name, standing.absent)
    return replace(
        flow, epoch=standing.epoch, tentative_to_ms=standing.until_ms, absent=standing.absent, blocked=blocked
    )  # fmt: skip


def _round(cores: float | None) -> float | None:
    return None if cores is None else round(cores, 2)
