"""A pipeline that runs: its flows' supervisors, the status that it writes, and its end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from spark_cec.errors import CecError
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.flows import Flows
from spark_cec.pipeline.graph import Graph, GraphError, nearest
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.status import PipelineStatus, starving
from spark_cec.pipeline.supervise import Patience, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

TOLD_EVERY_S = 1.0
"""How old the status in the home may be while the pipeline runs."""


class PipelineFailed(CecError):
    """Flows have failed for good: the message has the error of each. Attribute: `status`."""

    def __init__(self, status: PipelineStatus) -> None:
        each = "; ".join(f"flow {flow.name} has failed: {flow.error}" for flow in status.failed)
        super().__init__(f"pipeline {status.name}: {each}")
        self.status = status


def chosen(graph: Graph, only: Collection[str] | None) -> frozenset[str]:
    """The flows to run. Raises `GraphError` for names that are none."""
    names = frozenset(graph.nodes if only is None else only)
    unknown = [f"there is no flow {name}: {nearest(name, graph.nodes)}" for name in sorted(names - graph.nodes.keys())]
    if unknown or not names:
        raise GraphError(graph.name, unknown or ["no flow was chosen to run"])
    return names


class RunningPipeline:
    """All flows of a pipeline in one application, each started again alone when it fails."""

    def __init__(
        self, pipeline: Declaration, spark: SparkSession, patience: Patience | None = None,
        only: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """Starts it; see `Pipeline.start`."""
        self._graph = pipeline.graph()
        self._chosen = chosen(self._graph, only)
        self._home = PipelineHome(pipeline.home)
        flows = Flows(spark, self._graph, pipeline.flows, self._home)
        self._home.take(self._graph, flows.schemas())
        self._over = threading.Event()
        self._news = threading.Event()
        self._supervisors = {
            name: Supervisor(name, lambda name=name: flows.start(name), patience or Patience(), self._news.set)  # type: ignore[misc]
            for members in self._graph.order()
            for name in members
            if name in self._chosen
        }
        self._teller = threading.Thread(target=self._tell, name="cec-pipeline-status", daemon=True)
        for supervisor in self._supervisors.values():
            supervisor.start()
        self._teller.start()

    def status(self) -> PipelineStatus:
        """What each flow does now, in the order of the graph."""
        flows = starving(self._graph, [each.status() for each in self._supervisors.values()])
        return PipelineStatus(self._graph.name, self._home.home, os.getpid(), int(time.time() * 1000), flows)

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
        for supervisor in reversed(self._supervisors.values()):
            supervisor.stop()
        for supervisor in self._supervisors.values():
            supervisor.join()
        self._teller.join()
        return self.status()

    @property
    def is_over(self) -> bool:
        """Whether no flow runs, nor will, and the home is given back."""
        return self._over.is_set()

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
            self._home.release()
            self._over.set()
