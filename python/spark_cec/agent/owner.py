"""Records the owner of a log outside the checkpoint: the checkpoint from which its query runs.

A copy of a checkpoint differs from the original only in its place. If both were started, both would write one log.
"""

from __future__ import annotations

import json

from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.errors import AlreadyExists, CecError, Fenced, UnsuitableCheckpoint
from spark_cec.log.home import absolute_home, is_inside, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import QUERY

OWNER_FILE = "owner.json"


def external_log(checkpoint: str, home: str) -> Storage | None:
    """The storage of a log outside the checkpoint, which has an owner and a lock; None for a log inside."""
    return None if is_inside(checkpoint, home) else open_storage(home)


def refuse_log_of_another(checkpoint: str, home: str) -> str | None:
    """Raises `UnsuitableCheckpoint` if the log at `home` belongs to another checkpoint, which still claims it.

    Returns the other checkpoint if it has given the log up: it is gone, or has another log. Returns None if the log has
    no owner, or this checkpoint owns it.
    """
    log = external_log(checkpoint, home)
    owner = _read_owner(log) if log is not None else None
    if log is None or owner is None or same_place(owner, checkpoint):
        return None
    if _claims_log(owner, log):
        raise UnsuitableCheckpoint(
            f"the log at {home} belongs to the checkpoint {owner}, of which {checkpoint} seems to be a copy: start the "
            f"query from {owner}, or give the copy a log of its own (a copy of {home}, by the sink's `path` or "
            f"cec.log.path); if {owner} is never started again, delete {home}/{OWNER_FILE}"
        )
    return owner


def owns(checkpoint: str, home: str) -> bool:
    """Whether the log at `home`, outside the checkpoint, records this checkpoint as its owner."""
    owner = _read_owner(open_storage(home))
    return owner is not None and same_place(owner, checkpoint)


def refuse_taken_over_log(checkpoint: str, home: str) -> None:
    """Raises `Fenced` if the log at `home`, once this checkpoint's, now has another owner."""
    log = external_log(checkpoint, home)
    owner = _read_owner(log) if log is not None else None
    if owner is not None and not same_place(owner, checkpoint):
        raise Fenced(f"the log at {home} belongs to the checkpoint {owner} by now: stop this query, which has lost it")


def claim_log(checkpoint: str, home: str) -> None:
    """Records this checkpoint as the owner of the log at `home`. `UnsuitableCheckpoint` as `refuse_log_of_another`."""
    log = external_log(checkpoint, home)
    if log is None or owns(checkpoint, home):
        return
    content = json.dumps({"checkpoint": checkpoint}).encode()
    try:
        log.create(OWNER_FILE, content)
    except AlreadyExists:
        refuse_log_of_another(checkpoint, home)
        log.replace(OWNER_FILE, content)


def _read_owner(log: Storage) -> str | None:
    """The recorded owner; None if the file is missing or unreadable: the next start records it."""
    try:
        return str(json.loads(log.read(OWNER_FILE))["checkpoint"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _claims_log(owner: str, log: Storage) -> bool:
    """Whether a checkpoint's query uses this log; true if its files are unreadable, to be safe."""
    try:
        query = QUERY.read(open_storage(f"{owner.rstrip('/')}/cec"))
        log_id = read_log_id(log)
    except (CecError, OSError):
        return True
    if query is None or log_id not in (None, query["log_id"]):
        return False
    return same_place(absolute_home(owner, query["log_home"]), log.url)
