"""Scans a segment for its frames and its damage, each with a place (`FORMAT.md`, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from spark_cec.errors import NewerFormat
from spark_cec.log.frame import (
    MAGIC,
    PRELUDE_LENGTH,
    TRAILER_LENGTH,
    Bad,
    FrameHeader,
    NeedMore,
    Newer,
    crc32c,
    parse_header,
    read_trailer,
)
from spark_cec.log.segment import Location, segment_path
from spark_cec.log.storage import Storage

BLOCK_BYTES = 8 << 20
_SMALL_BLOCK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame. `crc_ok` is True if the payload was read and is right, None if it was not read."""

    location: Location
    header: FrameHeader
    crc_ok: bool | None


@dataclass(frozen=True, slots=True)
class Torn:
    """The segment ends short of a frame, or in zeros, after a crash or during a write. No commit was acknowledged."""

    segment: str
    offset: int
    bytes_lost: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Bytes that should be a frame, but are none."""

    segment: str
    offset: int
    bytes_lost: int
    reason: str


Damage: TypeAlias = "Torn | Corrupt"
Scanned: TypeAlias = "FoundFrame | Torn | Corrupt"


class Window:
    """The bytes of one file through a moving block; large blocks for sequential reads, small ones after a jump.

    `read` returns as many bytes from an offset on; `size` is the file's.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._read = read
        self._start = 0
        self._block = b""
        self._next_bytes = BLOCK_BYTES

    def get(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset`; fewer only at the file's end when the scan began."""
        length = max(0, min(length, self.size - offset))
        end = self._start + len(self._block)
        if offset < self._start or offset + length > end:
            leap = offset < self._start or offset > end
            self._next_bytes = _SMALL_BLOCK_BYTES if leap else min(2 * self._next_bytes, BLOCK_BYTES)
            wanted = min(max(length, self._next_bytes), self.size - offset)
            self._start, self._block = offset, self._read(offset, wanted)
        start = offset - self._start
        return memoryview(self._block)[start : start + length]

    def blocks(self, offset: int, end: int, overlap: int = 0) -> Iterator[tuple[int, memoryview]]:
        """The bytes from `offset` to `end` as (place, bytes); each piece repeats the previous one's last `overlap`
        bytes.
        """
        while offset < end:
            piece = self.get(offset, min(BLOCK_BYTES, end - offset))
            yield offset, piece
            if offset + len(piece) >= end or len(piece) <= overlap:
                return
            offset += len(piece) - overlap


def scan(
    storage: Storage, segment: str, start: int = 0, size: int | None = None, headers_only: bool = True
) -> Iterator[Scanned]:
    """Frames and damage from byte `start` (where a frame begins) to `size` (default: the file's), in order.

    With `headers_only`, payloads are read only for the last frame and for a frame without a successor; these may be
    unfinished. Otherwise every byte is checked. Never writes. Errors: `NewerFormat` at a sound frame of a newer format;
    `FileNotFoundError`.
    """
    path = segment_path(segment)
    window = Window(partial(storage.read, path), storage.size(path) if size is None else size)
    yield from _scan_window(window, segment, start, headers_only)


def scan_bytes(segment: str, content: bytes) -> Iterator[Scanned]:
    """Frames and damage in these bytes of a segment; every byte is checked. Errors: `NewerFormat`."""
    window = Window(lambda offset, length: content[offset : offset + length], len(content))
    yield from _scan_window(window, segment, 0, headers_only=False)


def _scan_window(window: Window, segment: str, offset: int, headers_only: bool) -> Iterator[Scanned]:
    while offset < window.size:
        scanned, offset = _scan_next(window, segment, offset, headers_only)
        yield scanned


def _scan_next(window: Window, segment: str, offset: int, headers_only: bool) -> tuple[Scanned, int]:
    """The frame or damage at `offset`, and the offset to continue at."""
    header = header_at(window, segment, offset)
    rest = window.size - offset
    if isinstance(header, NeedMore) or (isinstance(header, FrameHeader) and header.total_length > rest):
        return Torn(segment, offset, rest), window.size
    if isinstance(header, Bad):
        if _has_only_zeros(window, offset):
            return Torn(segment, offset, rest), window.size
        return _skip_corrupt(window, segment, offset, offset + 1, header.reason)
    end = offset + header.total_length
    if headers_only and end < window.size and _may_follow(window, segment, end):
        return FoundFrame(Location(segment, offset, end - offset), header, None), end
    if _payload_is_right(window, offset, header):
        return FoundFrame(Location(segment, offset, end - offset), header, True), end
    reason = "the payload fails its checksum"
    if end == window.size or _may_follow(window, segment, end):
        return Corrupt(segment, offset, end - offset, reason), end
    return _skip_corrupt(window, segment, offset, offset + PRELUDE_LENGTH, reason)


def header_at(window: Window, segment: str, offset: int) -> FrameHeader | NeedMore | Bad:
    """The header at `offset`; `NewerFormat` if its format is newer."""
    parsed = parse_header(window.get(offset, PRELUDE_LENGTH))
    if isinstance(parsed, NeedMore) and parsed.length <= window.size - offset:
        parsed = parse_header(window.get(offset, parsed.length))
    if isinstance(parsed, Newer):
        raise NewerFormat(f"{segment} at byte {offset}", parsed.found)
    return parsed


def _may_follow(window: Window, segment: str, offset: int) -> bool:
    return not isinstance(header_at(window, segment, offset), Bad)


def _payload_is_right(window: Window, offset: int, header: FrameHeader) -> bool:
    start, crc = offset + header.payload_offset, 0
    for _, piece in window.blocks(start, start + header.payload_length):
        crc = crc32c(piece, crc)
    trailer = window.get(start + header.payload_length, TRAILER_LENGTH)
    # It is short if the file shrank during the scan.
    return len(trailer) == TRAILER_LENGTH and read_trailer(trailer) == crc


def _has_only_zeros(window: Window, offset: int) -> bool:
    return all(piece.nbytes == bytes(piece).count(0) for _, piece in window.blocks(offset, window.size))


def _skip_corrupt(window: Window, segment: str, offset: int, search_from: int, reason: str) -> tuple[Scanned, int]:
    end = _next_header(window, segment, search_from)
    return Corrupt(segment, offset, end - offset, reason), end


def _next_header(window: Window, segment: str, offset: int) -> int:
    """Offset of the next valid header, or of a header that the file's end cuts short, or the file's end."""
    for place, piece in window.blocks(offset, window.size, overlap=PRELUDE_LENGTH - 1):
        data = bytes(piece)
        at = data.find(MAGIC)
        while at >= 0:
            if _may_follow(window, segment, place + at):
                return place + at
            at = data.find(MAGIC, at + 1)
    return window.size
