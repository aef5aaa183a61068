"""Keeps rows aside that came too late for a reader of the output, one object for each frame of output."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from spark_cec.errors import DamagedLog
from spark_cec.log.frame import Frame, FrameHeader, FrameKind, encode_frame, parse_frame, parse_header
from spark_cec.log.meta import OutputMeta, decode_meta
from spark_cec.log.reader import payload_table
from spark_cec.log.readers import list_readers
from spark_cec.log.record import encode_table
from spark_cec.log.storage import Storage, StoredFile, reads_at_once

LATE = "late"

_COUNTED_AT_ONCE = 1_000
_HEAD_BYTES = 512
"""More than the prelude and the meta of a frame of output have."""


def keep_late(storage: Storage, reader: str, batch: int, frame_id: bytes, rows: pa.Table) -> None:
    """Keeps the late rows of a frame of output, durably; the same rows again change nothing."""
    meta = OutputMeta(frame_id, batch, 0, 0, 0, rows.num_rows, int(time.time() * 1000))
    data = b"".join(encode_frame(FrameKind.OUTPUT, meta.encode(), encode_table(rows)))
    storage.replace(f"{LATE}/{reader}/{batch:020d}-{frame_id.hex()}.late", data)


def list_late(storage: Storage, reader: str) -> list[str]:
    """The paths of the objects with a reader's late rows, those of older batches first."""
    return [f"{LATE}/{reader}/{file.name}" for file in _list_files(storage, reader)]


def forget_late(storage: Storage, after: int) -> None:
    """Deletes the late rows of batches after `after`, because their output was taken back.

    Output that is written anew has late rows of its own.
    """
    for reader in list_readers(storage):
        storage.delete_all([path for path in list_late(storage, reader) if _batch_of(path) > after])


def _batch_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


def _list_files(storage: Storage, reader: str) -> list[StoredFile]:
    return [file for file in storage.list(f"{LATE}/{reader}") if file.name.endswith(".late")]


def count_late(storage: Storage, reader: str) -> tuple[int, list[DamagedLog]] | None:
    """The number of a reader's late rows, and the damages that hide some; None if it has no objects.

    Only rollbacks delete the objects, so there may be many. Only their heads are read.
    """
    files = _list_files(storage, reader)
    if not files:
        return None
    rows, damages = 0, list[DamagedLog]()
    with ThreadPoolExecutor(min(reads_at_once(storage), len(files))) as pool:
        for first in range(0, len(files), _COUNTED_AT_ONCE):
            for found in pool.map(partial(_count_rows, storage, reader), files[first : first + _COUNTED_AT_ONCE]):
                if isinstance(found, DamagedLog):
                    damages.append(found)
                else:
                    rows += found
    return rows, damages


def _count_rows(storage: Storage, reader: str, file: StoredFile) -> int | DamagedLog:
    """The number of rows of an object by its head; 0 if a rollback has deleted it since the listing."""
    path = f"{LATE}/{reader}/{file.name}"
    try:
        header = parse_header(storage.read(path, 0, _HEAD_BYTES))
    except FileNotFoundError:
        return 0
    if not isinstance(header, FrameHeader):
        return DamagedLog(path, 0, f"it has no sound rows: {header}")
    if header.total_length != file.size:
        return DamagedLog(path, 0, f"it has {file.size} bytes, and its head is of {header.total_length}")
    try:
        meta = decode_meta(header.kind, header.meta)
    except ValueError as error:
        return DamagedLog(path, 0, f"it has no sound rows: {error}")
    return meta.rows if isinstance(meta, OutputMeta) else DamagedLog(path, 0, f"it is a {header.kind.name} frame")


def read_late(storage: Storage, path: str) -> pa.Table:
    """The rows of one object. Raises `DamagedLog` if it is no sound frame."""
    found = parse_frame(storage.read(path))
    if not isinstance(found, Frame):
        raise DamagedLog(path, 0, f"it has no sound rows: {found}")
    return payload_table(found)
