"""Whose log it is: a log outside of the checkpoint records the one that its query runs from.

A copy of a checkpoint has all that the original has, but its place. Both would write one log if both were started.
"""

from __future__ import annotations

import json

from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.errors import AlreadyExists, CecError, Fenced, UnsuitableCheckpoint
from spark_cec.log.home import absolute_home, is_inside, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import QUERY

OWNER_FILE = "owner.json"


def log_of_its_own(checkpoint: str, home: str) -> Storage | None:
    """The storage of a log that lies outside of the checkpoint, and so has an owner and a lock; None of one inside."""
    return None if is_inside(checkpoint, home) else open_storage(home)


def refuse_if_owned(checkpoint: str, home: str) -> str | None:
    """`UnsuitableCheckpoint` if the log at `home` belongs to another checkpoint, which still claims it.

    Answers that other checkpoint where it has given the log up: it is gone, or has another log. None: nobody, or this
    one, has it.
    """
    log = log_of_its_own(checkpoint, home)
    owner = _read_owner(log) if log is not None else None
    if log is None or owner is None or same_place(owner, checkpoint):
        return None
    if _claims(owner, log):
        raise UnsuitableCheckpoint(
            f"the log at {home} belongs to the checkpoint {owner}, of which {checkpoint} seems to be a copy: start the "
            f"query from {owner}, or give the copy a log of its own (a copy of {home}, by the sink's `path` or "
            f"cec.log.path); if {owner} is never started again, delete {home}/{OWNER_FILE}"
        )
    return owner


def owns(checkpoint: str, home: str) -> bool:
    """Whether the log at `home`, which lies outside of the checkpoint, says that it belongs to it."""
    owner = _read_owner(open_storage(home))
    return owner is not None and same_place(owner, checkpoint)


def refuse_if_taken_over(checkpoint: str, home: str) -> None:
    """`Fenced` if the log at `home`, which was this checkpoint's, has another owner by now."""
    log = log_of_its_own(checkpoint, home)
    owner = _read_owner(log) if log is not None else None
    if owner is not None and not same_place(owner, checkpoint):
        raise Fenced(f"the log at {home} belongs to the checkpoint {owner} by now: stop this query, which has lost it")


def claim_log(checkpoint: str, home: str) -> None:
    """Records that the log at `home` is this checkpoint's. `UnsuitableCheckpoint` as `refuse_if_owned`."""
    log = log_of_its_own(checkpoint, home)
    if log is None or owns(checkpoint, home):
        return
    content = json.dumps({"checkpoint": checkpoint}).encode()
    try:
        log.create(OWNER_FILE, content)
    except AlreadyExists:
        refuse_if_owned(checkpoint, home)
        log.replace(OWNER_FILE, content)


def _read_owner(log: Storage) -> str | None:
    """None, too, for one that cannot be read: the next start records it."""
    try:
        return str(json.loads(log.read(OWNER_FILE))["checkpoint"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _claims(owner: str, log: Storage) -> bool:
    """Whether the query of a checkpoint has this log. One that cannot be read does, as far as anybody knows."""
    try:
        query = QUERY.read(open_storage(f"{owner.rstrip('/')}/cec"))
        log_id = read_log_id(log)
    except (CecError, OSError):
        return True
    if query is None or log_id not in (None, query["log_id"]):
        return False
    return same_place(absolute_home(owner, query["log_home"]), log.url)
