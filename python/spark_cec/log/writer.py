"""Appending to the log (`FORMAT.md`, section 6)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from spark_cec.errors import CommitOutcomeUnknown, TransientError
from spark_cec.log.frame import (
    PRELUDE_LENGTH,
    TRAILER_LENGTH,
    Buffer,
    FrameHeader,
    FrameKind,
    encode_frame,
    make_header,
)
from spark_cec.log.meta import Meta
from spark_cec.log.segment import (
    DEFAULT_SEGMENT_BYTES,
    LEFT_AFTER_IDLE_MS,
    SEGMENT_FRAMES,
    Location,
    SegmentName,
    encode_segment_frame,
    segment_path,
)
from spark_cec.log.storage import Appender, Storage

_LOST_SEGMENTS = 3


class Appended(NamedTuple):
    """A durable frame: its header, as an index wants it, and its place."""

    header: FrameHeader
    location: Location


class SegmentWriter:
    """Appends frames to segments of its own; safe for use by several threads.

    A segment is begun with its first frame and left when it has `segment_bytes` or `SEGMENT_FRAMES`, when nothing was
    appended to it for `LEFT_AFTER_IDLE_MS`, or when an append to it failed. Where the storage cannot append, each frame
    is a segment. `log_id` is 32 hex digits, `clock` gives ms since the epoch.
    """

    def __init__(
        self,
        storage: Storage,
        log_id: str,
        writer_id: str,
        clock: Callable[[], int],
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> None:
        self.writer_id = writer_id
        self._storage = storage
        self._log_id = log_id
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._next_seq = 0
        self._open: tuple[SegmentName, Appender] | None = None
        self._end = 0
        self._frames = 0
        self._appended_ms = 0
        self._closed = False

    def append(
        self, kind: FrameKind, meta: Meta | bytes, payload: Buffer | list[Buffer] | tuple[Buffer, ...] = b""
    ) -> Appended:
        """Append one frame; it is durable on return.

        Errors: `TransientError` if nothing was written; `CommitOutcomeUnknown` if the frame may be in the log or not.
        """
        encoded = meta if isinstance(meta, bytes) else meta.encode()
        buffers = encode_frame(kind, encoded, payload)
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        header = make_header(kind, encoded, length - PRELUDE_LENGTH - len(encoded) - TRAILER_LENGTH)
        with self._lock:
            if self._closed:
                raise ValueError(f"writer {self.writer_id} is closed: open the log again")
            write = self._append if self._storage.can_append else self._create
            return Appended(header, write(buffers, length))

    def leave_if_idle(self) -> None:
        """Leave the open segment, if the next append would begin another one anyway: its file need not stay open."""
        with self._lock:
            if self._open is not None and self._is_over(0, self._clock()):
                self._leave()

    def close(self) -> None:
        """Leave the open segment; more than once is harmless."""
        with self._lock:
            self._closed = True
            self._leave()

    def _append(self, buffers: list[Buffer], length: int) -> Location:
        for _ in range(_LOST_SEGMENTS):
            location = self._append_once(buffers, length)
            if location is not None:
                return location
        raise TransientError(f"{self._storage.url}: segments vanish while they are written; who deletes them?")

    def _append_once(self, buffers: list[Buffer], length: int) -> Location | None:
        """The frame's place, or None if the segment was deleted meanwhile, so that the frame is nowhere."""
        now_ms = self._clock()
        if self._open is not None and self._is_over(length, now_ms):
            self._leave()
        if self._open is None:
            name, appender, lead = self._begin()
        else:
            (name, appender), lead = self._open, []
        offset = self._end + sum(memoryview(buffer).nbytes for buffer in lead)
        # Until it has worked, the append counts as failed, whatever may end it.
        self._open = None
        try:
            appender.append([*lead, *buffers])
            linked = appender.still_linked()
        except BaseException as error:
            _close_quietly(appender)
            if not isinstance(error, Exception):
                raise
            raise CommitOutcomeUnknown(f"append to {name} at byte {offset} failed: {error}") from error
        if not linked:
            _close_quietly(appender)
            return None
        self._open, self._end = (name, appender), offset + length
        self._frames, self._appended_ms = self._frames + 1, now_ms
        return Location(str(name), offset, length)

    def _is_over(self, length: int, now_ms: int) -> bool:
        return (
            self._end + length > self._segment_bytes
            or self._frames >= SEGMENT_FRAMES
            or not 0 <= now_ms - self._appended_ms < LEFT_AFTER_IDLE_MS
        )

    def _begin(self) -> tuple[SegmentName, Appender, list[Buffer]]:
        name = self._take_name()
        try:
            appender = self._storage.append_to_new(segment_path(str(name)))
        except Exception as error:
            raise TransientError(f"segment {name} could not be begun: {error}") from error
        self._end = self._frames = 0
        return name, appender, encode_segment_frame(self._log_id, name, self._clock())

    def _create(self, buffers: list[Buffer], length: int) -> Location:
        name = self._take_name()
        data = b"".join([*encode_segment_frame(self._log_id, name, self._clock()), *buffers])
        try:
            self._storage.create(segment_path(str(name)), data)
        except Exception as error:
            raise CommitOutcomeUnknown(f"creation of {name} failed: {error}") from error
        return Location(str(name), len(data) - length, length)

    def _take_name(self) -> SegmentName:
        name = SegmentName(self.writer_id, self._next_seq)
        self._next_seq += 1
        return name

    def _leave(self) -> None:
        if self._open is not None:
            _close_quietly(self._open[1])
        self._open = None


def _close_quietly(appender: Appender) -> None:
    """What was appended is durable already, so nothing can be lost here."""
    try:
        appender.close()
    except OSError:
        return
