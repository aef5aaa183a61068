"""`cec flush`: makes a running query write its dirty windows, and waits for the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.committed import committed
from spark_cec.admin.fall_back import replay_due
from spark_cec.admin.find_log import OWN_DIRECTORY, Place
from spark_cec.agent.lease import is_held
from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.ids import new_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import Flushed, defers, is_under_protocol
from spark_cec.recovery.requests import ask_flush, flush_answer, withdraw_flush
from spark_cec.recovery.rollback import refuse_during_rollback

_LOOK_EVERY_S, _LOOK_AT_LOG_EVERY_S = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class FlushResult:
    """The query's answer (None: it did not answer in time), and the wait in seconds.

    `is_written_always`: each batch of this query writes all that it changes, so nobody was asked.
    """

    answer: Flushed | None
    seconds: float
    is_written_always: bool = False


def flush_query(checkpoint: str, place: Place, timeout_s: float) -> FlushResult:
    """Asks the running query of a checkpoint to write its dirty windows. A stopped query has already written them.

    Raises `UnsuitableCheckpoint` if `checkpoint` has no query, or the query was killed and must replay batches. Also
    raises it for a flow under a protocol: a flush of one flow is no line.
    """
    if place.query is None or place.checkpoint is None:
        raise UnsuitableCheckpoint(f"{checkpoint} is not the checkpoint of a query on Spark CEC: give that")
    if is_under_protocol(place.query):
        raise UnsuitableCheckpoint(
            f"{checkpoint} is a flow under a checkpointing protocol: it goes back to the last line, whatever it has "
            "written since. Stop its pipeline, which leaves a line, or make its checkpoint_interval shorter"
        )
    own = open_storage(f"{place.checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}")
    if not place.is_ours:  # it has no lease, which would tell whether it runs
        refuse_during_rollback(own)
        done = committed(place)
        return FlushResult(Flushed("", done.batch + 1 if done else 0, ()), 0.0, is_written_always=True)
    if is_held(own) is False:
        return FlushResult(_find_written(checkpoint, place, own), 0.0)
    if not defers(place.query):
        return _await_written(place, timeout_s)
    request, started = new_id().hex(), time.monotonic()
    has_asked = False
    try:
        while True:
            has_asked = has_asked or ask_flush(own, request)
            answer, seconds = flush_answer(own, request), time.monotonic() - started
            if answer is None and seconds > timeout_s and is_held(own) is False:  # it has stopped meanwhile
                answer = _find_written(checkpoint, place, own)
            if answer is not None or seconds > timeout_s:
                return FlushResult(answer, seconds)
            time.sleep(_LOOK_EVERY_S)
    finally:
        withdraw_flush(own, request)


def _await_written(place: Place, timeout_s: float) -> FlushResult:
    """For a query without deferred operators, which nobody asks: it has written all, but at its start it may replay."""
    started = time.monotonic()
    while True:
        done, seconds = committed(place), time.monotonic() - started
        try:
            due = replay_due(place)
            if due is None:
                return FlushResult(Flushed("", done.batch + 1 if done else 0, ()), seconds, is_written_always=True)
            if seconds > timeout_s:
                return FlushResult(None, seconds)
        except DamagedLog:  # the query may have trimmed its log during the look
            if seconds > timeout_s:
                raise
        time.sleep(_LOOK_AT_LOG_EVERY_S)


def _find_written(checkpoint: str, place: Place, own: Storage) -> Flushed:
    """What a stopped query has written, which is all; raises `UnsuitableCheckpoint` if it was killed."""
    refuse_during_rollback(own)
    done, due = committed(place), replay_due(place)
    if due is None:
        return Flushed("", done.batch + 1 if done else 0, ())
    raise UnsuitableCheckpoint(
        f"the query of {checkpoint} is not running, and what it had in memory is gone, as after a crash or a stop "
        f"in the middle of a replay: its next start replays batches {due[0]} to {due[1]}"
    )
