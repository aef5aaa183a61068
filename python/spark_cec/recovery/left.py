"""A checkpoint whose state was carried to another one: only one of the two may go on."""

from __future__ import annotations

import json

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.storage import Storage

LEFT_FILE = "left.json"


def mark_as_left(own: Storage, target: str) -> None:
    """Records where the query goes on. `own` is rooted at the checkpoint's `cec` directory."""
    own.replace(LEFT_FILE, json.dumps({"carried_to": target}).encode())


def refuse_if_left(own: Storage) -> None:
    """`UnsuitableCheckpoint` if the query goes on elsewhere: both would process the same input from here."""
    if own.exists(LEFT_FILE):
        raise UnsuitableCheckpoint(
            f"{own.url} has {LEFT_FILE}: the state of this checkpoint was carried to another one ({_target(own)}), and "
            f"only one of the two may go on, because both would process the same input. If the other one is not used, "
            f"delete that file"
        )


def _target(own: Storage) -> str:
    try:
        return str(json.loads(own.read(LEFT_FILE))["carried_to"])
    except (ValueError, KeyError, TypeError):
        return "which one is not readable"
