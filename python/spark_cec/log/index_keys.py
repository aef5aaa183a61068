"""Keys and values of an index in an ordered key-value store; the keys sort bytewise in the order of `Index`.

One row per frame holds its meta. The frame's other rows are empty and end in its place (segment, offset). Signed
numbers are biased by 2**63, so that they sort as numbers.
"""

from __future__ import annotations

import struct

from spark_cec.ids import StoreId
from spark_cec.log.index import Covered
from spark_cec.log.meta import CommitMeta, FrameKind, LoadedMeta, Meta, OutputMeta, decode_meta, kind_of
from spark_cec.log.segment import Location, SegmentName

HEADER = b"i"
COVERED = b"s"
COMMITS = b"c"
LAST = b"\xff" * 128
"""Sorts behind every suffix of a prefix."""

_LAYOUT = b"spark-cec index 1 "
_FRAME = b"f"
_OUTPUT_IDS = b"o"
_BATCHES = b"b"
_LOADED = b"l"
_TIMES = b"t"
_BIAS = 1 << 63
LEAST_NUMBER = -_BIAS
_NUMBER = struct.Struct(">Q")
_NAME_LENGTH = struct.Struct(">H")
_COVERED_VALUE = struct.Struct(">QQI")
_FRAME_VALUE = struct.Struct(">BQ")
_SEGMENT_BYTES = len(str(SegmentName("0" * 12 + "-" + "0" * 16, 0)))
_PLACE_BYTES = _SEGMENT_BYTES + _NUMBER.size


def header_value(log_id: str) -> bytes:
    """Value of the `HEADER` row: the log's id, and the layout of the keys."""
    return _LAYOUT + log_id.encode()


def covered_row(segment: str, covered: Covered) -> tuple[bytes, bytes]:
    """The row with the covered part of a segment."""
    return covered_key(segment), _COVERED_VALUE.pack(covered.end, covered.last_offset, covered.last_crc)


def covered_key(segment: str) -> bytes:
    """Key of `covered_row`."""
    return COVERED + _encode_segment(segment)


def read_covered(key: bytes, value: bytes) -> tuple[str, Covered]:
    """Inverse of `covered_row`."""
    return key[1:].decode(), Covered(*_COVERED_VALUE.unpack(value))


def frame_row(meta: Meta, location: Location) -> tuple[bytes, bytes]:
    """The row with a frame's meta."""
    return frame_key(place(location)), _FRAME_VALUE.pack(kind_of(meta), location.length) + meta.encode()


def frame_key(at: bytes) -> bytes:
    """Key of the frame whose row key ends in `at`."""
    return _FRAME + at[-_PLACE_BYTES:]


def frames_prefix(segment: str) -> bytes:
    """Common prefix of the keys of all frames of a segment."""
    return _FRAME + _encode_segment(segment)


def offset(start: int) -> bytes:
    """An offset in the key of a frame, after `frames_prefix`."""
    return _NUMBER.pack(start)


def read_frame_row(key: bytes, value: bytes) -> tuple[Meta, Location]:
    """Inverse of `frame_row`."""
    kind, length = _FRAME_VALUE.unpack_from(value)
    (offset,) = _NUMBER.unpack(key[-_NUMBER.size :])
    location = Location(key[1 : 1 + _SEGMENT_BYTES].decode(), offset, length)
    return decode_meta(FrameKind(kind), value[_FRAME_VALUE.size :]), location


def place(location: Location) -> bytes:
    """Segment and offset, of fixed length."""
    return _encode_segment(location.segment) + _NUMBER.pack(location.offset)


def frame_pointers(meta: Meta, location: Location) -> list[bytes]:
    """Keys of the empty rows that point to a frame."""
    at = place(location)
    if isinstance(meta, CommitMeta):
        attempt = number(meta.version) + number(meta.generation) + number(meta.wall_ms)
        return [store_prefix(meta.store) + attempt + at, times_prefix(FrameKind.COMMIT) + number(meta.wall_ms) + at]
    if isinstance(meta, OutputMeta):
        return [
            output_prefix(meta.frame_id) + at,
            batch_prefix(meta.batch) + at,
            times_prefix(FrameKind.OUTPUT) + number(meta.wall_ms) + at,
        ]
    return [loaded_prefix(meta.generation) + number(meta.wall_ms) + at] if isinstance(meta, LoadedMeta) else []


def number(value: int) -> bytes:
    """A signed 64-bit number, encoded to sort as a number."""
    return _NUMBER.pack(value + _BIAS)


def read_number(data: bytes) -> int:
    """Inverse of `number`, from the first eight bytes."""
    return int(_NUMBER.unpack_from(data)[0]) - _BIAS


def store_prefix(store: StoreId) -> bytes:
    """Prefix of the keys of a store's commits; the version follows."""
    name = store.name.encode()
    return COMMITS + number(store.operator) + number(store.partition) + _NAME_LENGTH.pack(len(name)) + name


def read_store(key: bytes) -> StoreId:
    """The store in a commit's key."""
    (length,) = _NAME_LENGTH.unpack_from(key, 17)
    return StoreId(read_number(key[1:]), read_number(key[9:]), key[19 : 19 + length].decode())


def output_prefix(frame_id: bytes) -> bytes:
    """Prefix of the keys of an output frame's copies."""
    return _OUTPUT_IDS + frame_id


def batch_prefix(batch: int) -> bytes:
    """Prefix of the keys of a batch's output frames."""
    return _BATCHES + number(batch)


def loaded_prefix(generation: int) -> bytes:
    """Prefix of the keys of a run's loads."""
    return _LOADED + number(generation)


def times_prefix(kind: FrameKind) -> bytes:
    """Prefix of the keys of all frames of a kind by wall clock."""
    return _TIMES + bytes([kind])


def _encode_segment(segment: str) -> bytes:
    if SegmentName.parse(segment) is None:
        raise ValueError(f"{segment!r} is no segment's name")
    return segment.encode()
