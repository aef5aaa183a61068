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


def hold_run(checkpoint: Storage, own: Storage, generation: int) -> int:
    """Makes a run that has begun the one that goes on. Answers its number from now on. The caller has the lease.

    1. Refuse, if a later run took the lease from this run, or if another run has committed since this run began.
    2. If a later run had the lease and committed nothing, take a number after it. Such a run fences this one no more.
    3. If another start replaced the files of this run, write them again.
    4. Give up the later runs that never took the lease, such as starts that Spark refused.
    5. Record that this run has the lease.

    Raises `Fenced`.
    """
    mine = read_state(own, generation)
    if mine is None:
        raise Fenced(f"the file of run {generation} is gone from {own.url}: start the query again")
    intent = mine.intent
    if mine.is_held:
        refuse_replaced_run(own, checkpoint.url, generation)  # 1
    else:
        began, now = mine.began_after, committed_batch(checkpoint)
        if began is not None and began != now:
            raise Fenced(
                f"run {generation} of the query with checkpoint {checkpoint.url} began after batch {began}, and "
                f"another run has gone on to batch {now} since: stop all runs of it, and start one"
            )
        if intent is not None and _later_runs(own, generation, held=True):
            generation = begin_generation(own, lambda: now)  # 2
            intent = {**intent, "query": {**intent["query"], "generation": generation}}
            note_intent(own, generation, intent)
    if intent is not None:
        _write_intent(own, intent, mine.began_after)  # 3
    for each in _later_runs(own, generation, held=False):
        give_up(own, each)  # 4
    if not mine.is_held:
        note_held(own, generation)  # 5
    return generation


def has_held(own: Storage, generation: int) -> bool:
    """Whether the run took the lease, and no other run took it from a start."""
    state = read_state(own, generation)
    return state is None or state.is_held


def refuse_replaced_run(own: Storage, checkpoint: str, generation: int, *, by_begun: bool = False) -> None:
    """Raises `Fenced` if a later run of the query took the lease.

    `by_begun`: a later run that has begun counts, too, because the storage has no leases.
    """
    later = _later_runs(own, generation, held=True)
    later += _later_runs(own, generation, held=False) if by_begun else []
    if later:
        raise Fenced(
            f"run {max(later)} of the query with checkpoint {checkpoint} began while run {generation} had no lease: "
            f"stop all runs of it, and start one"
        )


def _later_runs(own: Storage, generation: int, *, held: bool) -> list[int]:
    """The later runs that took the lease, or those that began and did not; without those that were given up."""
    later = [(each, read_state(own, each)) for each in known_generations(own) if each > generation]
    return [each for each, state in later if state is not None and not state.given_up and state.has_held is held]


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
