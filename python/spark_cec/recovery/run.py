"""Begins a run of a query, and gives it the lease's rights.

`begin_run` takes a run number, writes `query.json`, and creates the log if it is missing. Spark may refuse the start
after that. So only the run that takes the lease in its own thread goes on: `hold_run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import Fenced, UnsuitableCheckpoint
from spark_cec.ids import new_id
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import (
    RunState,
    begin_generation,
    give_up,
    known_generations,
    note_held,
    note_intent,
    read_start,
    read_state,
)
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.session_settings import record_settings
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import PREFIX, parse_settings


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its number `generation`, from 1 on, and its `log_id` of 32 hex digits."""

    generation: int
    log_id: str


def begin_run(
    checkpoint: Storage,
    own: Storage,
    log: Storage,
    log_home: str,
    conf: Mapping[str, str],
    decision: Mapping[str, Any],
    release: str,
    seen: str | None,
    session_settings: Mapping[str, str] | None = None,
) -> Run:
    """Begins a run of this `release`, with the session's `conf` and the `decision` (`mode`, `reason` and more).

    `own` is rooted at the checkpoint's `cec` directory, `log` at the log's home, which `query.json` calls `log_home`.
    `seen` is the id of the log when the query was checked, None if there was no log. If another query created the log
    since then, the run does not join it. A replay may need the `session_settings`; None for a run without batches.
    Raises `UnsuitableCheckpoint` if another query has a log there.
    """
    settings, query = parse_settings(conf), QUERY.read(own)
    log_id = query["log_id"] if query else seen or new_id().hex()
    if read_log_id(log) not in (None, log_id):
        raise _log_taken(log)
    # Read after the number is taken: from then on no earlier run ends a batch.
    generation = begin_generation(own, lambda: committed_batch(checkpoint))
    content = {
        "log_home": log_home,
        "log_id": log_id,
        "generation": generation,
        "settings": settings.describe(),
        "settings_conf": {key: value for key, value in conf.items() if key.startswith(PREFIX)},
        "release": release,
        **decision,
    }
    intent = {"query": content, "session_settings": session_settings}
    note_intent(own, generation, intent)
    _write_intent(own, intent, read_start(own, generation))
    if join_log(log, log_id) != log_id:
        raise _log_taken(log)
    return Run(generation, log_id)


def hold_run(checkpoint: Storage, own: Storage, generation: int) -> None:
    """Makes a run that has begun the one that goes on. The caller has the lease.

    1. Refuse, if a later run took the lease, or if a batch was committed since this run began: the run would repeat it.
    2. If another start replaced the files of this run, write them again. Then give up the later runs that never took
       the lease, such as starts that Spark refused.
    3. Record that this run has the lease.

    Raises `Fenced`.
    """
    later = refuse_if_replaced(own, checkpoint.url, generation)  # 1
    mine = read_state(own, generation)
    if mine is None:
        raise Fenced(f"the file of run {generation} is gone from {own.url}: start the query again")
    if mine.given_up or not mine.has_held:
        began, now = mine.began_after, committed_batch(checkpoint)
        if began is not None and began != now:
            raise Fenced(
                f"run {generation} of the query with checkpoint {checkpoint.url} began after batch {began}, and "
                f"another run has gone on to batch {now} since: stop all runs of it, and start one"
            )
    if mine.intent is not None:  # 2
        _write_intent(own, mine.intent, mine.began_after)
    for each in later:
        give_up(own, each)
    if mine.given_up or not mine.has_held:
        note_held(own, generation)  # 3


def refuse_if_replaced(own: Storage, checkpoint: str, generation: int, *, by_begun: bool = False) -> list[int]:
    """Raises `Fenced` if a later run of the query took the lease. Answers the later runs that began and did not.

    `by_begun`: a later run that has begun counts, too, because the storage has no leases.
    """
    later = [(each, read_state(own, each)) for each in known_generations(own) if each > generation]
    begun = [each for each, state in later if state is not None and not state.given_up]
    held = begun if by_begun else [each for each, state in later if _has_held(state)]
    if held:
        raise Fenced(
            f"run {held[-1]} of the query with checkpoint {checkpoint} began while run {generation} had no lease: stop "
            f"all runs of it, and start one"
        )
    return begun


def _has_held(state: RunState | None) -> bool:
    return state is not None and state.has_held and not state.given_up


def _write_intent(own: Storage, intent: Mapping[str, Any], began_after: int | None) -> None:
    """Writes the files of a run, if they differ."""
    if intent["session_settings"] is not None and began_after is not None:
        record_settings(own, began_after, intent["session_settings"])
    if QUERY.read_if_sound(own) != intent["query"]:
        QUERY.write(own, intent["query"])


def _log_taken(log: Storage) -> UnsuitableCheckpoint:
    return UnsuitableCheckpoint(
        f"{log.url} was taken by another query at this moment: give each query a log of its own"
    )
