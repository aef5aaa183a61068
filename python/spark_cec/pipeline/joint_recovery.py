"""Recovers flows under a checkpointing protocol: a failure of one takes all of them back to one line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from spark_cec.errors import DamagedLog, NewerFormat, UnsuitableCheckpoint
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.pipeline.supervise import Supervisor
from spark_cec.pipeline.worker import Worker

_LOG = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0


class JointRecovery(Worker):
    """Takes flows back to one line after a failure.

    1. `note_failure`: the thread of the failed flow holds all flows that take part.
    2. This thread waits until none of them runs.
    3. It begins the next run of the protocol, at the newest line.
    4. It lets the flows go.

    If one of them has failed for good, or no line can be reached, it stops all flows instead.
    """

    def __init__(self, pipeline: str, supervisors: Mapping[str, Supervisor], runs: ProtocolRuns) -> None:
        """`pipeline`: the name, for messages. `supervisors`: those of all flows, each after the flows that feed it."""
        super().__init__("cec-pipeline-recovery")
        self._pipeline = pipeline
        self._supervisors = supervisors
        self._runs = runs
        self._failed: set[str] = set()
        self._lock = threading.Lock()
        """Held while flows are held or let go, so that no flow is let go that a later failure holds."""

    def note_failure(self, flow: str) -> None:
        """Holds all flows that take part, if this one does. Its thread calls this before it starts the flow again."""
        if not self._runs.takes_part(flow):
            return
        with self._lock:
            for each in reversed(self._list_members()):
                each.hold()
            self._failed.add(flow)

    def run(self) -> None:
        """Recovers after each failure, until all flows are over."""
        while any(each.is_alive() for each in self._supervisors.values()):
            time.sleep(POLL_S)
            with self._lock:
                failed = frozenset(self._failed)
            if failed and all(each.is_at_rest for each in self._list_members()):
                self._recover(failed)

    def _recover(self, failed: frozenset[str]) -> None:
        members = self._list_members()
        try:
            if any(each.is_over for each in members):
                self._stop_all()
            else:
                self._runs.begin_run(failed)
        except (UnsuitableCheckpoint, DamagedLog, NewerFormat) as error:
            for each in members:
                each.give_up(f"the flows cannot go back to one line: {error}")
            self._stop_all()
        except Exception:  # of a storage, or a lease that is still held: begin again with step 2
            _LOG.warning("the flows of pipeline %s are not back at one line yet", self._pipeline, exc_info=True)
            time.sleep(RETRY_S)
            return
        with self._lock:
            self._failed -= failed
            for each in members:
                each.let_go()

    def _stop_all(self) -> None:
        for each in self._supervisors.values():
            each.stop()

    def _list_members(self) -> list[Supervisor]:
        return [each for name, each in self._supervisors.items() if self._runs.takes_part(name)]
