"""Runs the sinks of a pipeline in one of its replicas: the one that has their lease. In the other one they stand by."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import CheckpointLeases, longest_wait_s
from spark_cec.agent.object_lease import TIMING
from spark_cec.errors import CecError, Fenced
from spark_cec.pipeline.supervise import Supervisor
from spark_cec.pipeline.worker import Worker

_LOG = logging.getLogger(__name__)

STANDBY = "standby"
"""Who holds the sinks while another replica runs them."""

_LOOK_S = 0.5


class SinkKeeper(Worker):
    """Waits for the lease of the sinks, and lets them run while this process has it."""

    def __init__(
        self, pipeline: str, place: str, supervisors: Mapping[str, Supervisor], changed: Callable[[], None]
    ) -> None:
        """Holds the sinks. `place`: the URL of their directory. `supervisors`: of the sinks, by name."""
        super().__init__("cec-pipeline-sinks")
        self._pipeline = pipeline
        self._place = place
        self._supervisors = supervisors
        self._changed = changed
        self._leases = CheckpointLeases()
        self._has_lease = False
        self._end = threading.Event()
        self._hold()

    def stands_by(self, name: str) -> bool:
        """Whether this is a sink, and another replica may run it."""
        return name in self._supervisors and not self._has_lease

    def end(self) -> None:
        """Ends the thread, which gives the lease back. The sinks must be over."""
        self._end.set()

    def run(self) -> None:
        """Takes the lease whenever it is free, until `end`."""
        while not self._end.is_set():
            try:
                if self._take():
                    self._run_sinks()
            except Exception:  # of a storage
                _LOG.warning("the sinks of pipeline %s wait for their lease", self._pipeline, exc_info=True)
                self._end.wait(_LOOK_S)

    def _take(self) -> bool:
        storage = open_storage(self._place)
        # An object store tells a lost holder from a living one after many seconds, a file system at once.
        wait_s = None if longest_wait_s(storage) >= TIMING.take_over_s else _LOOK_S
        try:
            self._leases.hold(self._place, storage, wait_s)
            return True
        except Fenced:
            return False

    def _run_sinks(self) -> None:
        """Lets the sinks run until `end`, or until this process cannot be sure of the lease any more."""
        try:
            self._has_lease = True
            _LOG.info("pipeline %s: this replica runs the sinks", self._pipeline)
            for each in self._supervisors.values():
                each.let_go(STANDBY)
            self._changed()
            while not self._end.wait(_LOOK_S):
                self._leases.confirm(self._place)
        except CecError as error:
            _LOG.warning("pipeline %s: the sinks stop in this replica: %s", self._pipeline, error)
        finally:
            self._has_lease = False
            self._hold()
            self._await_rest()
            self._leases.release(self._place)

    def _hold(self) -> None:
        for each in self._supervisors.values():
            each.hold(STANDBY)

    def _await_rest(self) -> None:
        waiting = threading.Event()
        while not all(each.is_at_rest for each in self._supervisors.values()):
            waiting.wait(_LOOK_S / 10)
