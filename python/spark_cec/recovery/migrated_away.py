"""Refuses a checkpoint whose state was migrated to another one: only one of the two may continue."""

from __future__ import annotations

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import LEFT


def refuse_migrated_query(own: Storage) -> None:
    """Raises `UnsuitableCheckpoint` if the query continues elsewhere; `own` is rooted at the `cec` directory."""
    if LEFT.is_in(own):
        target = LEFT.read_if_sound(own) or "its name is not readable"
        raise UnsuitableCheckpoint(
            f"{own.url} has {LEFT.name}: the state of this checkpoint was carried to another one ({target}), and only "
            "one of the two may go on, because both would process the same input. If the other one is not used, delete "
            "that file"
        )
