"""Appending to the log (`FORMAT.md`, section 6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spark_cec.errors import CommitOutcomeUnknown, TransientError
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
    Location,
    SegmentName,
    encode_segment_frame,
    segment_path,
)
from spark_cec.log.storage import Appender, Storage

_LOST_SEGMENTS = 3

_LARGEST_TOGETHER = 1 << 20
"""Bytes of frames that share an object: an object goes only when none of its frames is needed."""


class Appended(NamedTuple):
    """A durable frame: its header, as an index wants it, and its place."""

    header: FrameHeader
    location: Location


class _Frame:
    """An encoded frame that waits for its place, and then has it, or what went wrong."""

    __slots__ = ("buffers", "error", "length", "location")

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.length = _bytes(buffers)
        self.location: Location | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.location is not None or self.error is not None

    def place(self) -> Location:
        """Raises an error of its own: several threads may wait for frames that one write was to bring."""
        if self.location is None:
            assert self.error is not None
            raise type(self.error)(*self.error.args) from self.error
        return self.location


class SegmentWriter:
    """Appends frames to segments of its own; safe for use by several threads.

    Frames that wait while another one is written go together with the next write, and wait for the disk once.

    A segment is begun with its first frame and left when it has `segment_bytes` or `SEGMENT_FRAMES`, when nothing was
    appended to it for `LEFT_AFTER_IDLE_MS`, or when an append to it failed. Where the storage cannot append, each write
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
        """Append one frame; it is durable on return.

        Errors: `TransientError` if nothing was written; `CommitOutcomeUnknown` if the frame may be in the log or not.
        """
        encoded = meta if isinstance(meta, bytes) else meta.encode()
        frame = _Frame(encode_frame(kind, encoded, payload, flags))
        header = make_header(kind, encoded, frame.length - PRELUDE_LENGTH - len(encoded) - TRAILER_LENGTH, flags)
        with self._turn:
            self._waiting.append(frame)
            while self._writing and not frame.is_done:
                self._turn.wait()
            leads = not frame.is_done
            self._writing = self._writing or leads
        if leads:
            try:
                with self._lock:
                    self._write_what_waits()
            finally:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()
        return Appended(header, frame.place())

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

    def _write_what_waits(self) -> None:
        """The frame of this thread, and those of all that have come since the last write."""
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
        """Write as many of the first frames as go into one segment, at least one; how many have their outcome now."""
        try:
            if self._closed:
                raise ValueError(f"writer {self.writer_id} is closed: open the log again")
            if not self._storage.can_append:
                most_bytes = min(self._segment_bytes, _LARGEST_TOGETHER)
                return self._create(frames[: _fitting(frames, most_bytes, SEGMENT_FRAMES)])
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
        """How many frames are in their places: 0 if the segment was deleted meanwhile, so that they are nowhere."""
        now_ms = self._clock()
        if self._open is not None and self._is_over(frames[0].length, now_ms):
            self._leave()
        if self._open is None:
            name, appender, lead = self._begin()
        else:
            (name, appender), lead = self._open, []
        offset = self._end + _bytes(lead)
        together = frames[: _fitting(frames, self._segment_bytes - offset, SEGMENT_FRAMES - self._frames)]
        # Until it has worked, the append counts as failed, whatever may end it.
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
        self._open, self._end = (name, appender), _placed(together, str(name), offset)
        self._frames, self._appended_ms = self._frames + len(together), now_ms
        return len(together)

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

    def _create(self, frames: list[_Frame]) -> int:
        name = self._take_name()
        lead = encode_segment_frame(self._log_id, name, self._clock())
        data = b"".join([*lead, *(buffer for frame in frames for buffer in frame.buffers)])
        try:
            self._storage.create(segment_path(str(name)), data)
        except Exception as error:
            raise _Failed(CommitOutcomeUnknown(f"creation of {name} failed: {error}"), frames) from error
        _placed(frames, str(name), _bytes(lead))
        return len(frames)

    def _take_name(self) -> SegmentName:
        name = SegmentName(self.writer_id, self._next_seq)
        self._next_seq += 1
        return name

    def _leave(self) -> None:
        if self._open is not None:
            _close_quietly(self._open[1])
        self._open = None


class _Failed(Exception):
    """A write of several frames has failed: none of them may be taken for written, or for not written."""

    def __init__(self, error: Exception, frames: list[_Frame]) -> None:
        super().__init__(str(error))
        self.error = error
        self.frames = frames


def _bytes(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _fitting(frames: Sequence[_Frame], room: int, most: int) -> int:
    """How many of the first frames fit into so many bytes, at least one and at most `most`."""
    count = 1
    left = room - frames[0].length
    while count < min(len(frames), most) and frames[count].length <= left:
        left -= frames[count].length
        count += 1
    return count


def _placed(frames: Iterable[_Frame], segment: str, offset: int) -> int:
    """Gives the frames their places, one behind the other; the end of the last one."""
    for frame in frames:
        frame.location = Location(segment, offset, frame.length)
        offset += frame.length
    return offset


def _close_quietly(appender: Appender) -> None:
    """What was appended is durable already, so nothing can be lost here."""
    try:
        appender.close()
    except OSError:
        return
