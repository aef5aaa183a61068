"""One flow's life: started, started again after failures that a restart may mend, given up after too many of them.

It may be held back in between, as where there are too few executors for all flows.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_cec.errors import CecError, Consequence, consequence_of
from spark_cec.log.manifest import read_batch
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.recovery.margin import needed_partitions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)

_REFUSED = ("AnalysisException", "ParseException")
"""What Spark calls a query that cannot run as it is."""

_FIRST_WAIT_S = 0.5
_MOST_DOUBLINGS = 32
_MOST_CAUSES = 50
_ERROR_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Patience:
    """A flow is given up after more than `most` failures within `window_s`; waits between them grow to `wait_s`."""

    most: int = 5
    window_s: float = 600.0
    wait_s: float = 30.0


class FlowFailed(Exception):
    """The query of a flow has ended with an error. `fatal`: a restart would end the same way."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class Supervisor(threading.Thread):
    """Runs one flow in a thread of its own, which Spark's local properties (the pool, our word to the stores) go by."""

    def __init__(
        self, name: str, start: Callable[[], StreamingQuery], patience: Patience, changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic, failed: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`start` starts the query; `changed` is called when the status is another one.

        `failed` is called in the thread of the flow, with its name, before it is tried again.
        """
        super().__init__(name=f"cec-flow-{name}", daemon=True)
        self._start_query = start
        self._patience = patience
        self._changed = changed
        self._on_failure = failed
        self._clock = clock
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._may_run = threading.Condition(self._lock)
        self._held = False
        self._at_rest = True
        self._given_up: str | None = None
        self._holds = 0
        self._query: StreamingQuery | None = None
        self._query_id: str | None = None
        self._status = FlowStatus(name, State.STARTING)
        self._reached = -1
        self._looked_at: tuple[StreamingQuery | None, int | None] = (None, None)
        self._failures: deque[float] = deque()

    def status(self) -> FlowStatus:
        """As it is now, with the newest batch."""
        with self._lock:
            query, status = self._query, self._status
        if query is None or status.state is not State.RUNNING:
            return status
        status = self._note_batch(query)
        replays = status.batch is not None and status.batch < self._reached
        return replace(status, state=State.REPLAYING) if replays else status

    def query(self) -> StreamingQuery | None:
        """The newest query; None before the first."""
        with self._lock:
            return self._query

    def query_id(self) -> str | None:
        """The id of the query, the same in all its lives; None before its first."""
        with self._lock:
            return self._query_id

    def stop(self) -> None:
        """Ends the query, and does not start it again; does not wait for it: it may be in the middle of a long task."""
        with self._lock:
            self._stopping.set()
            self._may_run.notify_all()
            query = self._query
        if query is not None:
            _stop_aside(query, f"{self.name}-stop")

    def give_up(self, why: str) -> None:
        """As `stop`, and the flow has failed: the pipeline cannot go on with it."""
        self._given_up = why
        self.stop()

    def hold(self) -> None:
        """Ends the query until `let_go`; does not wait for its end, which may take long where a task does not stop."""
        with self._lock:
            if self._held:
                return
            self._held = True
            self._holds += 1
            query = self._query
        if query is not None:
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

    def let_go(self) -> None:
        """The opposite of `hold`."""
        with self._lock:
            self._held = False
            self._may_run.notify_all()

    def run(self) -> None:
        """The life: see the class."""
        try:
            while not self._runs_to_its_end():
                self._stopping.wait(self._wait_s())
            self._end(State.ENDED)
        except FlowFailed as failure:
            self._end(State.FAILED, str(failure))
        except Exception as error:  # the session has ended under the query
            _LOG.warning("flow %s", self._status.name, exc_info=True)
            self._end(State.FAILED, _told(error))

    def _runs_to_its_end(self) -> bool:
        """Runs the query; answers False if it has failed, and a restart may mend that.

        Raises `FlowFailed` for any other failure, for one too many, and for one while the flow is stopped.
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
        """A random time before the next start, whose limit doubles with each failure within the window, in seconds."""
        doublings = min(max(len(self._failures) - 1, 0), _MOST_DOUBLINGS)
        return random.uniform(0.0, min(_FIRST_WAIT_S * 2**doublings, self._patience.wait_s))

    def _run_once(self) -> bool:
        """Runs the query to its end; whether it was held back, and is to run again."""
        holds = self._wait_until_it_may()
        return not self._stopping.is_set() and self._run_until_it_ends(holds)

    def _run_until_it_ends(self, holds: int) -> bool:
        try:
            query = self._start_query()
        except Exception as error:
            if self._was_held_since(holds):
                return True
            raise self._failed(error, java_error(error)) from error
        with self._lock:
            self._query, self._query_id = query, str(query.id)
            unwanted = self._held or self._stopping.is_set()
        if unwanted:
            _stop(query)
        self._become(State.RUNNING)
        try:
            query.awaitTermination()
        except Exception as error:
            # What has ended with an error as it was held back is asked again when it runs.
            if not self._stopping.is_set() and not self._was_held_since(holds):
                raise self._failed(error, java_error_of(query) or java_error(error)) from error
        finally:
            self._note_batch(query)
        return self._was_held_since(holds)

    def _wait_until_it_may(self) -> int:
        """Until the flow is not held back; answers how often it was so far."""
        with self._lock:
            waits = self._held and not self._stopping.is_set()
            self._at_rest = waits
        if waits:
            self._become(State.WAITING)
        with self._lock:
            self._may_run.wait_for(lambda: self._stopping.is_set() or not self._held)
            holds = self._holds
            self._at_rest = False
        if waits:
            self._become(State.STARTING)
        return holds

    def _was_held_since(self, holds: int) -> bool:
        with self._lock:
            return self._holds != holds

    def _note_batch(self, query: StreamingQuery) -> FlowStatus:
        """The newest batch; a query that was started again begins with earlier ones."""
        batch = _last_batch(query)
        with self._lock:
            known = self._looked_at == (query, batch)
        if not known:
            found = {"behind": None} if batch is None else {"batch": batch, "behind": _left(query)}
            self._note(**found)
        with self._lock:
            self._looked_at = query, batch
            self._reached = max(self._reached, -1 if batch is None else batch)
            return self._status

    def _failed(self, error: Exception, java: Any) -> FlowFailed:
        """Notes a failure."""
        now = self._clock()
        self._failures.append(now)
        while now - self._failures[0] > self._patience.window_s:
            self._failures.popleft()
        if is_due_to_lost_executors(java):
            self._failures.clear()  # whatever was lost, a restart has it again; how often that is, is the cluster's
        failure = FlowFailed(_told(error), fatal=is_fatal(java, error))
        self._on_failure(self._status.name)
        if not failure.fatal and len(self._failures) <= self._patience.most:
            self._note(restarts=self._status.restarts + 1)
            self._become(State.RESTARTING, str(failure))
        return failure

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


def is_fatal(java: Any, error: BaseException) -> bool:
    """Whether a restart would end as this run has. `java`: the Java exception behind it, or None."""
    for each in _causes(java):  # all of them: that a replay has failed is no reason, and why is behind it
        if each.getClass().getSimpleName() in _REFUSED or _consequence(each) is Consequence.FIX:
            return True
    # A function of the user's that fails before its query has started.
    own = error.__cause__ if isinstance(error, FlowError) else error
    if isinstance(own, CecError):
        return own.consequence is Consequence.FIX
    return isinstance(own, TypeError | NameError | AttributeError | SyntaxError | ImportError)


def is_due_to_lost_executors(java: Any) -> bool:
    """Whether a query has ended as executors were lost with state that a restart has again. `java` as in `is_fatal`."""
    return any(_consequence(each) is Consequence.RESTART for each in _causes(java))


def _consequence(java: Any) -> Consequence | None:
    """The consequence of an exception of our JVM part; None for another's."""
    return consequence_of(str(java.kind())) if java.getClass().getSimpleName() == "CecException" else None


def _causes(java: Any) -> Iterator[Any]:
    """A Java exception and those behind it; none for None."""
    for _ in range(_MOST_CAUSES):  # a cycle of causes has no end
        if java is None:
            return
        yield java
        java = java.getCause()


def java_error(error: BaseException) -> Any:
    """The Java exception that pyspark has made this one, or the one behind it, of; None if there is none."""
    own = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    return own if own is not None or error.__cause__ is None else java_error(error.__cause__)


def java_error_of(query: StreamingQuery) -> Any:
    """The Java exception that has ended a query; None if none has."""
    try:
        found = query._jsq.exception()
        return found.get() if found.isDefined() else None
    except Exception:  # the JVM has ended
        return None


def _last_batch(query: StreamingQuery) -> int | None:
    """The newest batch; None before the first one of this life."""
    try:
        progress = query._jsq.lastProgress()
        return None if progress is None else int(progress.batchId())
    except Exception:  # the session has ended
        return None


def batch_ms(query: StreamingQuery) -> float | None:
    """How long the newest batch of a query has taken; None before the first one of this life."""
    try:
        progress = query._jsq.lastProgress()
        return None if progress is None else float(progress.durationMs().get("triggerExecution"))
    except Exception:  # the session has ended
        return None


def _left(query: StreamingQuery) -> int | None:
    """How many batches the newest one has left for later: of a channel its own, of a topic such ones as it was."""
    try:
        sources = query._jsq.lastProgress().sources()
        return max([*(_batches(s.endOffset(), s.latestOffset(), s.numInputRows()) for s in sources), 0])
    except Exception:  # the session has ended
        return None


def _batches(end: str | None, latest: str | None, rows: int) -> int:
    """From one offset of a source to another: channels count batches, topics count rows, and others say nothing."""
    if end is None or latest is None:
        return 0
    try:
        return read_batch(latest) - read_batch(end)
    except ValueError:
        pass
    try:
        left = sum(max(each.end - each.offset, 0) for each in needed_partitions(end, latest))
    except ValueError:
        return 0
    return math.ceil(left / rows) if rows > 0 else 0


def _stop_aside(query: StreamingQuery, name: str) -> None:
    """Stops the query in a thread of its own, because its task may take long; here, if no thread can start."""
    try:
        threading.Thread(target=_stop, args=(query,), name=name, daemon=True).start()
    except RuntimeError:
        _stop(query)


def _stop(query: StreamingQuery) -> None:
    """Asks the query to end; where that fails, as when its session is gone, its end is waited for all the same."""
    try:
        query.stop()
    except Exception:
        _LOG.warning("query %s was not stopped in good order", query.name, exc_info=True)


def _told(error: BaseException) -> str:
    text = str(error).strip() or repr(error)
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + " …"
