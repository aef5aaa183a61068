"""Runs the sinks of a pipeline in one of its replicas: the one that has their lease. In the other one they stand by."""

from __future__ import annotations

import logging
import threading
import time
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

IDLE_S = 10.0
"""Sinks without an executor stop after so many seconds, so that the other replica may run them."""

_LOOK_S = 0.5


class SinkKeeper(Worker):
    """Waits for the lease of the sinks, and lets them run while this process has it."""

    def __init__(
        self, pipeline: str, place: str, supervisors: Mapping[str, Supervisor], changed: Callable[[], None],
        can_work: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Holds the sinks. `place`: the URL of their directory. `supervisors`: of the sinks, by name.

        `can_work`: whether tasks can run. If they cannot for some seconds, another replica may have the sinks.
        """
        super().__init__("cec-pipeline-sinks")
        self._pipeline = pipeline
        self._place = place
        self._supervisors = supervisors
        self._changed = changed
        self._can_work = can_work
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
        """Takes the lease whenever it is free, until `end`, or until all sinks are over."""
        while not self._end.is_set() and not self._are_over:
            try:
                if not self._can_work():
                    self._end.wait(_LOOK_S)
                elif self._take():
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
            self._let_go()
            worked_at = time.monotonic()
            while not self._end.wait(_LOOK_S) and not self._are_over:
                is_sure = self._leases.is_sure(self._place)
                if not is_sure:
                    self._hold()  # first: a storage that does not answer takes its time, and others may begin meanwhile
                self._leases.confirm(self._place)
                if not is_sure:
                    self._let_go()
                worked_at = time.monotonic() if self._can_work() else worked_at
                if time.monotonic() - worked_at > IDLE_S:
                    _LOG.warning("pipeline %s: the sinks stop in this replica: it has no executor", self._pipeline)
                    return
        except CecError as error:
            _LOG.warning("pipeline %s: the sinks stop in this replica: %s", self._pipeline, error)
        finally:
            self._hold()
            self._await_rest()
            self._leases.release(self._place)

    @property
    def _are_over(self) -> bool:
        return all(each.is_over for each in self._supervisors.values())

    def _let_go(self) -> None:
        _LOG.info("pipeline %s: this replica runs the sinks", self._pipeline)
        self._has_lease = True
        for each in self._supervisors.values():
            each.let_go(STANDBY)
        self._changed()

    def _hold(self) -> None:
        self._has_lease = False
        for each in self._supervisors.values():
            each.hold(STANDBY)

    def _await_rest(self) -> None:
        waiting = threading.Event()
        while not all(each.is_at_rest for each in self._supervisors.values()):
            waiting.wait(_LOOK_S / 10)
