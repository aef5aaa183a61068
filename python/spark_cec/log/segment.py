"""Segments: the files of the log, their names and places within them (`FORMAT.md`, section 1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_cec.ids import new_writer_id
from spark_cec.log.frame import PRELUDE_LENGTH, TRAILER_LENGTH, Buffer, FrameKind, Location, encode_frame
from spark_cec.log.meta import SegmentMeta
from spark_cec.log.storage import Listing, Storage

SEGMENTS = "segments"
DEFAULT_SEGMENT_BYTES = 64 << 20

SEGMENT_FRAMES = 1 << 14
"""A segment ends after this many frames, however small, because trimming deletes whole segments only."""

LEFT_AFTER_IDLE_MS = 300_000
"""If a writer has not appended to a segment for this time, it begins another one."""

GIVEN_UP_AFTER_IDLE_MS = 3_600_000
"""If a segment's newest frame is older than this, the segment counts as left. Its writer may live: clocks differ."""

SEGMENTS_OF_A_WRITER = 10**8
"""The number of names that a writer has: `seq` has eight digits."""

_NAME = re.compile(r"(?P<writer>[0-9a-f]{12}-[0-9a-f]{16})-(?P<seq>[0-9]{8})\.cec")
_BUNDLE = re.compile(r"x-[0-9a-f]{12}-[0-9a-f]{16}\.bundle")

__all__ = [
    "DEFAULT_SEGMENT_BYTES",
    "GIVEN_UP_AFTER_IDLE_MS",
    "LEFT_AFTER_IDLE_MS",
    "SEGMENTS",
    "SEGMENTS_OF_A_WRITER",
    "SEGMENT_FRAMES",
    "Location",
    "SegmentName",
    "bundle_name",
    "encode_segment_frame",
    "is_bundle",
    "list_segments",
    "new_writer_id",
    "segment_frame_length",
    "segment_path",
]


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The parts of a segment's name. Names sort by the time their writer began, then by `seq`."""

    writer_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.writer_id}-{self.seq:08d}.cec"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """The parts of `name`, or None if it is no segment's name."""
        match = _NAME.fullmatch(name)
        return cls(match["writer"], int(match["seq"])) if match else None


def segment_path(segment: str) -> str:
    """Path of a segment below the log's home."""
    return f"{SEGMENTS}/{segment}"


def bundle_name(writer_id: str) -> str:
    """The name of a new bundle; each has a writer id of its own.

    It sorts behind all segments. A listing in several requests, in the order of names, that comes too late for a
    segment's file is in time for its bundle.
    """
    return f"x-{writer_id}.bundle"


def is_bundle(name: str) -> bool:
    """Whether this is the name of an object with many segments (`log.bundles`)."""
    return _BUNDLE.fullmatch(name) is not None


def list_segments(storage: Storage) -> Listing:
    """The segments, sorted by name; other files in the directory are left out.

    `ValueError` if the storage shows bundles as files, because their segments would be missing.
    """
    files = storage.list(SEGMENTS)
    for file in files:
        if is_bundle(file.name):
            raise ValueError(f"{file.name} hides its segments: read the log through log.bundles.Bundles")
    return [file for file in files if SegmentName.parse(file.name) is not None]


def encode_segment_frame(log_id: str, name: SegmentName, wall_ms: int) -> list[Buffer]:
    """The first frame of a segment; `log_id` is 32 hex digits."""
    return encode_frame(FrameKind.SEGMENT, SegmentMeta(log_id, name.writer_id, name.seq, wall_ms).encode())


def segment_frame_length(name: SegmentName) -> int:
    """Bytes of the first frame that this release writes into the segment."""
    return PRELUDE_LENGTH + len(SegmentMeta("0" * 32, name.writer_id, name.seq, 0).encode()) + TRAILER_LENGTH
