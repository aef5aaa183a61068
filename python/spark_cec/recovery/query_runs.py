"""The runs of a query: how one begins, and which one goes on.

`begin_run` takes a number for a run, and creates the log if it is missing. Spark may refuse the start after that, and
several starts may begin at once. So a run becomes the one that goes on only when it takes the lease in its own thread:
`hold_run`.
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
    known_generations,
    note_held,
    note_intent,
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
    *,
    holds: bool = False,
) -> Run:
    """Begins a run of this `release`, with the session's `conf` and the `decision` (`mode`, `reason` and more).

    `own` is rooted at the checkpoint's `cec` directory, `log` at the log's home, which `query.json` calls `log_home`.
    `seen` is the id of the log when the query was checked, None if there was no log. If another query created the log
    since then, the run does not join it. A replay may need the `session_settings`; None for a run without batches.
    `holds`: the run will call `hold_run`, which writes `query.json` and the settings. Without that, and at the first
    start, they are written here.

    Raises `UnsuitableCheckpoint` if another query has a log there.
    """
    settings, query = parse_settings(conf), QUERY.read(own)
    log_id = _choose_log_id(query, log_home, seen or new_id().hex())
    if read_log_id(log) not in (None, log_id):
        raise _log_taken(log)
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
    is_first = query is None and QUERY.create(own, content)
    if query is None and not is_first:  # another start of this query was the first, at this moment
        content["log_id"] = log_id = _choose_log_id(_read_first(own), log_home, log_id)
    intent = {"query": content, "session_settings": session_settings}
    note_intent(own, generation, intent)
    if join_log(log, log_id) != log_id:
        if is_first:  # else it would refuse this query for good
            QUERY.delete(own)
        raise _log_taken(log)
    if not holds:
        _write_intent(own, intent, committed_batch(checkpoint))
    return Run(generation, log_id)


def has_begun_log(own: Storage, log_home: str, log_id: str) -> bool:
    """Whether a run of this checkpoint has begun that log: the file of the run names the log before the log exists."""
    states = (read_state(own, generation) for generation in known_generations(own))
    queries = (state.intent["query"] for state in states if state is not None and state.intent is not None)
    return any((query["log_home"], query["log_id"]) == (log_home, log_id) for query in queries)


def hold_run(checkpoint: Storage, own: Storage, generation: int, *, has_lease: bool) -> int:
    """Makes a run that has begun the one that goes on. Answers its number from now on.

    1. Refuse, if a later run took the lease from this run, or if Spark's commits changed since this run began.
    2. If a later run took the lease and committed nothing, take a number after it, so that it cannot fence this run.
    3. Write `query.json` and the settings of this run: another start may have written its own.
    4. Record that this run has the lease.

    `has_lease`: the caller has it. On a storage without leases, a later run that has begun counts as one that took it.
    Raises `Fenced`.
    """
    mine = read_state(own, generation)
    if mine is None:
        raise Fenced(f"the file of run {generation} is gone from {own.url}: start the query again")
    intent = mine.intent
    if mine.is_held or not has_lease:
        refuse_replaced_run(own, checkpoint.url, generation, by_begun=not has_lease)  # 1
    if not mine.is_held:
        began, now = mine.began_after, committed_batch(checkpoint)
        if began is not None and began != now:
            raise Fenced(
                f"run {generation} of the query with checkpoint {checkpoint.url} began after batch {began}, and now "
                f"batch {now} is the last one: another run has gone on, or it was taken back; stop all runs of it, and "
                f"start one"
            )
        if intent is not None and _later_runs(own, generation, only_held=True):
            generation = begin_generation(own, lambda: now)  # 2
            intent = {**intent, "query": {**intent["query"], "generation": generation}}
            note_intent(own, generation, intent)
    if intent is not None:
        _write_intent(own, intent, mine.began_after)  # 3
    if not mine.is_held:
        note_held(own, generation)  # 4
    return generation


def has_held(own: Storage, generation: int) -> bool:
    """Whether the run has taken the lease. Then a later run that takes it fences this run."""
    state = read_state(own, generation)
    return state is not None and state.is_held


def refuse_replaced_run(own: Storage, checkpoint: str, generation: int, *, by_begun: bool = False) -> None:
    """Raises `Fenced` if a later run of the query took the lease.

    `by_begun`: a later run that has begun counts, too, because the storage has no leases.
    """
    later = _later_runs(own, generation, only_held=not by_begun)
    if later:
        raise Fenced(
            f"run {later[-1]} of the query with checkpoint {checkpoint} began while run {generation} had no lease: "
            f"stop all runs of it, and start one"
        )


def _later_runs(own: Storage, generation: int, *, only_held: bool) -> list[int]:
    """The later runs that took the lease, oldest first; without `only_held`, also those that only began."""
    later = [each for each in known_generations(own) if each > generation]
    return [each for each in later if not only_held or has_held(own, each)]


def _choose_log_id(query: Mapping[str, Any] | None, log_home: str, otherwise: str) -> str:
    """The id in `query` (`query.json`) at the home that it records, `otherwise` at another home.

    If two logs of a query had one id, it could later go on with the one that lacks what it has committed.
    """
    return str(query["log_id"]) if query is not None and query["log_home"] == log_home else otherwise


def _read_first(own: Storage) -> Mapping[str, Any]:
    query = QUERY.read(own)
    if query is None:
        raise Fenced(f"{own.url}/{QUERY.name} is gone again, so another start was refused: start the query again")
    return query


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
