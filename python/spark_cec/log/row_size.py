"""Tells how large the records of a commit are when they are decoded, without a read of the whole frame.

Arrow writes the length of each column before the columns, and the decoded length of a compressed one at its beginning.
pyarrow does not show them, so this module reads them from Arrow's description of a record batch, a flatbuffer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from spark_cec.errors import DamagedLog
from spark_cec.log.byte_planes import PLANES_KEY
from spark_cec.log.frame import FrameHeader, parse_header
from spark_cec.log.reader import commit_records, read_frame
from spark_cec.log.segment import Location, segment_path
from spark_cec.log.storage import Storage

HEAD_BYTES = 256 << 10
"""So many bytes of a frame have the description of its first record batch. Smaller frames are read whole."""

_MESSAGE = struct.Struct("<II")
_U16, _U32, _I32, _I64 = (struct.Struct(kind) for kind in ("<H", "<I", "<i", "<q"))
_BUFFER = struct.Struct("<qq")
_OFFSET_BYTES = 4
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3
"""Fields of Arrow's tables `Message` and `RecordBatch`."""

_NOT_COMPRESSED = -1


def read_row_bytes(storage: Storage, location: Location) -> float:
    """The decoded bytes of a record, as a mean of the frame's first record batch.

    Raises `DamagedLog` if the frame is missing, or is no COMMIT frame, as far as it is read.
    """
    if location.length <= HEAD_BYTES:
        rows = commit_records(read_frame(storage, location))
        return float(rows.nbytes / max(rows.num_rows, 1))
    read = partial(storage.read, segment_path(location.segment))
    head = read(location.offset, HEAD_BYTES)
    header = parse_header(head)
    if not isinstance(header, FrameHeader):
        raise DamagedLog(location.segment, location.offset, f"no frame begins there: {header}")
    at = header.payload_offset
    try:
        return _measure(memoryview(head)[at:], lambda offset, length: read(location.offset + at + offset, length))
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, struct.error) as error:
        raise DamagedLog(location.segment, location.offset, f"its records are not described: {error}") from error


def _measure(stream: memoryview, read: Callable[[int, int], bytes]) -> float:
    """The bytes of a row; `stream` is the beginning of an Arrow stream, of which `read` gives other places."""
    schema = pa.ipc.read_schema(pa.py_buffer(stream))
    _, after = _message(stream, 0)
    batch, body = _message(stream, after)
    table = _follow(batch, _field(batch, _U32.unpack_from(batch)[0], _HEADER))
    (rows,) = _I64.unpack_from(batch, _field(batch, table, _LENGTH))
    is_compressed = bool(_field(batch, table, _COMPRESSION))
    planes = json.loads((schema.metadata or {}).get(PLANES_KEY, b"[]"))
    size = float(sum(width + _OFFSET_BYTES for _, width, _ in planes if width))
    in_planes = {name for name, width, _ in planes if width}
    buffers = _buffers(batch, table)
    for field in schema:
        has_offsets = pa.types.is_binary(field.type)
        next(buffers)  # which values are null
        if has_offsets:
            next(buffers)
        offset, length = next(buffers)
        if field.name.rpartition(".")[0] in in_planes:
            continue
        if not has_offsets:
            size += field.type.bit_width / 8
            continue
        if is_compressed and length:
            (decoded,) = _I64.unpack(read(body + offset, _I64.size))
            length = length - _I64.size if decoded == _NOT_COMPRESSED else decoded
        size += _OFFSET_BYTES + length / max(rows, 1)
    return size


def _message(stream: memoryview, at: int) -> tuple[memoryview, int]:
    """The description in a message of an Arrow stream, and the place after it."""
    _, length = _MESSAGE.unpack_from(stream, at)
    begin = at + _MESSAGE.size
    if begin + length > len(stream):
        raise ValueError(f"a description of {length} bytes is not within the first {len(stream)} bytes of the stream")
    return stream[begin : begin + length], begin + length


def _field(flat: memoryview, table: int, number: int) -> int:
    """The place of a field; 0 if the table lacks it."""
    kinds = table - _I32.unpack_from(flat, table)[0]
    entry = 4 + 2 * number
    offset = _U16.unpack_from(flat, kinds + entry)[0] if entry < _U16.unpack_from(flat, kinds)[0] else 0
    return table + offset if offset else 0


def _follow(flat: memoryview, at: int) -> int:
    return int(at + _U32.unpack_from(flat, at)[0])


def _buffers(flat: memoryview, table: int) -> Iterator[tuple[int, int]]:
    """Place in the body, and stored length, of each buffer of a record batch."""
    begin = _follow(flat, _field(flat, table, _BUFFERS))
    (number,) = _U32.unpack_from(flat, begin)
    for place in range(number):
        yield _BUFFER.unpack_from(flat, begin + 4 + place * _BUFFER.size)
