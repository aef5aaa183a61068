"""Repair: what is sound stays, what is not is kept aside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.errors import NewerFormat, TransientError
from spark_cec.log import repair as repair_module
from spark_cec.log.frame import Buffer, crc32c
from spark_cec.log.reader import verify
from spark_cec.log.repair import BROKEN, RepairReport, repair
from spark_cec.log.scan import FoundFrame, scan
from spark_cec.log.segment import segment_path
from spark_cec.log.storage import Storage
from tests.log.support import (
    SEGMENT,
    Crash,
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

FRAMES = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2, 3, 4)]
WHOLE = segment_bytes(FRAMES)
LEAD = len(segment_bytes([]))
CLEAN_WRITER = "0198c0ffee05-00112233445566ff"


def _damaged() -> bytes:
    """The second frame's payload and the fourth's header are broken, and there is a torn tail."""
    data = bytearray(WHOLE)
    data[LEAD + len(FRAMES[0]) + len(FRAMES[1]) - 6] ^= 1
    data[len(WHOLE) - len(FRAMES[3]) + 2] ^= 1
    return bytes(data)


def _log() -> Storage:
    storage = memory_storage()
    append_commits(make_writer(storage, writer_id=CLEAN_WRITER), [9])
    put_segment(storage, _damaged())
    return storage


def _files(storage: Storage) -> dict[str, bytes]:
    found = {}
    for directory in ("segments", BROKEN):
        for file in storage.list(directory):
            found[f"{directory}/{file.name}"] = storage.read(f"{directory}/{file.name}")
    return found


def test_a_dry_run_tells_and_writes_nothing() -> None:
    storage = _log()
    before = _files(storage)
    readonly = FaultyStorage(storage)
    report = repair(readonly, dry_run=True)
    assert _files(storage) == before
    assert not set(readonly.fault.seen) & {"create", "replace", "append_to_new", "delete"}
    assert report.dry_run
    assert report.bytes_removed == len(FRAMES[1]) + len(FRAMES[3])
    assert [removed.damage for removed in report.removed] == list(verify(storage).damages)
    assert [removed.kept_as for removed in report.removed] == [
        f"{BROKEN}/{SEGMENT}-{LEAD + len(FRAMES[0])}",
        f"{BROKEN}/{SEGMENT}-{len(WHOLE) - len(FRAMES[3])}",
    ]


def test_sound_frames_stay_and_damaged_bytes_are_kept() -> None:
    storage = _log()
    planned = repair(storage, dry_run=True)
    report = repair(storage, dry_run=False)
    assert report == RepairReport(False, planned.removed)
    assert storage.read(segment_path(SEGMENT)) == segment_bytes([FRAMES[0], FRAMES[2]])
    for removed in report.removed:
        at = removed.damage.offset
        assert storage.read(removed.kept_as) == _damaged()[at : at + removed.damage.bytes_lost]
    assert verify(storage).damages == ()
    assert repair(storage, dry_run=False).removed == ()


def test_a_sound_segment_is_not_written() -> None:
    storage = _log()
    watched = FaultyStorage(storage)
    repair(watched, dry_run=False)
    assert watched.fault.seen.count("replace") == 1


def test_a_torn_tail_goes_too() -> None:
    storage = memory_storage()
    put_segment(storage, WHOLE + WHOLE[:50])
    report = repair(storage, dry_run=False)
    assert storage.read(segment_path(SEGMENT)) == WHOLE
    assert storage.read(report.removed[0].kept_as) == WHOLE[:50]


def test_a_segment_without_a_sound_byte_becomes_empty() -> None:
    storage = memory_storage()
    put_segment(storage, b"rubbish")
    assert repair(storage, dry_run=False).bytes_removed == 7
    assert storage.read(segment_path(SEGMENT)) == b""
    assert verify(storage).clean


def test_bytes_of_an_earlier_repair_are_not_overwritten() -> None:
    storage = memory_storage()
    for rubbish in (b"first", b"second"):
        put_segment(storage, WHOLE + rubbish)
        repair(storage, dry_run=False)
    place = f"{BROKEN}/{SEGMENT}-{len(WHOLE)}"
    assert (storage.read(place), storage.read(f"{place}.1")) == (b"first", b"second")


def test_a_segment_that_grows_meanwhile_is_left_alone() -> None:
    class Growing(FaultyStorage):
        def create(self, path: str, data: Buffer) -> None:
            self.inner.create(path, data)
            put_segment(self.inner, _damaged() + FRAMES[0])

    storage = Growing(_log())
    with pytest.raises(TransientError, match="stop the query"):
        repair(storage, dry_run=False)
    assert storage.inner.read(segment_path(SEGMENT)) == _damaged() + FRAMES[0]


def test_a_newer_frame_stops_a_repair_before_it_begins() -> None:
    newer = bytearray(FRAMES[1])
    newer[8] = 2
    newer[28:32] = crc32c(newer[:28]).to_bytes(4, "little")
    storage = memory_storage()
    put_segment(storage, b"rubbish" + segment_bytes([FRAMES[0], bytes(newer)]))
    before = _files(storage)
    with pytest.raises(NewerFormat):
        repair(storage, dry_run=False)
    assert _files(storage) == before


def _calls() -> int:
    storage = FaultyStorage(_log())
    repair(storage, dry_run=False)
    return storage.fault.calls


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("call", range(1, _calls() + 1))
def test_a_crash_loses_no_byte_and_the_next_repair_ends_it(call: int, when: str) -> None:
    storage = _log()
    before = _files(storage)
    with pytest.raises(Crash):
        repair(FaultyStorage(storage, Fault(call, when)), dry_run=False)
    now = _files(storage)
    assert now[segment_path(SEGMENT)] in (_damaged(), segment_bytes([FRAMES[0], FRAMES[2]]))
    assert {name: data for name, data in now.items() if CLEAN_WRITER in name} == {
        name: data for name, data in before.items() if CLEAN_WRITER in name
    }
    repair(storage, dry_run=False)
    undisturbed = _log()
    repair(undisturbed, dry_run=False)
    assert _files(storage) == _files(undisturbed)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_after_any_damage_exactly_the_sound_frames_are_left(changes: list[tuple[int, int]]) -> None:
    storage = memory_storage()
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] ^= value
    put_segment(storage, bytes(data))
    found = [item.location for item in scan(storage, SEGMENT, headers_only=False) if isinstance(item, FoundFrame)]
    report = repair(storage, dry_run=False)
    assert storage.read(segment_path(SEGMENT)) == b"".join(data[at.offset : at.end] for at in found)
    assert report.bytes_removed + storage.size(segment_path(SEGMENT)) == len(WHOLE)
    assert verify(storage).damages == ()


def test_only_repair_knows_where_broken_bytes_go() -> None:
    assert repair_module.BROKEN == "broken"
