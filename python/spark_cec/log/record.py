"""Records: the rows of a commit, as Arrow tables and as payload bytes (`FORMAT.md`, section 2, payload)."""

from __future__ import annotations

import struct
from enum import IntEnum

import pyarrow as pa

from spark_cec.log.byte_planes import LEAST_ROWS, from_planes, sort_order, to_planes
from spark_cec.log.frame import FrameFlags

_FEW_BYTES = 2048
"""Below this size lz4 replaces zstd: it takes a tenth of the time, and a tenth more room."""

_PACKED_BYTES = 8192
"""Up to this size the planes of a commit are compressed as a whole, because Arrow's description is most of their size.
Larger planes compress better one by one.
"""

_LENGTH = struct.Struct("<I")

_MOST_ORDERED_BYTES = 256 << 20
"""Larger tables are not sorted: the sort makes copies, in which a column has no more room than 2 GiB."""

_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""To hand buffers of a few bytes to other threads takes ten times as long as to decode them."""


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
    """Payload of an OUTPUT frame: `rows` as an Arrow IPC stream, also without rows.

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
    """Payload of a COMMIT frame in plain columns: an Arrow IPC stream, or no bytes without rows."""
    return encode_table(rows, compression) if rows.num_rows else memoryview(b"")


def encode_commit(rows: pa.Table | None, compression: str | None = "zstd") -> tuple[memoryview, FrameFlags]:
    """Payload of a COMMIT frame, and its flags.

    1. Sort the rows by their windows' ids, unless the table is too large.
    2. Put the rows into byte planes, and the ids into steps, if possible.
    3. Compress a small stream as a whole, a larger one column by column.
    """
    if rows is None or not rows.num_rows:
        return memoryview(b""), FrameFlags.PLAIN
    can_order = rows.num_rows >= LEAST_ROWS and rows.nbytes <= _MOST_ORDERED_BYTES
    order = sort_order(rows["window"]) if can_order else None  # 1
    planes = to_planes(rows, order, stepped="window" if order is not None else None)  # 2
    flags = FrameFlags.PLAIN if planes is None else FrameFlags.PLANES
    if order is not None:
        flags |= FrameFlags.STEPS
    table = rows if planes is None else planes
    if compression in (None, "none") or table.nbytes > _PACKED_BYTES:  # 3
        return encode_table(table, compression), flags
    stream = encode_table(table, None)
    packed = pa.compress(stream, codec="zstd", asbytes=True)
    return memoryview(_LENGTH.pack(len(stream)) + packed), flags | FrameFlags.PACKED


def decode_table(payload: memoryview | bytes) -> pa.Table:
    """Inverse of `encode_table`; columns are views into `payload` if it is not compressed.

    Errors: `pyarrow.ArrowInvalid` if the bytes are no Arrow stream.
    """
    with pa.ipc.open_stream(pa.py_buffer(payload), options=_READ) as reader:
        return reader.read_all()


def decode_records(
    payload: memoryview | bytes, *, grouped: bool = False, flags: FrameFlags = FrameFlags.PLAIN
) -> pa.Table:
    """Inverse of `encode_records`, and of `encode_commit` with its `flags`.

    `grouped` gives the columns of a payload without rows. Errors: `pyarrow.ArrowInvalid`, `ValueError` and similar.
    """
    if len(payload) == 0:
        return (GROUPED_SCHEMA if grouped else PLAIN_SCHEMA).empty_table()
    rows = decode_table(_decompress(payload) if flags & FrameFlags.PACKED else payload)
    if not flags & FrameFlags.PLANES:
        if flags & FrameFlags.STEPS:
            raise ValueError("the ids of windows are to be in steps, and the records are in no planes")
        return rows
    return from_planes(rows, stepped="window" if flags & FrameFlags.STEPS else None)


def _decompress(payload: memoryview | bytes) -> pa.Buffer:
    if len(payload) <= _LENGTH.size:
        raise ValueError(f"the payload is to be packed, and has {len(payload)} bytes")
    (length,) = _LENGTH.unpack_from(payload)
    return pa.decompress(memoryview(payload)[_LENGTH.size :], decompressed_size=length, codec="zstd")
