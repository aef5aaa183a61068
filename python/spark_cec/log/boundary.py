"""The boundary of a log's output, as of a channel: all input up to a time is in the batches that are there."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.manifest import load
from spark_cec.log.storage import Storage

BOUNDARY_FILE = "boundary.json"


@dataclass(frozen=True, slots=True)
class Boundary:
    """All input that existed at `quiet_ms`, ms since the epoch by the writer's clock, went into batches up to `batch`.

    `batch`: -1 if no batch is published. `crc`: the checksum of that batch's manifest, None without a manifest; after
    a rollback the batch of that number is another one.
    """

    batch: int
    crc: int | None
    quiet_ms: int


def note_boundary(storage: Storage, boundary: Boundary) -> None:
    """Replaces the boundary, unless the one that is there is after the same batch and of a later time."""
    there = read_boundary(storage)
    same = there is not None and (there.batch, there.crc) == (boundary.batch, boundary.crc)
    if there is None or not same or there.quiet_ms < boundary.quiet_ms:
        storage.replace(BOUNDARY_FILE, encode_object(asdict(boundary)))


def still_holds(storage: Storage, boundary: Boundary) -> bool:
    """Whether the boundary's batch is the one that is there: a rollback may have taken it back."""
    if boundary.batch < 0:
        return True
    try:
        return load(storage, boundary.batch).crc == boundary.crc
    except (FileNotFoundError, DamagedLog):
        return False


def read_boundary(storage: Storage) -> Boundary | None:
    """The boundary; None if there is none, or if it cannot be read: then a reader waits for rows."""
    try:
        fields, _ = decode_object(BOUNDARY_FILE, storage.read(BOUNDARY_FILE), "boundary")
        crc = fields["crc"]
        return Boundary(int(fields["batch"]), None if crc is None else int(crc), int(fields["quiet_ms"]))
    except (FileNotFoundError, DamagedLog, NewerFormat, KeyError, TypeError, ValueError):
        return None
