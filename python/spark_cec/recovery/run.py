"""Begins a run of a query: takes a run number, writes `query.json`, and creates the log if it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.ids import new_id
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import begin_generation
from spark_cec.recovery.query_files import QUERY
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
) -> Run:
    """Begins a run of this `release`, with the session's `conf` and the `decision` (`mode`, `reason` and more).

    `own` is rooted at the checkpoint's `cec` directory, `log` at the log's home, which `query.json` calls `log_home`.
    `seen` is the id of the log when the query was checked, None if there was no log. If another query created the log
    since then, the run does not join it. Raises `UnsuitableCheckpoint` if another query has a log there.
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
    QUERY.write(own, content)
    if join_log(log, log_id) != log_id:
        raise _log_taken(log)
    return Run(generation, log_id)


def _log_taken(log: Storage) -> UnsuitableCheckpoint:
    return UnsuitableCheckpoint(
        f"{log.url} was taken by another query at this moment: give each query a log of its own"
    )
