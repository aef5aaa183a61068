"""The boundary of a log's output, as of a channel: all input up to a time is in the batches that are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.manifest import load
from spark_cec.log.storage import Storage

BOUNDARY_FILE = "boundary.json"


@dataclass(frozen=True, slots=True)
class Boundary:
    """All input that existed at `quiet_ms`, ms since the epoch by the writer's clock, went into batches up to `batch`.

    `quiet_ms`: None if that is not known. `columns`: by column, the time below which no later batch has a row. `batch`:
    -1 if no batch is published. `crc`: the checksum of that batch's manifest, None without a manifest; after a rollback
    the batch of that number is another one.
    """

    batch: int
    crc: int | None
    quiet_ms: int | None
    columns: Mapping[str, int] = field(default_factory=dict)


def note_boundary(storage: Storage, boundary: Boundary) -> None:
    """Replaces the boundary. If the one that is there is after the same batch, the later times of both count."""
    there = read_boundary(storage)
    if there is not None and (there.batch, there.crc) == (boundary.batch, boundary.crc):
        quiet_ms = max((ms for ms in (there.quiet_ms, boundary.quiet_ms) if ms is not None), default=None)
        columns = {
            name: max(ms for ms in (there.columns.get(name), boundary.columns.get(name)) if ms is not None)
            for name in there.columns.keys() | boundary.columns.keys()
        }
        boundary = replace(boundary, quiet_ms=quiet_ms, columns=columns)
    if boundary != there:
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
        crc, quiet_ms = (None if fields[key] is None else int(fields[key]) for key in ("crc", "quiet_ms"))
        columns = {str(name): int(ms) for name, ms in fields["columns"].items()}
        return Boundary(int(fields["batch"]), crc, quiet_ms, columns)
    except (FileNotFoundError, DamagedLog, NewerFormat, KeyError, TypeError, ValueError, AttributeError):
        return None
