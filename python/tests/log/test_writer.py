"""The writer: segments, rolling, and what it does when an append fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import CommitOutcomeUnknown, TransientError
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import Buffer, Frame, FrameKind, Location, SegmentMeta, parse_frame
from spark_cec.log.index import MemoryIndex
from spark_cec.log.reader import read_frame, verify
from spark_cec.log.scan import FoundFrame, scan
from spark_cec.log.segment import LEFT_AFTER_IDLE_MS, SegmentName, list_segments, segment_path
from spark_cec.log.storage import Appender, Storage
from spark_cec.log.writer import SegmentWriter
from tests.log.support import (
    LOG_ID,
    SEGMENT,
    STORE,
    WRITER_ID,
    CannotAppend,
    Fault,
    FaultyAppender,
    FaultyStorage,
    append_commits,
    commit_meta,
    frame_bytes,
    make_writer,
    memory_storage,
    payload_of,
    segment_bytes,
)


def _names(storage: Storage) -> list[str]:
    return [file.name for file in list_segments(storage)]


def _failing(call: int, when: str) -> FaultyStorage:
    return FaultyStorage(memory_storage(), Fault(call, when, error=lambda: OSError("disk on fire")))


def test_a_writer_that_writes_nothing_leaves_nothing() -> None:
    storage = memory_storage()
    make_writer(storage).close()
    assert storage.list("segments") == []


def test_a_segment_is_its_first_frame_and_what_was_appended() -> None:
    storage = memory_storage()
    locations = append_commits(make_writer(storage), [1, 2])
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2)]
    assert storage.read(segment_path(SEGMENT)) == segment_bytes(frames)
    lead = len(segment_bytes([]))
    assert locations == [
        Location(SEGMENT, lead, len(frames[0])),
        Location(SEGMENT, lead + len(frames[0]), len(frames[1])),
    ]


def test_the_first_frame_says_who_writes() -> None:
    storage = memory_storage()
    append_commits(make_writer(storage), [1])
    frame = parse_frame(storage.read(segment_path(SEGMENT)))
    assert isinstance(frame, Frame)
    assert frame.meta == SegmentMeta(LOG_ID, WRITER_ID, 0, 7)


def test_the_returned_header_is_the_one_in_the_log() -> None:
    storage = memory_storage()
    appended = make_writer(storage).append(FrameKind.COMMIT, commit_meta(5), [payload_of(5)[:9], payload_of(5)[9:]])
    frame = read_frame(storage, appended.location)
    assert frame.header == appended.header
    assert (frame.meta, bytes(frame.payload)) == (commit_meta(5), payload_of(5))


def test_encoded_metas_are_taken_as_they_are() -> None:
    storage = memory_storage()
    location = make_writer(storage).append(FrameKind.COMMIT, commit_meta(5).encode() + b"newer").location
    assert read_frame(storage, location).header.meta == commit_meta(5).encode() + b"newer"


def test_segments_are_left_when_full() -> None:
    storage = memory_storage()
    frame = len(frame_bytes(commit_meta(1), payload_of(1)))
    lead = len(segment_bytes([]))
    locations = append_commits(make_writer(storage, segment_bytes=lead + 2 * frame), [1, 2, 3, 4, 5])
    names = [str(SegmentName(WRITER_ID, seq)) for seq in (0, 0, 1, 1, 2)]
    assert [location.segment for location in locations] == names
    assert storage.size(segment_path(SEGMENT)) == lead + 2 * frame


def test_segments_are_left_when_they_have_many_frames() -> None:
    """Small frames would fill a segment over weeks, and only whole segments are trimmed."""
    with mock.patch("spark_cec.log.writer.SEGMENT_FRAMES", 3):
        locations = append_commits(make_writer(memory_storage()), list(range(1, 9)))
    assert [location.segment for location in locations] == [
        str(SegmentName(WRITER_ID, seq)) for seq in (0, 0, 0, 1, 1, 1, 2, 2)
    ]


@pytest.mark.parametrize(
    ("pause_ms", "left"), [(LEFT_AFTER_IDLE_MS - 1, False), (LEFT_AFTER_IDLE_MS, True), (-1, True)]
)
def test_a_segment_that_was_idle_is_left(pause_ms: int, left: bool) -> None:
    """Who trims the log may have taken it for left; -1: the clock was put back."""
    now, storage = [10**12], memory_storage()
    writer = SegmentWriter(storage, LOG_ID, WRITER_ID, lambda: now[0])
    first = append_commits(writer, [1, 2])
    now[0] += pause_ms
    assert (append_commits(writer, [3])[0].segment != first[0].segment) == left
    now[0] += LEFT_AFTER_IDLE_MS // 2
    assert append_commits(writer, [4])[0].segment == append_commits(writer, [5])[0].segment


def test_an_idle_segments_file_is_closed(tmp_path: Path) -> None:
    now = [10**12]
    writer = SegmentWriter(open_storage(str(tmp_path)), LOG_ID, WRITER_ID, lambda: now[0])
    append_commits(writer, [1])

    def is_open() -> bool:
        return any(
            str(tmp_path) in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()
        )

    writer.leave_if_idle()
    assert is_open()
    now[0] += LEFT_AFTER_IDLE_MS
    writer.leave_if_idle()
    assert not is_open()


@pytest.mark.parametrize("can_append", [True, False])
def test_behind_the_last_name_of_a_writer_is_another_writer(can_append: bool) -> None:
    """On an object store each write takes a name: ten a second reach the last one in four months."""
    inner = memory_storage()
    storage = inner if can_append else CannotAppend(inner)
    writer = make_writer(storage, segment_bytes=1)
    writer._next_seq = 10**8 - 1
    before, behind, last = append_commits(writer, [1, 2, 3])
    assert before.segment == str(SegmentName(WRITER_ID, 10**8 - 1))
    names = [SegmentName.parse(each.segment) for each in (behind, last)]
    assert [name and name.seq for name in names] == [0, 1]
    assert all(name and name.writer_id == writer.writer_id != WRITER_ID for name in names)
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    assert [entry.meta.version for entry in catalog.index.commits(STORE, 0, 9)] == [1, 2, 3]
    assert verify(storage).clean


def test_a_frame_larger_than_a_segment_has_one_to_itself() -> None:
    storage = memory_storage()
    locations = append_commits(make_writer(storage, segment_bytes=1), [1, 2])
    assert [location.segment for location in locations] == _names(storage)
    assert verify(storage).clean


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_after_a_failed_append_the_segment_is_never_touched_again(when: str) -> None:
    storage = _failing(call=4, when=when)
    writer = make_writer(storage)
    first = append_commits(writer, [1, 2])
    with pytest.raises(CommitOutcomeUnknown, match="disk on fire"):
        append_commits(writer, [3])
    left = storage.inner.read(segment_path(SEGMENT))
    later = append_commits(writer, [4, 5])
    assert storage.inner.read(segment_path(SEGMENT)) == left
    assert {location.segment for location in later} == {str(SegmentName(WRITER_ID, 1))}
    for version, location in zip((1, 2, 4, 5), [*first, *later], strict=True):
        assert read_frame(storage.inner, location).meta == commit_meta(version)
    assert verify(storage.inner).clean


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_segment_that_cannot_be_begun_is_no_commit(when: str) -> None:
    storage = _failing(call=1, when=when)
    writer = make_writer(storage)
    with pytest.raises(TransientError, match="could not be begun"):
        append_commits(writer, [1])
    (location,) = append_commits(writer, [1])
    assert read_frame(storage.inner, location).meta == commit_meta(1)
    assert location.segment == str(SegmentName(WRITER_ID, 1))


def test_a_name_that_is_taken_is_passed_over() -> None:
    storage = memory_storage()
    storage.create(segment_path(SEGMENT), b"someone else's")
    writer = make_writer(storage)
    with pytest.raises(TransientError):
        append_commits(writer, [1])
    assert append_commits(writer, [1])[0].segment == str(SegmentName(WRITER_ID, 1))
    assert storage.read(segment_path(SEGMENT)) == b"someone else's"


@pytest.mark.parametrize("url", ["memory", "local"])
def test_a_segment_deleted_under_the_writer_is_left(url: str, tmp_path: Path) -> None:
    storage = memory_storage() if url == "memory" else open_storage(str(tmp_path))
    writer = make_writer(storage)
    append_commits(writer, [1])
    storage.delete(segment_path(SEGMENT))
    (location,) = append_commits(writer, [2])
    assert location.segment == str(SegmentName(WRITER_ID, 1))
    assert read_frame(storage, location).meta == commit_meta(2)
    assert _names(storage) == [location.segment]


def test_a_segment_deleted_during_the_append_is_left_too() -> None:
    storage = memory_storage()
    deleted: list[str] = []

    class Deleting(FaultyAppender):
        def __init__(self, inner: Appender, path: str) -> None:
            super().__init__(inner, Fault(0))
            self.path = path

        def append(self, buffers: Sequence[Buffer]) -> None:
            super().append(buffers)
            if not deleted:
                deleted.append(self.path)
                storage.delete(self.path)

    class DeletesOnce(FaultyStorage):
        def append_to_new(self, path: str) -> Appender:
            return Deleting(self.inner.append_to_new(path), path)

    (location,) = append_commits(make_writer(DeletesOnce(storage)), [1])
    assert deleted == [segment_path(SEGMENT)]
    assert read_frame(storage, location).meta == commit_meta(1)


def test_segments_that_keep_vanishing_are_reported() -> None:
    class Vanishing(FaultyStorage):
        def append_to_new(self, path: str) -> Appender:
            appender = self.inner.append_to_new(path)
            self.inner.delete(path)
            return appender

    with pytest.raises(TransientError, match="who deletes them"):
        append_commits(make_writer(Vanishing(memory_storage())), [1])


def test_a_closed_writer_refuses() -> None:
    writer = make_writer(memory_storage())
    append_commits(writer, [1])
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        append_commits(writer, [2])


def test_where_storage_cannot_append_each_frame_is_an_object() -> None:
    storage = CannotAppend(memory_storage())
    locations = append_commits(make_writer(storage), [1, 2, 3])
    assert [location.segment for location in locations] == _names(storage)
    assert storage.read(segment_path(SEGMENT)) == segment_bytes([frame_bytes(commit_meta(1), payload_of(1))])
    for version, location in zip((1, 2, 3), locations, strict=True):
        assert read_frame(storage, location).meta == commit_meta(version)
    assert verify(storage).damages == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_object_that_may_have_been_written_is_an_unknown_outcome(when: str) -> None:
    storage = CannotAppend(memory_storage(), Fault(2, when, error=lambda: OSError("no answer")))
    writer = make_writer(storage)
    append_commits(writer, [1])
    with pytest.raises(CommitOutcomeUnknown, match="no answer"):
        append_commits(writer, [2])
    assert append_commits(writer, [2])[0].segment == str(SegmentName(WRITER_ID, 2))


@pytest.mark.parametrize("segment_size", [1 << 20, 1500])
def test_many_threads_lose_and_mix_nothing(segment_size: int, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    writer = make_writer(storage, segment_size)

    def append(version: int) -> Location:
        return writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)).location

    versions = range(1, 161)
    with ThreadPoolExecutor(8) as pool:
        locations = list(pool.map(append, versions))
    for version, location in zip(versions, locations, strict=True):
        frame = read_frame(storage, location)
        assert (frame.meta, bytes(frame.payload)) == (commit_meta(version), payload_of(version))
    found = [item for name in _names(storage) for item in scan(storage, name, headers_only=False)]
    assert all(isinstance(item, FoundFrame) for item in found)
    assert len(found) == len(versions) + len(_names(storage))
    assert (len(_names(storage)) == 1) == (segment_size == 1 << 20)


class Gate:
    """Holds the first write until the test lets it go, and notes how many bytes each write brings."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.writes: list[int] = []
        self._fail_at = fail_at

    def pass_through(self, size: int) -> None:
        self.writes.append(size)
        if len(self.writes) == 1:
            self.entered.set()
            assert self.open.wait(30)
        if len(self.writes) - 1 == self._fail_at:
            raise OSError("disk on fire")


class GatedAppender(FaultyAppender):
    def __init__(self, inner: Appender, gate: Gate) -> None:
        super().__init__(inner, Fault(0))
        self._gate = gate

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._gate.pass_through(sum(memoryview(buffer).nbytes for buffer in buffers))
        super().append(buffers)


class GatedStorage(FaultyStorage):
    def __init__(self, inner: Storage, gate: Gate, can_append: bool) -> None:
        super().__init__(inner, Fault(0))
        self._gate, self._can_append = gate, can_append

    @property
    def can_append(self) -> bool:
        return self._can_append

    def append_to_new(self, path: str) -> Appender:
        return GatedAppender(self.inner.append_to_new(path), self._gate)

    def create(self, path: str, data: Buffer) -> None:
        self._gate.pass_through(memoryview(data).nbytes)
        self.inner.create(path, data)


def together(writer: SegmentWriter, gate: Gate, versions: Sequence[int]) -> list[Location | Exception]:
    """The first version's append is held until all others wait behind it."""

    def append(version: int) -> Location | Exception:
        try:
            return writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)).location
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(versions)) as pool:
        first = pool.submit(append, versions[0])
        assert gate.entered.wait(30)
        others = [pool.submit(append, version) for version in versions[1:]]
        while len(writer._waiting) < len(others):
            assert not first.done()
        gate.open.set()
        return [future.result(30) for future in [first, *others]]


@pytest.mark.parametrize("can_append", [True, False])
def test_what_waits_goes_with_the_next_write(can_append: bool) -> None:
    gate, storage = Gate(), memory_storage()
    places = together(make_writer(GatedStorage(storage, gate, can_append)), gate, range(1, 9))
    assert len(gate.writes) == 2
    assert len(_names(storage)) == (1 if can_append else 2)
    for version, place in zip(range(1, 9), places, strict=True):
        assert isinstance(place, Location)
        frame = read_frame(storage, place)
        assert (frame.meta, bytes(frame.payload)) == (commit_meta(version), payload_of(version))
    assert verify(storage).clean


@pytest.mark.parametrize("can_append", [True, False])
def test_a_write_of_many_frames_keeps_to_the_size_of_a_segment(can_append: bool) -> None:
    frame, lead = len(frame_bytes(commit_meta(1), payload_of(1))), len(segment_bytes([]))
    gate, storage = Gate(), memory_storage()
    size = lead + 3 * frame + 8
    places = together(make_writer(GatedStorage(storage, gate, can_append), size), gate, range(1, 9))
    assert all(isinstance(place, Location) for place in places)
    assert all(file.size <= size for file in list_segments(storage))
    assert len(_names(storage)) <= 4
    assert verify(storage).clean


@pytest.mark.parametrize("can_append", [True, False])
def test_of_a_failed_write_no_frame_is_taken_for_written(can_append: bool) -> None:
    gate, storage = Gate(fail_at=1), memory_storage()
    writer = make_writer(GatedStorage(storage, gate, can_append))
    first, *others = together(writer, gate, range(1, 6))
    assert isinstance(first, Location)
    assert [type(each) for each in others] == [CommitOutcomeUnknown] * 4
    assert len({id(each) for each in others}) == 4, "each thread has an error of its own"
    assert "disk on fire" in str(others[0])
    (location,) = append_commits(writer, [9])
    assert read_frame(storage, location).meta == commit_meta(9)
    assert verify(storage).clean


def test_what_waits_behind_an_interrupted_write_is_an_unknown_outcome() -> None:
    gate, storage = Gate(), memory_storage()
    gated = GatedStorage(storage, gate, True)
    writer = make_writer(gated)
    interrupted: list[BaseException] = []

    class Interrupting(GatedAppender):
        def append(self, buffers: Sequence[Buffer]) -> None:
            if len(gate.writes) == 1:
                gate.writes.append(0)
                raise KeyboardInterrupt
            super().append(buffers)

    with mock.patch.object(gated, "append_to_new", lambda path: Interrupting(storage.append_to_new(path), gate)):
        outcomes: list[object] = []

        def append(version: int) -> None:
            try:
                outcomes.append(writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)).location)
            except KeyboardInterrupt as error:
                interrupted.append(error)
            except CommitOutcomeUnknown as error:
                outcomes.append(error)

        threads = [threading.Thread(target=append, args=(version,)) for version in range(1, 6)]
        threads[0].start()
        assert gate.entered.wait(30)
        for thread in threads[1:]:
            thread.start()
        while len(writer._waiting) < 4:
            assert threads[0].is_alive()
        gate.open.set()
        for thread in threads:
            thread.join(30)
    assert len(interrupted) == 1
    assert sorted(type(each).__name__ for each in outcomes) == ["CommitOutcomeUnknown"] * 3 + ["Location"]
