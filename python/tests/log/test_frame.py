"""Frames as pure functions of bytes."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.log.frame import (
    MAGIC,
    PRELUDE_LENGTH,
    Bad,
    Frame,
    FrameHeader,
    FrameKind,
    NeedMore,
    Newer,
    crc32c,
    encode_frame,
    make_header,
    parse_frame,
    parse_header,
)
from tests.log.support import commit_meta, frame_bytes, payload_of

WHOLE = frame_bytes(commit_meta(3), payload_of(3))
HEADER_LENGTH = PRELUDE_LENGTH + len(commit_meta(3).encode())


def _prelude(
    version: int = 1, kind: int = 2, flags: int = 0, meta: bytes = b"m", length: int = 0, magic: bytes = MAGIC
) -> bytes:
    fields = struct.pack("<8sHBBIQI", magic, version, kind, flags, len(meta), length, crc32c(meta))
    return fields + struct.pack("<I", crc32c(fields)) + meta


def test_the_checksum_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"456789"), crc32c(bytearray(b"123"))) == 0xE3069283
    assert crc32c(b"") == 0


def test_the_checksum_does_not_depend_on_the_kind_of_buffer_or_its_blocks() -> None:
    data = bytes(range(256)) * 3000
    assert crc32c(data) == crc32c(memoryview(data)) == crc32c(bytearray(data))
    assert crc32c(memoryview(data).cast("I")) == crc32c(data)


@given(
    st.sampled_from(FrameKind),
    st.binary(max_size=200),
    st.lists(st.binary(max_size=300), max_size=4),
    st.binary(max_size=50),
)
def test_frames_round_trip(kind: FrameKind, meta: bytes, parts: list[bytes], behind: bytes) -> None:
    data = b"".join(encode_frame(kind, meta, list(parts)))
    frame = parse_frame(b"front" + data + behind, 5)
    assert isinstance(frame, Frame)
    assert (frame.kind, frame.header.meta, bytes(frame.payload)) == (kind, meta, b"".join(parts))
    assert frame.header == make_header(kind, meta, len(frame.payload)) == parse_header(data)
    assert frame.header.total_length == len(data)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_payload_buffer(wrap: type) -> None:
    assert b"".join(encode_frame(FrameKind.OUTPUT, b"m", wrap(b"payload"))) == b"".join(
        encode_frame(FrameKind.OUTPUT, b"m", [b"pay", b"load"])
    )


def test_a_large_payload_is_not_copied() -> None:
    payload = memoryview(bytearray(1 << 20))
    assert any(
        part is payload or getattr(part, "obj", None) is payload.obj
        for part in encode_frame(FrameKind.COMMIT, b"", payload)
    )


def test_one_byte_at_a_time() -> None:
    for length in range(len(WHOLE)):
        answer = parse_frame(WHOLE[:length])
        assert isinstance(answer, NeedMore), length
        assert length < answer.length <= len(WHOLE)
        header = parse_header(WHOLE[:length])
        assert isinstance(header, FrameHeader if length >= HEADER_LENGTH else NeedMore), length
    assert isinstance(parse_frame(WHOLE), Frame)


def test_what_is_needed_leads_to_the_frame_in_few_steps() -> None:
    length, steps = 0, 0
    while isinstance(answer := parse_frame(WHOLE[:length]), NeedMore):
        length, steps = answer.length, steps + 1
    assert (length, steps) == (len(WHOLE), 3)


def test_every_flipped_bit_is_noticed() -> None:
    for position in range(len(WHOLE)):
        for bit in range(8):
            data = bytearray(WHOLE)
            data[position] ^= 1 << bit
            answer = parse_frame(data)
            assert isinstance(answer, Bad), (position, bit, answer)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "no frame begins here"),
        (9, "the prelude fails its checksum"),
        (28, "the prelude fails its checksum"),
        (PRELUDE_LENGTH, "the meta fails its checksum"),
        (HEADER_LENGTH, "the payload fails its checksum"),
        (len(WHOLE) - 1, "the payload fails its checksum"),
    ],
)
def test_reasons(position: int, reason: str) -> None:
    data = bytearray(WHOLE)
    data[position] ^= 0x10
    assert parse_frame(data) == Bad(reason)


@pytest.mark.parametrize("length", [1, 8, 31, 32, 4096])
def test_zeros_are_never_a_frame(length: int) -> None:
    assert isinstance(parse_frame(bytes(length)), Bad)


def test_nothing_needs_more() -> None:
    assert parse_frame(b"") == NeedMore(PRELUDE_LENGTH)


@pytest.mark.parametrize(
    ("prelude", "found"),
    [
        (_prelude(version=2), "format version 2"),
        (_prelude(version=65535, kind=200, flags=1), "format version 65535"),
        (_prelude(kind=5), "frame kind 5"),
        (_prelude(flags=0x80), "frame flags 0x80"),
    ],
)
def test_what_is_newer_is_neither_bad_nor_missing(prelude: bytes, found: str) -> None:
    assert parse_frame(prelude + bytes(4)) == parse_header(prelude) == Newer(found)
    damaged = bytearray(prelude)
    damaged[13] ^= 1
    assert isinstance(parse_header(damaged), Bad)


@pytest.mark.parametrize("prelude", [_prelude(version=0), _prelude(kind=0)])
def test_reserved_numbers_are_bad(prelude: bytes) -> None:
    assert isinstance(parse_header(prelude), Bad)


def test_a_longer_meta_of_a_later_minor_version_is_read() -> None:
    meta = commit_meta(3)
    frame = parse_frame(b"".join(encode_frame(FrameKind.COMMIT, meta.encode() + b"news", b"")))
    assert isinstance(frame, Frame)
    assert frame.meta == meta
