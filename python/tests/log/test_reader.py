"""Reading frames at their places."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log import reader
from spark_cec.log.frame import Location, crc32c
from spark_cec.log.reader import read_frame, read_many, verify
from spark_cec.log.scan import Corrupt, Torn
from spark_cec.log.segment import SEGMENTS, segment_path
from spark_cec.log.storage import Storage, reads_at_once
from tests.log.support import (
    SEGMENT,
    CannotAppend,
    Fault,
    FaultyStorage,
    append_commits,
    commit_meta,
    frame_bytes,
    make_writer,
    memory_storage,
    payload_of,
    put_segment,
    segment_bytes,
)


def _log(segment_size: int = 2000, versions: int = 40) -> tuple[Storage, list[Location]]:
    storage = memory_storage()
    return storage, append_commits(make_writer(storage, segment_size), range(1, versions + 1))


@pytest.mark.parametrize("segment_size", [1, 2000, 1 << 20])
def test_frames_come_in_the_order_asked_for(segment_size: int) -> None:
    storage, locations = _log(segment_size)
    order = [*range(40), 3, 3]
    seed = random.randrange(1 << 32)
    random.Random(seed).shuffle(order)
    frames = read_many(storage, [locations[n] for n in order])
    assert [frame.meta for frame in frames] == [commit_meta(n + 1) for n in order], f"seed {seed}"
    assert [bytes(frame.payload) for frame in frames] == [payload_of(n + 1) for n in order], f"seed {seed}"


def test_nothing_is_asked_for() -> None:
    assert read_many(memory_storage(), []) == []


def test_neighbours_are_fetched_together() -> None:
    storage, locations = _log(1 << 20)
    counting = FaultyStorage(storage, Fault(0))
    read_many(counting, locations)
    assert counting.fault.seen == ["read"]


def test_far_places_are_fetched_apart() -> None:
    storage = memory_storage()
    frames = [frame_bytes(commit_meta(v), bytes(300_000)) for v in (1, 2, 3)]
    put_segment(storage, segment_bytes(frames))
    lead = len(segment_bytes([]))
    counting = FaultyStorage(storage, Fault(0))
    places = [Location(SEGMENT, lead + n * len(frames[0]), len(frames[0])) for n in (0, 2)]
    assert [frame.meta for frame in read_many(counting, places)] == [commit_meta(1), commit_meta(3)]
    assert counting.fault.seen == ["read", "read"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, at: data[:at] + b"?" + data[at + 1 :], "no frame begins here"),
        (lambda data, at: data[: at + 40] + b"\xff" + data[at + 41 :], "the meta fails its checksum"),
        (lambda data, at: data[:-5] + b"\xff" + data[-4:], "the payload fails its checksum"),
        (lambda data, at: data[:-1], "are needed"),
        (lambda data, at: data[:at], "0 bytes are there, 32 are needed"),
    ],
)
def test_damage_is_named(change: Any, reason: str) -> None:
    storage, locations = _log(1 << 20, versions=2)
    data = storage.read(segment_path(SEGMENT))
    put_segment(storage, change(data, locations[1].offset))
    assert read_frame(storage, locations[0]).meta == commit_meta(1)
    with pytest.raises(DamagedLog, match=reason) as caught:
        read_frame(storage, locations[1])
    assert (caught.value.segment, caught.value.offset) == (SEGMENT, locations[1].offset)


def test_a_missing_segment_is_damage() -> None:
    storage, locations = _log(versions=1)
    storage.delete(segment_path(SEGMENT))
    with pytest.raises(DamagedLog, match="missing"):
        read_frame(storage, locations[0])


def test_a_newer_frame_is_no_damage() -> None:
    storage, locations = _log(versions=1)
    data = bytearray(storage.read(segment_path(SEGMENT)))
    at = locations[0].offset
    data[at + 8] = 7
    data[at + 28 : at + 32] = crc32c(data[at : at + 28]).to_bytes(4, "little")
    put_segment(storage, bytes(data))
    for read in (lambda: read_frame(storage, locations[0]), lambda: verify(storage)):
        with pytest.raises(NewerFormat, match="format version 7"):
            read()


def test_verify_reads_every_byte_and_writes_none() -> None:
    storage, locations = _log(2000, versions=12)
    data = bytearray(storage.read(segment_path(SEGMENT)))
    data[locations[1].end - 6] ^= 1
    put_segment(storage, bytes(data) + b"\x89CEC")
    readonly = FaultyStorage(storage)
    report = verify(readonly)
    assert not set(readonly.fault.seen) & {"create", "replace", "append_to_new", "append", "delete"}
    first = report.segments[0]
    assert (first.segment, first.size) == (SEGMENT, len(data) + 4)
    assert [type(damage) for damage in report.damages] == [Corrupt, Torn]
    assert report.damages[0] == Corrupt(
        SEGMENT, locations[1].offset, locations[1].length, "the payload fails its checksum"
    )
    assert report.damages[1] == Torn(SEGMENT, len(data), 4)
    assert not report.clean
    assert sum(segment.frames for segment in report.segments) == 12 - 1 + len(report.segments)


def test_a_torn_tail_is_still_clean() -> None:
    storage, _ = _log(versions=1)
    put_segment(storage, storage.read(segment_path(SEGMENT))[:-1])
    report = verify(storage)
    assert report.clean
    assert len(report.damages) == 1


def test_verify_reads_manifests_and_the_logs_own_file() -> None:
    storage, _ = _log(versions=1)
    storage.create("manifests/00000000000000000003.json", b"{}")
    storage.create("log.json", b"not json")
    report = verify(storage)
    assert [error.segment for error in report.files] == ["log.json", "manifests/00000000000000000003.json"]
    assert not report.clean


def test_an_empty_home_verifies() -> None:
    assert verify(memory_storage()).clean


class _Together(CannotAppend):
    """Objects whose reads of segments wait until so many are under way; a read that waits alone fails."""

    def __init__(self, inner: Storage, parties: int) -> None:
        super().__init__(inner)
        self._together = threading.Barrier(parties, timeout=5)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path.startswith(f"{SEGMENTS}/"):
            self._together.wait()
        return super().read(path, offset, length)


def test_objects_are_read_side_by_side_and_reported_in_order() -> None:
    storage, locations = _log(1, versions=3 * reads_at_once(CannotAppend(memory_storage())))
    broken = locations[7]
    data = bytearray(storage.read(segment_path(broken.segment)))
    data[broken.end - 6] ^= 1
    put_segment(storage, bytes(data), broken.segment)
    expected = verify(storage)
    found = verify(_Together(storage, reads_at_once(CannotAppend(storage))))
    assert found == expected and [each.segment for each in found.damages] == [broken.segment]
    assert len(found.segments) == len(locations)


def test_few_segments_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "reads_at_once", lambda _: 2)
    storage, locations = _log(1, versions=40)
    begun: list[str] = []

    class Failing(CannotAppend):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            if path.startswith(f"{SEGMENTS}/"):
                begun.append(path)
                raise OSError(f"{path}: no answer")
            return super().read(path, offset, length)

    with pytest.raises(OSError, match="no answer"):
        verify(Failing(storage))
    assert len(begun) < len(locations) / 2
