"""Supervises one flow: starts it, starts it again after a failure that a restart may mend, and gives it up at last.

A flow can be held meanwhile, for example if the executors do not suffice for all flows.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.query_errors import (
    error_text,
    is_due_to_kafka,
    is_due_to_lost_connection,
    is_due_to_lost_executors,
    is_due_to_silent_source,
    is_fatal,
    java_error,
    java_error_of,
)
from spark_cec.pipeline.query_progress import complete_to_ms, count_left, last_batch
from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.pipeline.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.5
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Patience:
    """The supervisor gives a flow up after more than `most` failures within `window_s`; waits grow up to `wait_s`.

    A loss of executors does not count. Neither does a source that does not answer: it is tried for as long as it takes.
    The same holds for a storage, or another address, if the flow has had a batch.
    """

    most: int = 5
    window_s: float = 600.0
    wait_s: float = 30.0


class FlowFailed(Exception):
    """The query of a flow has ended with an error. `fatal`: a restart would end the same way."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class Supervisor(Worker):
    """Runs one flow in a thread of its own, because Spark's local properties (as the pool) belong to a thread."""

    def __init__(
        self, name: str, start: Callable[[], StreamingQuery], patience: Patience, changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic, failed: Callable[[str], None] = lambda _: None,
        has_run: Callable[[], bool] = lambda: False, servers: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`start` starts the query. This calls `changed` at each new state.

        It calls `failed`, in the thread of the flow and with its name, before the flow starts again. `has_run` answers
        whether the flow had a batch in an earlier run: so its addresses are right. `servers`: the addresses of
        its source, for the status.
        """
        super().__init__(f"cec-flow-{name}")
        self._start_query = start
        self._patience = patience
        self._changed = changed
        self._on_failure = failed
        self._has_run = has_run
        self._is_known = False
        self._clock = clock
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._may_run = threading.Condition(self._lock)
        self._holders: set[str] = set()
        self._at_rest = True
        self._given_up: str | None = None
        self._holds = 0
        self._query: StreamingQuery | None = None
        self._query_id: str | None = None
        self._status = FlowStatus(name, State.STARTING)
        self._servers = servers
        self._reached = -1
        self._looked_at: tuple[StreamingQuery | None, int | None] = (None, None)
        self._failures: deque[float] = deque()
        self._silences = 0

    def status(self) -> FlowStatus:
        """The present status, with the newest batch."""
        with self._lock:
            query, status = self._query, self._status
        if query is None or status.state is not State.RUNNING:
            return status
        status = self._note_batch(query)
        replays = status.batch is not None and status.batch < self._reached
        return replace(status, state=State.REPLAYING) if replays else status

    def query(self) -> StreamingQuery | None:
        """The newest query; None before the first one."""
        with self._lock:
            return self._query

    def running_query(self) -> StreamingQuery | None:
        """The query, if it runs now."""
        with self._lock:
            return self._query if self._status.state is State.RUNNING else None

    def query_id(self) -> str | None:
        """The id of the query, the same after each restart; None before the first start."""
        with self._lock:
            return self._query_id

    def stop(self) -> None:
        """Ends the query for good. Does not wait for its end, because a task may take long."""
        with self._lock:
            self._stopping.set()
            self._may_run.notify_all()
            query = self._query
        if query is not None:
            _stop_aside(query, f"{self.name}-stop")

    def give_up(self, reason: str) -> None:
        """As `stop`; the flow then counts as failed, for that reason."""
        self._given_up = reason
        self.stop()

    def hold(self, by: str = "") -> None:
        """Ends the query until `let_go`, by each that holds it. Does not wait for its end: a task may take long."""
        with self._lock:
            if by in self._holders:
                return
            is_first = not self._holders
            self._holders.add(by)
            self._holds += is_first
            query = self._query
        if query is not None and is_first:
            _stop_aside(query, f"{self.name}-hold")

    @property
    def is_at_rest(self) -> bool:
        """Whether no query of the flow runs or starts. A flow that is held stays at rest until it is let go."""
        with self._lock:
            return self._at_rest

    @property
    def is_over(self) -> bool:
        """Whether the flow never starts again. A flow at rest that is not over does so as soon as it may."""
        with self._lock:
            return self._status.state.is_over

    def let_go(self, by: str = "") -> None:
        """Lets a held flow run again, if nobody else holds it."""
        with self._lock:
            self._holders.discard(by)
            self._may_run.notify_all()

    def run(self) -> None:
        """Runs the query until the flow is over."""
        try:
            while not self._run_to_its_end():
                self._stopping.wait(self._wait_s())
            self._end(State.ENDED)
        except FlowFailed as failure:
            self._end(State.FAILED, str(failure))
        except Exception as error:  # the session has ended under the query
            _LOG.warning("flow %s", self._status.name, exc_info=True)
            self._end(State.FAILED, error_text(error))

    def _run_to_its_end(self) -> bool:
        """Runs the query to its end; answers False if it has failed and a restart may mend that.

        Raises `FlowFailed` for any other failure, for one too many, and for a failure of a flow that is being stopped.
        """
        try:
            while self._run_once() and not self._stopping.is_set():
                pass
        except FlowFailed as failure:
            if failure.fatal or self._stopping.is_set() or len(self._failures) > self._patience.most:
                raise
            with self._lock:
                self._at_rest = True
            return False
        return True

    def _wait_s(self) -> float:
        """A random wait before the next start, in seconds. Its limit doubles with each failure within the window."""
        doublings = min(max(len(self._failures) - 1, self._silences - 1, 0), _MOST_DOUBLINGS)
        return random.uniform(0.0, min(_FIRST_WAIT_S * 2**doublings, self._patience.wait_s))

    def _run_once(self) -> bool:
        """Runs the query once; answers whether the flow was held meanwhile, and must run again."""
        holds = self._wait_while_held()
        return not self._stopping.is_set() and self._start_and_await(holds)

    def _start_and_await(self, holds: int) -> bool:
        try:
            query = self._start_query()
        except Exception as error:
            if self._was_held_since(holds):
                return True
            raise self._note_failure(error, java_error(error)) from error
        with self._lock:
            self._query, self._query_id = query, str(query.id)
            unwanted = bool(self._holders) or self._stopping.is_set()
        if unwanted:
            _stop(query)
        self._become(State.RUNNING)
        try:
            query.awaitTermination()
        except Exception as error:
            # Ignore the error of a query that we stopped ourselves.
            if not self._stopping.is_set() and not self._was_held_since(holds):
                raise self._note_failure(error, java_error_of(query) or java_error(error)) from error
        finally:
            self._note_batch(query)
        return self._was_held_since(holds)

    def _wait_while_held(self) -> int:
        """Waits until the flow is not held; answers how often it was held so far."""
        has_waited = False
        while True:
            with self._lock:
                if self._stopping.is_set() or not self._holders:
                    self._at_rest = False
                    holds = self._holds
                    break
                self._at_rest = True
            self._become(State.WAITING)
            has_waited = True
            with self._lock:
                self._may_run.wait_for(lambda: self._stopping.is_set() or not self._holders)
        if has_waited:
            self._become(State.STARTING)
        return holds

    def _was_held_since(self, holds: int) -> bool:
        with self._lock:
            return self._holds != holds

    def _note_batch(self, query: StreamingQuery) -> FlowStatus:
        """Notes the newest batch in the status. After a restart that may be an earlier batch."""
        batch = last_batch(query)
        with self._lock:
            known = self._looked_at == (query, batch)
        if not known:
            if batch is None:
                self._note(behind=None)
            else:
                to_ms = complete_to_ms(query) or self._status.complete_to_ms
                self._note(batch=batch, behind=count_left(query), complete_to_ms=to_ms, away_since_ms=None, servers=())
                self._silences = 0
        with self._lock:
            self._looked_at = query, batch
            self._reached = max(self._reached, -1 if batch is None else batch)
            return self._status

    def _note_failure(self, error: Exception, java: Any) -> FlowFailed:
        """Counts a failure, and reports it."""
        now = self._clock()
        self._failures.append(now)
        while now - self._failures[0] > self._patience.window_s:
            self._failures.popleft()
        if is_due_to_lost_executors(java):
            self._failures.clear()  # a restart brings the state back each time, so such failures do not count
        if is_due_to_silent_source(java) or (is_due_to_lost_connection(java) and self._has_had_batch()):
            self._failures.clear()
            self._silences += 1
            servers = self._servers if is_due_to_kafka(java) else ()
            self._note(away_since_ms=self._status.away_since_ms or int(time.time() * 1000), servers=servers)
        failure = FlowFailed(error_text(error), fatal=is_fatal(java, error))
        self._on_failure(self._status.name)
        if not failure.fatal and len(self._failures) <= self._patience.most:
            self._note(restarts=self._status.restarts + 1)
            self._become(State.RESTARTING, str(failure))
        return failure

    def _has_had_batch(self) -> bool:
        with self._lock:
            known = self._is_known or self._reached >= 0
        # A storage that does not answer takes its time here, so it is asked once.
        self._is_known = known or self._has_run()
        return self._is_known

    def _end(self, state: State, error: str | None = None) -> None:
        if self._given_up is not None:
            state, error = State.FAILED, self._given_up
        elif self._stopping.is_set():
            state = State.STOPPED
        self._become(state, error)

    def _become(self, state: State, error: str | None = None) -> None:
        self._note(state=state, **({"error": error} if error is not None else {}))
        self._changed()

    def _note(self, **fields: Any) -> FlowStatus:
        with self._lock:
            self._status = replace(self._status, **fields)
            self._at_rest = self._at_rest or self._status.state.is_over
            return self._status


def _stop_aside(query: StreamingQuery, name: str) -> None:
    """Stops the query in a thread of its own, because its task may take long; here, if no thread can start."""
    try:
        threading.Thread(target=_stop, args=(query,), name=name, daemon=True).start()
    except RuntimeError:
        _stop(query)


def _stop(query: StreamingQuery) -> None:
    """Asks the query to end. If that fails, as when its session is gone, the caller still waits for its end."""
    try:
        query.stop()
    except Exception:
        _LOG.warning("query %s was not stopped in good order", query.name, exc_info=True)
