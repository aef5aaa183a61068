"""Records: the rows of a commit, as Arrow tables and as payload bytes (`FORMAT.md`, section 2, payload)."""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa

from spark_cec.log.frame import FrameFlags
from spark_cec.log.planes import from_planes, order_of, to_planes

_FEW_BYTES = 2048
"""Rows of so few bytes are compressed by lz4 for zstd: that takes a tenth of the time, and a tenth more room."""

_MOST_ORDERED_BYTES = 128 << 20
"""Rows of more bytes stay as they came: to order them makes copies, in which a column has no more room than 2 GiB."""

_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""To hand buffers of a few bytes to other threads and to wait for them takes ten times what there is to be done."""


class RecordKind(IntEnum):
    """Kind of a record; the paper's G_open, G_check and R (Sebepou & Magoutis, section III). 0 is reserved."""

    OPEN = 1
    CHECK = 2
    CLOSE = 3


def records_schema(*, grouped: bool = False, families: bool = False) -> pa.Schema:
    """Columns of a commit's records. `grouped`: several keys per window. `families`: several column families."""
    fields = [pa.field("kind", pa.int8(), nullable=False), pa.field("window", pa.binary(), nullable=False)]
    if grouped:
        fields.append(pa.field("key", pa.binary(), nullable=False))
    fields.append(pa.field("value", pa.binary()))
    if families:
        fields.append(pa.field("family", pa.int16(), nullable=False))
    return pa.schema(fields)


PLAIN_SCHEMA = records_schema()
GROUPED_SCHEMA = records_schema(grouped=True)


def encode_table(rows: pa.Table | pa.RecordBatch, compression: str | None = "zstd") -> memoryview:
    """Payload of an OUTPUT frame: `rows` as an Arrow IPC stream, also if there are none.

    `compression`: "lz4", "zstd" (lz4 for few bytes), "none" or None.
    """
    codec = None if compression == "none" else compression
    if codec == "zstd" and rows.nbytes < _FEW_BYTES:
        codec = "lz4"
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write(rows)
    return memoryview(sink.getvalue())


def encode_records(rows: pa.Table | pa.RecordBatch, compression: str | None = "zstd") -> memoryview:
    """Payload of a COMMIT frame in plain columns: an Arrow IPC stream, or nothing if there are no rows."""
    return encode_table(rows, compression) if rows.num_rows else memoryview(b"")


def encode_commit(rows: pa.Table | None, compression: str | None = "zstd") -> tuple[memoryview, FrameFlags]:
    """Payload of a COMMIT frame as it is written, in byte planes where that can be, and the flags of such a frame.

    Planes go in the order of the windows' ids, the higher bytes of which are then long runs; unless they are very many.
    """
    if rows is None or not rows.num_rows:
        return memoryview(b""), FrameFlags.PLAIN
    planes = to_planes(rows)
    if planes is None:
        return encode_table(rows, compression), FrameFlags.PLAIN
    order = order_of(rows["window"]) if planes.nbytes <= _MOST_ORDERED_BYTES else None
    return encode_table(planes if order is None else planes.take(pa.array(order)), compression), FrameFlags.PLANES


def decode_table(payload: memoryview | bytes) -> pa.Table:
    """Inverse of `encode_table`; columns are views into `payload` where it is not compressed.

    Errors: `pyarrow.ArrowInvalid` if the bytes are no Arrow stream.
    """
    with pa.ipc.open_stream(pa.py_buffer(payload), options=_READ) as reader:
        return reader.read_all()


def decode_records(
    payload: memoryview | bytes, *, grouped: bool = False, flags: FrameFlags = FrameFlags.PLAIN
) -> pa.Table:
    """Inverse of `encode_records`, and of `encode_commit` with its `flags`.

    `grouped` gives the columns of a payload without rows. Errors: `pyarrow.ArrowInvalid`, `ValueError` and their like.
    """
    if len(payload) == 0:
        return (GROUPED_SCHEMA if grouped else PLAIN_SCHEMA).empty_table()
    rows = decode_table(payload)
    return from_planes(rows) if flags & FrameFlags.PLANES else rows
