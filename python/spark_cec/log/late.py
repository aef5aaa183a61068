"""Keeps rows aside that came too late for a reader of the output, one object for each frame of output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from spark_cec.errors import DamagedLog
from spark_cec.log.frame import Frame, FrameKind, encode_frame, parse_frame
from spark_cec.log.meta import OutputMeta
from spark_cec.log.reader import payload_table
from spark_cec.log.readers import list_readers
from spark_cec.log.record import encode_table
from spark_cec.log.storage import Storage, reads_at_once

LATE = "late"


def keep_late(storage: Storage, reader: str, batch: int, frame_id: bytes, rows: pa.Table) -> None:
    """Keeps the late rows of a frame of output, durably; the same rows again change nothing."""
    meta = OutputMeta(frame_id, batch, 0, 0, 0, rows.num_rows, int(time.time() * 1000))
    data = b"".join(encode_frame(FrameKind.OUTPUT, meta.encode(), encode_table(rows)))
    storage.replace(f"{LATE}/{reader}/{batch:020d}-{frame_id.hex()}.late", data)


def list_late(storage: Storage, reader: str) -> list[str]:
    """The paths of the objects with a reader's late rows, those of older batches first."""
    return [f"{LATE}/{reader}/{file.name}" for file in storage.list(f"{LATE}/{reader}") if file.name.endswith(".late")]


def forget_late(storage: Storage, after: int) -> None:
    """Deletes the late rows of batches after `after`, because their output was taken back.

    Output that is written anew has late rows of its own.
    """
    for reader in list_readers(storage):
        storage.delete_all([path for path in list_late(storage, reader) if _batch_of(path) > after])


def _batch_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


def count_late(storage: Storage, paths: Sequence[str]) -> tuple[int, list[DamagedLog]]:
    """The rows of these objects, and the damages that hide some. Only rollbacks delete them, so there may be many."""
    rows, damages = 0, list[DamagedLog]()
    with ThreadPoolExecutor(reads_at_once(storage)) as pool:
        for found in [pool.submit(read_late, storage, path) for path in paths]:
            try:
                rows += found.result().num_rows
            except DamagedLog as damage:
                damages.append(damage)
    return rows, damages


def read_late(storage: Storage, path: str) -> pa.Table:
    """The rows of one object. Raises `DamagedLog` if it is no sound frame."""
    found = parse_frame(storage.read(path))
    if not isinstance(found, Frame):
        raise DamagedLog(path, 0, f"it has no sound rows: {found}")
    return payload_table(found)
