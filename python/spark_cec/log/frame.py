"""Frames: the smallest units of the log, as pure functions of bytes (`FORMAT.md`, section 2).

No function here touches a file. A parser returns a value: the frame, the number of missing bytes, a fault, or a newer
format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import TypeAlias

import google_crc32c

from spark_cec.log.meta import (
    CommitFlags,
    CommitMeta,
    FrameKind,
    LoadedMeta,
    Meta,
    OutputMeta,
    SegmentMeta,
    decode_meta,
)

__all__ = [
    "FORMAT_VERSION",
    "MAGIC",
    "PRELUDE_LENGTH",
    "TRAILER_LENGTH",
    "Bad",
    "Buffer",
    "CommitFlags",
    "CommitMeta",
    "Frame",
    "FrameFlags",
    "FrameHeader",
    "FrameKind",
    "LoadedMeta",
    "Location",
    "Meta",
    "NeedMore",
    "Newer",
    "OutputMeta",
    "SegmentMeta",
    "crc32c",
    "decode_meta",
    "encode_frame",
    "make_header",
    "parse_frame",
    "parse_header",
    "read_trailer",
]

MAGIC = b"\x89CECFRM\n"
FORMAT_VERSION = 1
PRELUDE_LENGTH = 32
TRAILER_LENGTH = 4

_PRELUDE = struct.Struct("<8sHBBIQII")
_CRC = struct.Struct("<I")
_CRC_BLOCK = 1 << 18

Buffer: TypeAlias = "bytes | bytearray | memoryview"
"""Contiguous bytes. Put anything else with the buffer protocol, such as a `pyarrow.Buffer`, in a memoryview."""


@dataclass(frozen=True, slots=True)
class NeedMore:
    """The bytes may be the beginning of a frame. `length`: the bytes from its start that the next step needs."""

    length: int


@dataclass(frozen=True, slots=True)
class Bad:
    """The bytes are no frame, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Newer:
    """A sound frame of a format that this release does not know. `found` names the unknown part."""

    found: str


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """The place of a frame: `segment` is a file name, `offset` and `length` are bytes of the whole frame."""

    segment: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the frame."""
        return self.offset + self.length


class FrameFlags(IntFlag):
    """How a reader must decode the payload.

    PLANES: records are in byte planes (`log.byte_planes`). STEPS: the window ids in the planes are differences. PACKED:
    the payload is compressed as a whole (`log.record`).
    """

    PLAIN = 0
    PLANES = 1
    STEPS = 2
    PACKED = 4


_COMMIT_FLAGS = FrameFlags.PLANES | FrameFlags.STEPS | FrameFlags.PACKED


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Prelude and meta of a frame. `payload_length` is in bytes; `prelude_crc` identifies the header."""

    kind: FrameKind
    meta: bytes
    payload_length: int
    prelude_crc: int
    flags: FrameFlags = FrameFlags.PLAIN

    @property
    def payload_offset(self) -> int:
        """Bytes from the start of the frame to its payload."""
        return PRELUDE_LENGTH + len(self.meta)

    @property
    def total_length(self) -> int:
        """Bytes of the whole frame, checksums included."""
        return self.payload_offset + self.payload_length + TRAILER_LENGTH


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame whose three checksums are right."""

    header: FrameHeader
    payload: memoryview

    @property
    def kind(self) -> FrameKind:
        """The frame's kind."""
        return self.header.kind

    @property
    def meta(self) -> Meta:
        """The frame's meta, decoded at each access; `ValueError` if it is too short for its kind."""
        return decode_meta(self.header.kind, self.header.meta)


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """CRC-32C of `buffer`, continuing from `crc`."""
    if isinstance(buffer, bytes):
        return int(google_crc32c.extend(crc, buffer))
    view = memoryview(buffer).cast("B")
    # The C function takes only `bytes`. A copy of one block stays in the processor's cache.
    for start in range(0, len(view), _CRC_BLOCK):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _CRC_BLOCK]))
    return int(crc)


def make_header(
    kind: FrameKind, meta: bytes, payload_length: int, flags: FrameFlags = FrameFlags.PLAIN
) -> FrameHeader:
    """The header that `encode_frame` writes for such a frame; the writer gives it to the index."""
    return FrameHeader(kind, meta, payload_length, crc32c(_encode_prelude(kind, meta, payload_length, flags)), flags)


def encode_frame(
    kind: FrameKind,
    meta: bytes,
    payload: Buffer | list[Buffer] | tuple[Buffer, ...] = b"",
    flags: FrameFlags = FrameFlags.PLAIN,
) -> list[Buffer]:
    """The buffers of a frame, in order; payload buffers are not copied."""
    parts: Sequence[Buffer] = payload if isinstance(payload, list | tuple) else [memoryview(payload)]
    length = sum(memoryview(part).nbytes for part in parts)
    fields = _encode_prelude(kind, meta, length, flags)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return [fields + _CRC.pack(crc32c(fields)) + meta, *parts, _CRC.pack(crc)]


def parse_header(buffer: Buffer, offset: int = 0) -> FrameHeader | NeedMore | Bad | Newer:
    """The prelude and meta at `offset`; the payload may be missing."""
    view = memoryview(buffer)[offset:]
    if view[: len(MAGIC)] != MAGIC[: len(view)]:
        return Bad("no frame begins here")
    if len(view) < PRELUDE_LENGTH:
        return NeedMore(PRELUDE_LENGTH)
    _, version, kind, flags, meta_length, payload_length, meta_crc, prelude_crc = _PRELUDE.unpack(view[:PRELUDE_LENGTH])
    if crc32c(view[: PRELUDE_LENGTH - 4]) != prelude_crc:
        return Bad("the prelude fails its checksum")
    news = _find_newer(version, kind, flags)
    if news is not None:
        return news
    if len(view) < PRELUDE_LENGTH + meta_length:
        return NeedMore(PRELUDE_LENGTH + meta_length)
    meta = bytes(view[PRELUDE_LENGTH : PRELUDE_LENGTH + meta_length])
    if crc32c(meta) != meta_crc:
        return Bad("the meta fails its checksum")
    return FrameHeader(FrameKind(kind), meta, payload_length, prelude_crc, FrameFlags(flags))


def parse_frame(buffer: Buffer, offset: int = 0) -> Frame | NeedMore | Bad | Newer:
    """The frame at `offset`; its payload is a view into `buffer`. Bytes after the frame are ignored."""
    header = parse_header(buffer, offset)
    if not isinstance(header, FrameHeader):
        return header
    view = memoryview(buffer)[offset : offset + header.total_length]
    if len(view) < header.total_length:
        return NeedMore(header.total_length)
    payload = view[header.payload_offset : -TRAILER_LENGTH]
    if crc32c(payload) != read_trailer(view[-TRAILER_LENGTH:]):
        return Bad("the payload fails its checksum")
    return Frame(header, payload)


def read_trailer(buffer: Buffer) -> int:
    """The payload checksum in the last four bytes of a frame."""
    return int(_CRC.unpack(buffer)[0])


def _encode_prelude(kind: FrameKind, meta: bytes, payload_length: int, flags: FrameFlags) -> bytes:
    return _PRELUDE.pack(MAGIC, FORMAT_VERSION, kind, flags, len(meta), payload_length, crc32c(meta), 0)[:-4]


def _find_newer(version: int, kind: int, flags: int) -> Newer | Bad | None:
    if version == 0 or kind == 0:
        return Bad("format version and kind 0 are reserved")
    if version != FORMAT_VERSION:
        return Newer(f"format version {version}")
    if kind not in FrameKind._value2member_map_:
        return Newer(f"frame kind {kind}")
    known = _COMMIT_FLAGS if kind == FrameKind.COMMIT else FrameFlags.PLAIN
    return Newer(f"frame flags {flags:#04x}") if flags & ~int(known) else None
