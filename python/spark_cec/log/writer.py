"""Appends to the log (`FORMAT.md`, section 6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spark_cec.errors import CommitOutcomeUnknown, LogLocationError, TransientError
from spark_cec.log.frame import (
    PRELUDE_LENGTH,
    TRAILER_LENGTH,
    Buffer,
    FrameFlags,
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
    SEGMENTS_OF_A_WRITER,
    Location,
    SegmentName,
    encode_segment_frame,
    new_writer_id,
    segment_path,
)
from spark_cec.log.storage import Appender, Storage

_LOST_SEGMENTS = 3

_LARGEST_TOGETHER = 16 << 20
"""Most bytes of frames that share an object. An object is deleted only if none of its frames is needed; the frames of
one batch are needed for about the same time.
"""


class NewFrame(NamedTuple):
    """A frame to append; `meta` is encoded, or has `encode`."""

    kind: FrameKind
    meta: Meta | bytes
    payload: Buffer | list[Buffer] | tuple[Buffer, ...] = b""
    flags: FrameFlags = FrameFlags.PLAIN


class Appended(NamedTuple):
    """A durable frame: its header, for the index, and its place."""

    header: FrameHeader
    location: Location


class _Frame:
    """An encoded frame that waits for its place, then has its place or its error."""

    __slots__ = ("buffers", "error", "header", "length", "location")

    def __init__(self, frame: NewFrame) -> None:
        encoded = frame.meta if isinstance(frame.meta, bytes) else frame.meta.encode()
        self.buffers = encode_frame(frame.kind, encoded, frame.payload, frame.flags)
        self.length = _count_bytes(self.buffers)
        payload_length = self.length - PRELUDE_LENGTH - len(encoded) - TRAILER_LENGTH
        self.header = make_header(frame.kind, encoded, payload_length, frame.flags)
        self.location: Location | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.location is not None or self.error is not None

    def place(self) -> Location:
        """The frame's place. Raises a new copy of the error, because several threads may wait for one failed write."""
        if self.location is None:
            assert self.error is not None
            raise type(self.error)(*self.error.args) from self.error
        return self.location


class SegmentWriter:
    """Appends frames to its own segments; safe for several threads.

    Frames that arrive during a write share the next write and its sync. A segment begins with its first frame. The
    writer leaves a segment that has `segment_bytes` or `SEGMENT_FRAMES`, that it has not appended to for
    `LEFT_AFTER_IDLE_MS`, or whose append failed. If the storage cannot append, each write is a segment. `log_id` is 32
    hex digits, `clock` gives ms since the epoch. `refuse_vanished_log` raises `LogLocationError` if the log is not
    there any more. The writer calls it before each new segment: a segment in another place would be lost. Behind the
    last name of a writer it takes another `writer_id`.
    """

    def __init__(
        self,
        storage: Storage,
        log_id: str,
        writer_id: str,
        clock: Callable[[], int],
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        refuse_vanished_log: Callable[[], None] = lambda: None,
    ) -> None:
        self.writer_id = writer_id
        self._storage = storage
        self._log_id = log_id
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._refuse_if_gone = refuse_vanished_log
        self._lock = threading.Lock()
        self._waiting: list[_Frame] = []
        self._writing = False
        self._turn = threading.Condition()
        self._next_seq = 0
        self._open: tuple[SegmentName, Appender] | None = None
        self._end = 0
        self._frames = 0
        self._appended_ms = 0
        self._closed = False

    def append(
        self,
        kind: FrameKind,
        meta: Meta | bytes,
        payload: Buffer | list[Buffer] | tuple[Buffer, ...] = b"",
        flags: FrameFlags = FrameFlags.PLAIN,
    ) -> Appended:
        """Appends one frame; it is durable on return.

        Errors: `TransientError` if nothing was written; `CommitOutcomeUnknown` if the log may or may not have the
        frame.
        """
        return self.append_all([NewFrame(kind, meta, payload, flags)])[0]

    def append_all(self, new: Sequence[NewFrame]) -> list[Appended]:
        """Appends frames with as few writes as possible; all are durable on return.

        Raises the error of the first frame that failed, as `append` does. The other frames may be written or not.
        """
        frames = [_Frame(each) for each in new]
        with self._turn:
            self._waiting += frames
            while self._writing and not all(frame.is_done for frame in frames):
                self._turn.wait()
            leads = not all(frame.is_done for frame in frames)
            self._writing = self._writing or leads
        if leads:
            try:
                with self._lock:
                    self._write_waiting()
            finally:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()
        return [Appended(frame.header, frame.place()) for frame in frames]

    def leave_if_idle(self) -> None:
        """Leaves the open segment if the next append would begin another one: its file need not stay open.

        Does not wait: a writer that writes is not idle.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._open is not None and self._is_over(0, self._clock()):
                self._leave_segment()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Leaves the open segment; may be called again."""
        with self._lock:
            self._closed = True
            self._leave_segment()

    def _write_waiting(self) -> None:
        """Writes this thread's frame, and all frames that have arrived since the last write."""
        frames: list[_Frame] = []
        try:
            with self._turn:
                frames, self._waiting = self._waiting, []
            while frames:
                del frames[: self._write_some(frames)]
        except BaseException as error:
            for frame in frames:
                frame.error = CommitOutcomeUnknown(f"writer {self.writer_id} was interrupted: {error!r}")
            raise

    def _write_some(self, frames: list[_Frame]) -> int:
        """Writes as many of the first frames as fit into one segment, at least one; returns how many have an outcome.
        """
        try:
            if self._closed:
                raise ValueError(f"writer {self.writer_id} is closed: open the log again")
            if not self._storage.can_append:
                most_bytes = min(self._segment_bytes, _LARGEST_TOGETHER)
                return self._create_object(frames[: _count_fitting(frames, most_bytes, SEGMENT_FRAMES)])
            return self._append(frames)
        except _Failed as failed:
            failed.error.__cause__ = failed.__cause__
            for frame in failed.frames:
                frame.error = failed.error
            return len(failed.frames)
        except Exception as error:
            frames[0].error = error
            return 1

    def _append(self, frames: list[_Frame]) -> int:
        for _ in range(_LOST_SEGMENTS):
            count = self._append_once(frames)
            if count:
                return count
        raise TransientError(f"{self._storage.url}: segments vanish while they are written; who deletes them?")

    def _append_once(self, frames: list[_Frame]) -> int:
        """Appends, and returns the number of frames in their places; 0 if the segment was deleted meanwhile."""
        now_ms = self._clock()
        if self._open is not None and self._is_over(frames[0].length, now_ms):
            self._leave_segment()
        if self._open is None:
            name, appender, lead = self._begin_segment()
        else:
            (name, appender), lead = self._open, []
        offset = self._end + _count_bytes(lead)
        together = frames[: _count_fitting(frames, self._segment_bytes - offset, SEGMENT_FRAMES - self._frames)]
        # Until the append has worked, it counts as failed, whatever ends it.
        self._open = None
        try:
            appender.append([*lead, *(buffer for frame in together for buffer in frame.buffers)])
            linked = appender.still_linked()
        except BaseException as error:
            _close_quietly(appender)
            if not isinstance(error, Exception):
                raise
            unknown = CommitOutcomeUnknown(f"append to {name} at byte {offset} failed: {error}")
            raise _Failed(unknown, together) from error
        if not linked:
            _close_quietly(appender)
            return 0
        self._open, self._end = (name, appender), _assign_places(together, str(name), offset)
        self._frames, self._appended_ms = self._frames + len(together), now_ms
        return len(together)

    def _is_over(self, length: int, now_ms: int) -> bool:
        return (
            self._end + length > self._segment_bytes
            or self._frames >= SEGMENT_FRAMES
            or not 0 <= now_ms - self._appended_ms < LEFT_AFTER_IDLE_MS
        )

    def _begin_segment(self) -> tuple[SegmentName, Appender, list[Buffer]]:
        self._refuse_if_gone()
        name = self._take_name()
        try:
            appender = self._storage.append_to_new(segment_path(str(name)))
        except LogLocationError:
            raise
        except Exception as error:
            raise TransientError(f"segment {name} could not be begun: {error}") from error
        self._end = self._frames = 0
        return name, appender, encode_segment_frame(self._log_id, name, self._clock())

    def _create_object(self, frames: list[_Frame]) -> int:
        name = self._take_name()
        lead = encode_segment_frame(self._log_id, name, self._clock())
        data = b"".join([*lead, *(buffer for frame in frames for buffer in frame.buffers)])
        try:
            self._storage.create(segment_path(str(name)), data)
        except Exception as error:
            raise _Failed(CommitOutcomeUnknown(f"creation of {name} failed: {error}"), frames) from error
        _assign_places(frames, str(name), _count_bytes(lead))
        return len(frames)

    def _take_name(self) -> SegmentName:
        if self._next_seq >= SEGMENTS_OF_A_WRITER:
            self.writer_id, self._next_seq = new_writer_id(self._clock()), 0
        name = SegmentName(self.writer_id, self._next_seq)
        self._next_seq += 1
        return name

    def _leave_segment(self) -> None:
        if self._open is not None:
            _close_quietly(self._open[1])
        self._open = None


class _Failed(Exception):
    """A write of several frames has failed: each may or may not be written."""

    def __init__(self, error: Exception, frames: list[_Frame]) -> None:
        super().__init__(str(error))
        self.error = error
        self.frames = frames


def _count_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _count_fitting(frames: Sequence[_Frame], room: int, most: int) -> int:
    """The number of first frames that fit into `room` bytes, at least one and at most `most`."""
    count = 1
    left = room - frames[0].length
    while count < min(len(frames), most) and frames[count].length <= left:
        left -= frames[count].length
        count += 1
    return count


def _assign_places(frames: Iterable[_Frame], segment: str, offset: int) -> int:
    """Assigns consecutive places to the frames, and returns the end of the last one."""
    for frame in frames:
        frame.location = Location(segment, offset, frame.length)
        offset += frame.length
    return offset


def _close_quietly(appender: Appender) -> None:
    """Ignores a failed close: the appended bytes are durable already."""
    try:
        appender.close()
    except OSError:
        return
