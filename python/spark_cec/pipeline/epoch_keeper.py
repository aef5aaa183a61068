"""Keeps the epochs of a flow that must answer within X: opens one when an input is away, and closes it again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_cec.agent.logs import cec_directory
from spark_cec.availability.epochs import Epoch, epoch_checkpoint
from spark_cec.availability.failure import (
    EpochLook,
    FailureState,
    FlowLook,
    Inputs,
    Orders,
    Progress,
    decide,
    has_passed,
)
from spark_cec.availability.union import EpochReads
from spark_cec.errors import DamagedLog
from spark_cec.ids import new_id
from spark_cec.pipeline.epoch_files import (
    Fork,
    close_failed_epochs,
    delete_epoch,
    end_epoch,
    fork_flow,
    note_epoch,
    note_needless,
    note_pause,
    read_planned,
    read_until,
)
from spark_cec.pipeline.options import Pace, Step, Within
from spark_cec.pipeline.query_progress import (
    Wait,
    batch_ms,
    count_left,
    has_run_batch,
    last_batch,
    leave_out,
    read_progress,
    read_wait,
)
from spark_cec.pipeline.worker import Worker
from spark_cec.recovery.requests import ask_flush, flush_answer, withdraw_flush

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
LOOK_SOON_S = 0.05
"""How often a keeper looks while a fork works ahead, and while the flow catches up: a look may end that."""

KEPT_S = 30.0
"""The files of a closed epoch stay for this time, because a reader may be about to read them."""

RETRY_S = 10.0
"""The shortest time between two epochs of a flow, if the first one failed."""

LATE_S = 120.0
"""So long after a start, a driver whose home was lost may have noted an epoch yet: its storage repeats calls."""

_REST_OF_FORKS = 10
"""No fork starts ahead for so many times alpha * X after one that was not needed."""

_LONG_BATCHES = 3
"""After so many batches in a row that take longer than the rest of X, the flow's bound is too short. The first batch of
a run, and those of a flow that catches up, may take long.
"""

StartFork = Callable[[str, str, EpochReads], "StreamingQuery"]
"""Starts the query of an epoch: takes its name, its checkpoint, and what it reads."""


@dataclass(slots=True)
class _OpenEpoch:
    """The open epoch. `query`: None before its start, and after a failed one. By the clock, `opened_at`.

    `begun`: the flow's progress then. `inputs`: the epochs of other flows that it reads. `pace`: that of its query,
    which changes once at most. `absent`: the channels for which it does not wait now. `changes_pace`: the query is
    about to be started again, so its end is no failure. `runs_on`: Spark has failed to stop it. `is_damaged`: nobody
    can tell how far it came. `moved_at`: when `progress` was seen to change.
    """

    epoch: Epoch
    opened_at: float
    begun: Progress
    inputs: Inputs
    pace: Pace
    absent: frozenset[str]
    query: StreamingQuery | None = None
    progress: Progress = field(default_factory=Progress)
    is_suspended: bool = False
    changes_pace: bool = False
    has_answered: bool = False
    runs_on: bool = False
    is_damaged: bool = False
    moved_at: float = field(default_factory=time.monotonic)

    def suspend(self) -> None:
        """Stops the query. The rows count until the epoch is closed."""
        if self.query is not None:
            self.runs_on = True
            self.query.stop()
            self.runs_on = False
            self.note_progress(self.query)
        self.is_suspended = True  # last: a query that Spark failed to stop is stopped again

    def note_progress(self, query: StreamingQuery) -> None:
        """Keeps the newest progress that is known."""
        found = read_progress(query)
        if found.until_ms is not None and found != self.progress:
            self.progress, self.moved_at = found, time.monotonic()


@dataclass(frozen=True, slots=True)
class TentativeStatus:
    """The state of a flow that answers within X. `epoch`: the number of the open one, None without one.

    `until_ms`: the end of the epoch's newest buckets, event time in ms since 1970. `absent`: the channels without which
    it answers.
    """

    state: FailureState = FailureState.STABLE
    epoch: int | None = None
    until_ms: int | None = None
    absent: tuple[str, ...] = ()


@dataclass(slots=True)
class _SpareFork:
    """A fork that works ahead. No note says that its rows count, so no reader shows them.

    `at`: the flow's progress when it was forked. `absent`: the channels for which it does not wait. `query`: None if it
    did not start. `is_over`: it is given up, which may have failed.
    """

    fork: Fork
    at: Progress
    absent: frozenset[str]
    query: StreamingQuery | None = None
    is_over: bool = False


@dataclass(slots=True)
class _ClosedEpoch:
    """An epoch whose files go at `due`, by the clock, once its query runs no more; None if it never started."""

    number: int
    due: float
    query: StreamingQuery | None = None


class EpochKeeper(Worker):
    """Looks at one flow now and then, and carries out the decisions of `availability.failure`."""

    def __init__(
        self, flow: str, checkpoint: str, within: Within, find_query: Callable[[], StreamingQuery | None],
        is_over: Callable[[], bool], find_inputs: Callable[[], Inputs], start: StartFork, changed: Callable[[], None],
        confirm: Callable[[], None] = lambda: None, *, forks_ahead: bool = True,
        answering: Collection[str] = frozenset(),
    ) -> None:  # fmt: skip
        """`checkpoint`: the URL of the flow's. `forks_ahead`: a fork may be started before it is needed.
        `answering`: the flows that it reads which answer within a bound themselves. A fork reads their epochs.

        `find_query` answers the flow's own query while it runs, and `is_over` whether it never runs again.
        `find_inputs` answers the open epochs of the flows that it reads. This calls `changed` at each new state, and
        `confirm` before it changes files: that raises `Fenced` if another driver may run the flow by now. A flow that
        waits writes nothing, so nothing else would find out.
        """
        super().__init__(f"cec-epochs-{flow}")
        self._flow = flow
        self._checkpoint = checkpoint
        self._within = within
        self._wait_s = within.wait_ms / 1000
        self._find_query = find_query
        self._is_over = is_over
        self._find_inputs = find_inputs
        self._start_fork = start
        self._changed = changed
        self._confirm = confirm
        self._forks_ahead = forks_ahead
        self._answering = frozenset(answering)
        self._ending = threading.Event()
        self._progress = Progress()
        self._moved_at = time.monotonic()
        self._open: _OpenEpoch | None = None
        self._answered = Progress()
        self._may_have_left = False
        self._late_at = time.monotonic() + LATE_S
        self._rests_until = 0.0
        self._unread = set[int]()  # the epochs whose query was stopped since, and may have planned one more batch
        self._damaged = dict[int, float]()  # those whose last plan is damaged, by when that was seen first
        self._prepared_at: Progress | None = None
        self._request: str | None = None
        self._is_written = False
        self._spare: _SpareFork | None = None
        self._forks_from = 0.0
        self._closed: deque[_ClosedEpoch] = deque()
        self._has_warned = False
        self._last_batch: int | None = None
        self._long_batches = 0
        self._standing = TentativeStatus()

    @property
    def standing(self) -> TentativeStatus:
        """How the flow stood at the last look."""
        return self._standing

    def end(self) -> None:
        """Ends the thread after its present look, and closes the open epoch."""
        self._ending.set()

    def run(self) -> None:
        """Looks until `end`."""
        while not self._ending.wait(LOOK_SOON_S if self._ends_soon() else LOOK_EVERY_S):
            self.look()
        self._prepare(False)
        for _ in range(2):
            self._guard(self._drop_spare)
            self._guard(self._close_left)
            if self._open is not None:
                self._guard(lambda: self._carry_out(Orders(FailureState.STABLE, closes=True)))
        if self._open is not None:  # its note is for the next driver, or for another one that has the home by now
            self._stop(_ClosedEpoch(self._open.epoch.number, 0.0, self._open.query))

    def _ends_soon(self) -> bool:
        return self._spare is not None or self._standing.state is FailureState.STABILIZATION

    def look(self) -> None:
        """Looks once, and carries out the orders. Logs a failure, and tries again later."""
        self._guard(self._look)
        self._delete_old()

    def _look(self) -> None:
        if time.monotonic() >= self._late_at:
            self._late_at, self._may_have_left = math.inf, True
        if time.monotonic() >= self._rests_until:
            self._close_left()
        flow = self._look_at_flow()
        epoch = None if self._open is None else self._look_at_epoch(self._open)
        if flow is not None:
            orders = decide(flow, epoch, self._wait_s)
            self._prepare(orders.prepares)
            self._keep_spare(orders)
            self._carry_out(orders, flow.inputs)
            return
        self._prepare(False)
        self._keep_spare(Orders(FailureState.STABLE))
        if self._is_over() and self._open is not None:
            self._carry_out(Orders(FailureState.STABLE, closes=True))

    def _prepare(self, prepares: bool) -> None:
        """Asks the flow to write its stores, once for each of its batches. Takes a request back that has no answer.

        A flow without stores never answers. A failure delays no epoch: the fork then has more to replay.
        """
        own, request = cec_directory(self._checkpoint), self._request
        try:
            is_due = prepares and self._prepared_at != self._progress
            if request is not None and (is_due or not prepares):
                self._request = None
                withdraw_flush(own, request)
            if is_due:
                self._request, self._prepared_at, self._is_written = new_id().hex(), self._progress, False
                ask_flush(own, self._request)
        except Exception:
            _LOG.warning("flow %s cannot be asked to write its stores", self._flow, exc_info=True)

    def _keep_spare(self, orders: Orders) -> None:
        """Starts a fork that works ahead until an epoch opens, or drops it. A failure is tried again later.

        The start of a query takes about a second, and its first batch has all rows that have waited. So the first
        tentative row would come that much later. An input that comes shortly before each epoch would cost a fork each
        time. So a fork that was not needed is followed by a rest.
        """
        spare, absent = self._spare, orders.opens if orders.forks is None else orders.forks
        if not self._forks_ahead or time.monotonic() < self._forks_from:
            return
        try:
            if spare is not None and not (absent is not None and self._is_fit(spare, absent)):
                self._drop_spare()
            elif spare is None and orders.forks is not None and not orders.forks & self._answering:
                self._fork_ahead(orders.forks)
        except Exception:
            self._rest_from_forks()
            _LOG.warning("flow %s is not forked ahead", self._flow, exc_info=True)

    def _rest_from_forks(self) -> None:
        self._forks_from = time.monotonic() + max(RETRY_S, _REST_OF_FORKS * self._wait_s)

    def _fork_ahead(self, absent: frozenset[str]) -> None:
        self._confirm()
        fork, pause_ms = fork_flow(self._checkpoint), self._pause_ms(frozenset(), self._within.while_away)
        spare = self._spare = _SpareFork(fork, self._progress, absent)
        try:
            spare.query = self._start_query(fork.number, EpochReads(absent, pause_ms=pause_ms))
        except BaseException:
            self._drop_spare()
            raise

    def _is_fit(self, spare: _SpareFork, absent: frozenset[str]) -> bool:
        """Whether an epoch may begin with the fork that waits for all channels but `absent`.

        It must have waited for all that are there: an input that is back has its rows in the answer.
        """
        is_there = spare.query is not None and spare.query.isActive and not spare.is_over
        return is_there and spare.at == self._progress and spare.absent <= absent

    def _drop_spare(self) -> None:
        """Stops the spare fork, and notes that it is not needed. Raises the errors of the storage; may be repeated.

        Its number and its place are never used again: an agent might take the next fork there for it. Its files go
        later.
        """
        spare = self._spare
        if spare is None:
            return
        spare.is_over = True
        self._rest_from_forks()
        closed = _ClosedEpoch(spare.fork.number, time.monotonic() + KEPT_S, spare.query)
        self._stop(closed)
        self._confirm()
        note_needless(self._checkpoint, spare.fork)
        self._closed.append(closed)
        self._spare = None

    def _find_spare(self, absent: frozenset[str], inputs: Inputs) -> _SpareFork | None:
        """The spare fork, if an epoch may begin with it. It reads no epoch of another flow."""
        if inputs or (self._spare is not None and not self._is_fit(self._spare, absent)):
            self._drop_spare()
        return self._spare

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # of a storage, or of a session that ends: the flow itself goes on
            _LOG.warning("the tentative answers of flow %s are held up", self._flow, exc_info=True)
            self._rests_until = time.monotonic() + RETRY_S

    def _look_at_flow(self) -> FlowLook | None:
        """None while the flow's query does not run: then it does not wait for an input."""
        query = self._find_query()
        if query is None:
            return None
        found = read_progress(query)
        self._note_batch(query)
        if found.until_ms is not None and found != self._progress:
            self._progress, self._moved_at = found, time.monotonic()
        wait, still_s = read_wait(query), time.monotonic() - self._moved_at
        return FlowLook(self._progress, wait.held_s, still_s, self._find_inputs(), self._look_for_stores())

    def _look_for_stores(self) -> bool:
        """Whether the flow has written its stores after its newest batch, as it was asked to.

        A failure delays no epoch: the fork then starts later.
        """
        if not self._forks_ahead or self._request is None or self._prepared_at != self._progress:
            return False
        if not self._is_written:
            try:
                answer = flush_answer(cec_directory(self._checkpoint), self._request)
                self._is_written = answer is not None and not answer.failed
            except Exception:
                _LOG.debug("nobody knows whether flow %s has written its stores", self._flow, exc_info=True)
        return self._is_written

    def _look_at_epoch(self, open_: _OpenEpoch) -> EpochLook:
        self._read_last_plans(open_)
        query, wait, has_ended = open_.query, Wait(), open_.query is None or open_.is_damaged
        if query is not None and not open_.is_suspended:
            open_.note_progress(query)
            has_ended, wait = has_ended or not (query.isActive or open_.changes_pace), read_wait(query)
            self._note_answer(open_, query)
        pause_s = self._pause_ms(open_.inputs, open_.pace) / 1000
        return EpochLook(
            open_.absent, open_.begun, open_.progress, wait.held_s, wait.back, has_ended,
            open_.is_suspended, open_.inputs, pause_s, self._answered, open_.runs_on,
            time.monotonic() - open_.moved_at,
        )  # fmt: skip

    def _read_last_plans(self, open_: _OpenEpoch) -> None:
        """Learns how far queries came that were stopped.

        A stop may come between the rows of a batch and Spark's report of it, so the batch counts that was planned last.
        Until that is known, no look counts an epoch as passed.
        """
        for number in sorted(self._unread):
            try:
                planned = read_planned(epoch_checkpoint(self._checkpoint, number))
                self._damaged.pop(number, None)
            except DamagedLog:
                since = self._damaged.setdefault(number, time.monotonic())
                if time.monotonic() - since < RETRY_S:  # NFS may show a file before its bytes
                    raise
                open_.is_damaged |= number == open_.epoch.number
                planned = Progress()
            if number == open_.epoch.number:
                open_.progress = open_.progress.join(planned)
            else:
                self._answered = self._answered.join(planned)
            self._unread.discard(number)

    def _note_batch(self, query: StreamingQuery) -> None:
        """Warns, once each time, if batches take longer than the rest of X: a first tentative row takes one, too."""
        batch, rest_ms = last_batch(query), self._within.x_ms - self._within.wait_ms
        if batch is None or batch == self._last_batch:
            return
        self._last_batch, took_ms = batch, batch_ms(query) or 0.0
        catches_up = self._open is not None or bool(count_left(query))
        self._long_batches = self._long_batches + 1 if took_ms > rest_ms and not catches_up else 0
        if self._long_batches == _LONG_BATCHES:
            _LOG.warning(
                "flow %s: a batch takes %.1f s, and after the wait for an input %.1f s are left of within=%g s: give a "
                "smaller alpha, or a larger within",
                self._flow, took_ms / 1000, rest_ms / 1000, self._within.x_ms / 1000,
            )  # fmt: skip

    def _note_answer(self, open_: _OpenEpoch, query: StreamingQuery) -> None:
        """Warns, once for the flow, if the first batch of an epoch came after more than X."""
        if open_.has_answered or not has_run_batch(query):
            return
        open_.has_answered = True
        took_s = time.monotonic() - open_.opened_at
        if took_s > self._within.x_ms / 1000 - self._wait_s and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "flow %s: its first tentative rows came %.1f s after it had waited for %.1f s, so later than "
                "within=%g s: give a smaller alpha, or a larger within",
                self._flow, took_s, self._wait_s, self._within.x_ms / 1000,
            )  # fmt: skip

    def _carry_out(self, orders: Orders, inputs: Inputs = frozenset()) -> None:
        open_, rests = self._open, time.monotonic() < self._rests_until
        if orders.closes or orders.opens is not None:
            self._confirm()
        try:
            if open_ is not None and orders.closes:
                if orders.opens is not None and rests:
                    return  # it is better than none
                if orders.opens is None:
                    self._close(open_)
                    self._answered = Progress()  # readers have dropped all rows
                    self._unread.clear()
                    self._damaged.clear()
            elif open_ is not None and not open_.is_suspended:
                step = self._within.find_step(orders, open_.pace, changes_pace=open_.changes_pace)
                if step is Step.SUSPEND:
                    self._suspend(open_)
                elif step is Step.START_AGAIN:
                    # The new run takes this at its start. An order to the run before would end with that run.
                    open_.absent = open_.absent if orders.leaves_out is None else orders.leaves_out
                    self._start_again(open_, self._within.while_correcting)
            if open_ is not None and orders.leaves_out is not None:
                self._go_on_without(open_, orders.leaves_out)
            if orders.opens is not None and not rests:
                self._open_epoch(tuple(sorted(orders.opens)), inputs)
        finally:
            self._set_standing(orders.state)

    def _set_standing(self, state: FailureState) -> None:
        open_, before = self._open, self._standing
        if open_ is None:
            self._standing = TentativeStatus(FailureState.STABLE if state is FailureState.STABILIZATION else state)
        else:
            # A query that was suspended stays as it was. But the flow waits for none.
            waits = state is not FailureState.STABILIZATION or not open_.is_suspended
            absent = tuple(sorted(open_.absent)) if waits else ()
            self._standing = TentativeStatus(state, open_.epoch.number, open_.progress.until_ms, absent)
        if replace(before, until_ms=None) != replace(self._standing, until_ms=None):
            _LOG.info("flow %s: %s", self._flow, self._standing)
            self._changed()

    def _open_epoch(self, absent: tuple[str, ...], inputs: Inputs) -> None:
        """Opens an epoch: forks the flow, notes the epoch, and starts its query. Closes the epoch that was open.

        That one is closed after the new note: else readers would take its rows back before others may come.
        """
        began, before, spare = time.monotonic(), self._open, self._find_spare(frozenset(absent), inputs)
        if before is not None:
            self._answered = self._answered.join(before.progress)
        is_running = before is not None and not before.is_suspended
        passed = not self._damaged and has_passed(self._progress, self._answered, is_running=is_running)
        self._may_have_left = True
        pace = self._within.while_away
        fork, pause_ms = fork_flow(self._checkpoint) if spare is None else spare.fork, self._pause_ms(inputs, pace)
        epoch = note_epoch(self._checkpoint, fork, absent, has_passed=passed, pause_ms=pause_ms)
        if spare is not None and spare.query is not None and spare.absent != frozenset(absent):
            leave_out(spare.query, absent)
        if before is not None:
            self._close(before)
            if before.query is not None:  # it has gone on meanwhile
                before.note_progress(before.query)
                self._unread.add(before.epoch.number)
            self._answered = self._answered.join(before.progress)
        open_ = self._open = _OpenEpoch(epoch, began, Progress(), inputs, pace, frozenset(absent))
        open_.query = None if spare is None else spare.query
        self._may_have_left, self._spare = False, None
        # Not the progress that was seen last: after a restart there is none before the first batch.
        open_.begun = Progress(read_until(self._checkpoint, epoch.begins_after))
        without = f"without {' and '.join(absent)}" if absent else "because its input does so"
        _LOG.warning("flow %s answers tentatively, in epoch %d, %s", self._flow, epoch.number, without)
        if spare is None:
            self._start(open_)

    def _go_on_without(self, open_: _OpenEpoch, absent: frozenset[str]) -> None:
        """Has the query of the open epoch wait for all channels but these."""
        if open_.query is None or open_.is_suspended or absent == open_.absent:
            return
        leave_out(open_.query, absent)
        open_.absent = absent  # the log has it with the standing

    def _start(self, open_: _OpenEpoch) -> None:
        reads = EpochReads(open_.absent, dict(open_.inputs), self._pause_ms(open_.inputs, open_.pace))
        open_.query = self._start_query(open_.epoch.number, reads)

    def _start_query(self, number: int, reads: EpochReads) -> StreamingQuery:
        return self._start_fork(f"{self._flow} epoch {number}", epoch_checkpoint(self._checkpoint, number), reads)

    def _start_again(self, open_: _OpenEpoch, pace: Pace) -> None:
        """Starts the query again, in another pace. It goes on where it was.

        If Spark fails to stop it, the next look tries again. If the start fails, the epoch stays suspended. Readers
        learn of the pace before the rows come in it.
        """
        self._confirm()
        open_.epoch = note_pause(self._checkpoint, open_.epoch, self._pause_ms(open_.inputs, pace))
        open_.changes_pace = True
        self._suspend(open_)
        open_.changes_pace, open_.pace = False, pace
        self._start(open_)
        open_.is_suspended = False

    def _suspend(self, open_: _OpenEpoch) -> None:
        """Stops the query of the epoch, in a batch perhaps."""
        open_.suspend()
        self._unread.add(open_.epoch.number)

    def _pause_ms(self, inputs: Inputs, pace: Pace) -> int:
        """How long each row waits in an epoch. An epoch of an input has let its rows wait already."""
        return 0 if inputs else self._within.pause_ms(pace)

    def _close(self, open_: _OpenEpoch) -> None:
        """Closes the open epoch, then stops its query."""
        end_epoch(self._checkpoint, open_.epoch)
        self._open = None
        closed = _ClosedEpoch(open_.epoch.number, time.monotonic() + KEPT_S, open_.query)
        self._closed.append(closed)
        if open_.query is None or (open_.query.exception() is not None and not open_.is_suspended):
            self._rests_until = time.monotonic() + RETRY_S
            _LOG.warning("epoch %d of flow %s has failed", open_.epoch.number, self._flow)
        self._stop(closed)

    def _stop(self, closed: _ClosedEpoch) -> None:
        """Stops the query of a closed epoch. A failure delays no epoch; `_delete_old` tries it again."""
        try:
            if closed.query is not None and closed.query.isActive:
                closed.query.stop()
        except Exception:
            _LOG.warning("the query of epoch %d of flow %s runs on for now", closed.number, self._flow, exc_info=True)

    def _close_left(self) -> None:
        """Closes what an opening that failed has left: readers would keep the rows of an earlier epoch for its sake."""
        if self._may_have_left:
            self._drop_spare()
            self._confirm()
            known = 0 if self._open is None else self._open.epoch.number
            # The notes decide, and not what was closed now: this may be the second attempt.
            newest = close_failed_epochs(self._checkpoint, known)
            if newest > known:
                if self._open is not None:
                    self._close(self._open)  # no reader sees it behind a newer note
                self._closed.append(_ClosedEpoch(newest, time.monotonic() + KEPT_S))
            self._may_have_left = False

    def _delete_old(self) -> None:
        """Deletes the files of epochs that were closed long ago, oldest first. A failure delays no epoch."""
        while self._closed and self._closed[0].due <= time.monotonic():
            closed = self._closed[0]
            try:
                self._stop(closed)
                if closed.query is None or not closed.query.isActive:
                    self._confirm()
                    delete_epoch(self._checkpoint, closed.number)
                    self._closed.popleft()
                    continue
            except Exception:
                _LOG.warning("the files of epoch %d of flow %s stay for now", closed.number, self._flow, exc_info=True)
            # The next one waits, too: with its files go those of all before it.
            closed.due = time.monotonic() + RETRY_S
