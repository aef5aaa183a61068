"""The catalog: the index always says what a scan of the whole log would say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_cec.adapters.rocksdict_index import RocksDictIndex, open_index
from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind, Location, Meta, encode_frame
from spark_cec.log.index import BrokenIndexError, Covered, Index, MemoryIndex
from spark_cec.log.repair import repair
from spark_cec.log.scan import Corrupt, Torn
from spark_cec.log.segment import list_segments, segment_path
from spark_cec.log.storage import Storage
from tests.log.support import (
    LOG_ID,
    SEGMENT,
    STORE,
    CannotAppend,
    Fault,
    FaultyStorage,
    OldSizes,
    Trouble,
    append_commits,
    checkpoint_id,
    commit_meta,
    frame_bytes,
    loaded_meta,
    make_writer,
    memory_storage,
    output_meta,
    payload_of,
    put_segment,
    segment_bytes,
)

WRITERS = [f"0198c0ffee0{n}-00112233445566ff" for n in range(3)]


def _fresh(storage: Storage) -> Catalog:
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    return catalog


def _everything(index: Index) -> dict[str, Any]:
    return {segment: (covered, index.entries(segment)) for segment, covered in index.covered().items()}


def _versions(catalog: Catalog) -> list[int]:
    return [entry.meta.version for entry in catalog.index.commits(STORE, 0, 1 << 40)]


def test_what_is_noted_is_what_a_scan_finds() -> None:
    storage = memory_storage()
    writer = make_writer(storage, 2000)
    catalog = _fresh(storage)
    for version in range(1, 30):
        catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)))
        catalog.note(*writer.append(FrameKind.OUTPUT, output_meta(version), b"rows"))
        catalog.note(*writer.append(FrameKind.LOADED, loaded_meta(version=version), b"{}"))
    scanned = _fresh(storage)
    assert catalog.index.covered() == scanned.index.covered()
    assert catalog.index.commits(STORE, 0, 100) == scanned.index.commits(STORE, 0, 100)
    catalog.refresh()
    assert catalog.index.covered() == scanned.index.covered()


def test_notes_in_any_order_cover_without_a_gap() -> None:
    storage = memory_storage()
    writer = make_writer(storage)
    appended = [writer.append(FrameKind.COMMIT, commit_meta(v), payload_of(v)) for v in range(1, 6)]
    catalog = _fresh(memory_storage())
    for number in (3, 1, 0):
        catalog.note(*appended[number])
    assert catalog.index.covered()[SEGMENT].end == appended[1].location.end
    assert _versions(catalog) == [1, 2, 4]
    for number in (4, 2):
        catalog.note(*appended[number])
    assert catalog.index.covered() == _fresh(storage).index.covered()
    assert _versions(catalog) == [1, 2, 3, 4, 5]


def test_a_note_after_a_scan_changes_nothing() -> None:
    storage = memory_storage()
    writer = make_writer(storage)
    appended = [writer.append(FrameKind.COMMIT, commit_meta(v), payload_of(v)) for v in (1, 2)]
    catalog = _fresh(storage)
    before = _everything(catalog.index)
    for each in appended:
        catalog.note(*each)
    assert _everything(catalog.index) == before
    catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(3), payload_of(3)))
    assert _everything(catalog.index) == _everything(_fresh(storage).index)


def test_old_sizes_of_a_listing_lose_nothing_that_is_known() -> None:
    storage = OldSizes(memory_storage())
    writer = make_writer(storage)
    append_commits(writer, [1])
    catalog = _fresh(storage)
    append_commits(writer, [2, 3])
    for asks_sizes, known in ((False, [1]), (True, [1, 2, 3]), (False, [1, 2, 3])):
        catalog.refresh(asks_sizes=asks_sizes)
        assert _versions(catalog) == known
    assert not catalog.damages


@pytest.mark.parametrize("lacks", [True, False])
@pytest.mark.parametrize("can_append", [True, False])
def test_only_before_a_frame_counts_as_missing_are_sizes_asked(can_append: bool, lacks: bool) -> None:
    inner = memory_storage()
    append_commits(make_writer(inner, 1), range(1, 11))
    storage = FaultyStorage(inner, Fault(0)) if can_append else CannotAppend(inner, Fault(0))
    catalog, asked = _fresh(storage), list[int]()
    storage.fault.seen.clear()

    def ask() -> int:
        asked.append(1)
        if lacks:
            raise DamagedLog("a store", -1, "no frame")
        return 7

    if lacks:
        with pytest.raises(DamagedLog):
            catalog.ask_twice(ask)
    else:
        assert catalog.ask_twice(ask) == 7
    looks = 1 if can_append and lacks else 0
    assert len(asked) == 1 + looks
    assert sorted(storage.fault.seen) == ["list"] * looks + ["size"] * 10 * looks


def test_nothing_new_is_one_listing() -> None:
    storage = FaultyStorage(memory_storage(), Fault(0))
    append_commits(make_writer(storage, 1), range(1, 101))
    catalog = _fresh(storage)
    assert len(catalog.index.covered()) == 100
    storage.fault.seen.clear()
    catalog.refresh()
    assert storage.fault.seen == ["list"]


def test_only_what_is_new_is_read() -> None:
    storage = FaultyStorage(memory_storage(), Fault(0))
    append_commits(make_writer(storage, 1, WRITERS[0]), range(1, 21))
    writer = make_writer(storage, writer_id=WRITERS[1])
    append_commits(writer, [21])
    catalog = _fresh(storage)
    append_commits(writer, [22])
    storage.fault.seen.clear()
    catalog.refresh()
    assert _versions(catalog) == list(range(1, 23))
    assert storage.fault.seen.count("read") <= 2


def test_a_torn_tail_is_looked_at_again_when_it_has_grown() -> None:
    storage = FaultyStorage(memory_storage(), Fault(0))
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2)]
    whole = segment_bytes(frames)
    put_segment(storage, whole[:-5])
    catalog = _fresh(storage)
    torn = Torn(SEGMENT, len(whole) - len(frames[1]), len(frames[1]) - 5)
    assert catalog.damages == (torn,)
    assert catalog.index.covered()[SEGMENT].end == torn.offset
    storage.fault.seen.clear()
    catalog.refresh()
    assert storage.fault.seen == ["list"]
    assert catalog.damages == (torn,)
    put_segment(storage, whole)
    catalog.refresh()
    assert list(catalog.damages) == []
    assert _versions(catalog) == [1, 2]


def test_bytes_that_come_after_the_size_are_found() -> None:
    """A client of a shared file system may see zeros at the end of a segment, with the size that it will keep."""
    storage, now = FaultyStorage(memory_storage(), Fault(0)), [0.0]
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2)]
    whole = segment_bytes(frames)
    put_segment(storage, whole[: -len(frames[1])] + bytes(len(frames[1])))
    catalog = Catalog(storage, MemoryIndex(LOG_ID), lambda: now[0])
    catalog.refresh()
    assert _versions(catalog) == [1]
    put_segment(storage, whole)
    now[0] = 1.0
    catalog.refresh()
    assert _versions(catalog) == [1, 2] and catalog.damages == ()


def test_a_tail_that_stays_torn_is_scanned_a_few_times_only() -> None:
    storage, now = FaultyStorage(memory_storage(), Fault(0)), [0.0]
    put_segment(storage, segment_bytes([frame_bytes(commit_meta(1), payload_of(1))])[:-5])
    catalog = Catalog(storage, MemoryIndex(LOG_ID), lambda: now[0])
    for _ in range(6000):
        catalog.refresh()
        now[0] += 0.1
    assert 5 <= storage.fault.seen.count("read") - 2 <= 24, "about ten scans, in the first minutes"


def test_another_process_looks_at_a_torn_tail_too(tmp_path: Path) -> None:
    storage = memory_storage()
    whole = segment_bytes([frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2)])
    put_segment(storage, whole[:-5])
    for data, expected in ((whole[:-5], [1]), (whole, [1, 2])):
        put_segment(storage, data)
        catalog = Catalog(storage, open_index(str(tmp_path / "index"), LOG_ID))
        catalog.refresh()
        assert _versions(catalog) == expected
        catalog.index.close()


def test_corrupt_bytes_are_named_and_passed() -> None:
    storage = memory_storage()
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2, 3)]
    data = bytearray(segment_bytes(frames))
    at = len(data) - 2 * len(frames[2])
    data[at] ^= 1
    put_segment(storage, bytes(data))
    catalog = _fresh(storage)
    assert _versions(catalog) == [1, 3]
    assert catalog.damages == (Corrupt(SEGMENT, at, len(frames[1]), "no frame begins here"),)
    assert catalog.index.covered()[SEGMENT].end == len(data)


def test_a_frame_that_is_missing_gets_the_places_of_damage_that_was_met() -> None:
    storage = memory_storage()
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2, 3)]
    data = bytearray(segment_bytes(frames))
    at = len(data) - 2 * len(frames[2])
    data[at] ^= 1
    put_segment(storage, bytes(data))
    catalog = _fresh(storage)
    with (
        pytest.raises(DamagedLog, match=f"the frame is lost; damaged bytes are in {SEGMENT} at byte {at};"),
        catalog.naming_places(),
    ):
        raise DamagedLog("store 0/0/default", -1, "the frame is lost")
    with pytest.raises(DamagedLog, match="elsewhere at byte 7: bad;"), catalog.naming_places():
        raise DamagedLog("elsewhere", 7, "bad")


def test_a_meta_that_is_too_short_is_damage() -> None:
    storage = memory_storage()
    short = b"".join(encode_frame(FrameKind.COMMIT, b"short", b""))
    put_segment(storage, segment_bytes([short, frame_bytes(commit_meta(1))]))
    catalog = _fresh(storage)
    assert _versions(catalog) == [1]
    assert [damage.bytes_lost for damage in catalog.damages] == [len(short)]


def test_segments_that_vanish_are_forgotten() -> None:
    storage = memory_storage()
    append_commits(make_writer(storage, 1), [1, 2, 3])
    catalog = _fresh(storage)
    storage.delete(segment_path(list_segments(storage)[1].name))
    catalog.refresh()
    assert _versions(catalog) == [1, 3]


def test_a_segment_that_vanishes_between_listing_and_scan() -> None:
    class Vanishing(FaultyStorage):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            if path.endswith("00000001.cec"):
                self.inner.delete(path)
            return self.inner.read(path, offset, length)

    storage = Vanishing(memory_storage())
    append_commits(make_writer(storage, 1), [1, 2, 3])
    assert _versions(_fresh(storage)) == [1, 3]


def test_a_look_that_ends_half_way_leaves_what_it_has_read(tmp_path: Path) -> None:
    """A log may be so large that an agent is killed before it has read all: the next one goes on from there."""

    class Slow(FaultyStorage):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            if path.endswith("00000002.cec"):
                raise TimeoutError("the agent was killed")
            return self.inner.read(path, offset, length)

    storage = memory_storage()
    append_commits(make_writer(storage, 1), [1, 2, 3, 4])
    catalog = Catalog(Slow(storage), open_index(str(tmp_path / "index"), LOG_ID))
    with pytest.raises(TimeoutError):
        catalog.refresh()
    catalog.close()
    index = open_index(str(tmp_path / "index"), LOG_ID)
    assert [entry.meta.version for entry in index.commits(STORE, 0, 9)] == [1, 2]
    again = Catalog(storage, index)
    again.refresh()
    assert _versions(again) == [1, 2, 3, 4]
    again.close()


def test_damage_of_vanished_segments_is_forgotten() -> None:
    storage = memory_storage()
    put_segment(storage, b"rubbish")
    catalog = _fresh(storage)
    assert len(catalog.damages) == 1
    storage.delete(segment_path(SEGMENT))
    catalog.refresh()
    assert list(catalog.damages) == []


def test_a_segment_of_another_log_is_not_taken_in() -> None:
    storage = memory_storage()
    append_commits(make_writer(storage), [1])
    catalog = Catalog(storage, MemoryIndex("ff" * 16))
    catalog.refresh()
    assert catalog.index.stores() == []
    assert "belongs to log" in str(catalog.damages[0])


def test_a_newer_frame_is_an_error() -> None:
    storage = memory_storage()
    frame = bytearray(frame_bytes(commit_meta(1)))
    frame[10] = 77
    from spark_cec.log.frame import crc32c

    frame[28:32] = crc32c(frame[:28]).to_bytes(4, "little")
    put_segment(storage, segment_bytes([bytes(frame)]))
    with pytest.raises(NewerFormat, match="kind 77"):
        _fresh(storage)


def _index_of_another_log(storage: Storage, index: Index) -> None:
    index.apply(SEGMENT, [(commit_meta(77), Location(SEGMENT, 0, 10))], Covered(10, 0, 12345))


def _index_that_covers_too_much(storage: Storage, index: Index) -> None:
    (segment,) = [file for file in list_segments(storage) if file.name == SEGMENT]
    index.apply(SEGMENT, [], Covered(segment.size + 1, segment.size - 5, 1))


def _index_with_a_wrong_checksum(storage: Storage, index: Index) -> None:
    known = index.covered()[SEGMENT]
    index.apply(SEGMENT, [], Covered(known.end, known.last_offset, known.last_crc ^ 1))


def _index_pointing_into_a_payload(storage: Storage, index: Index) -> None:
    known = index.covered()[SEGMENT]
    index.apply(SEGMENT, [], Covered(known.end, known.last_offset + 40, known.last_crc))


def _rewritten_segment(storage: Storage, index: Index) -> None:
    frames = [frame_bytes(commit_meta(v), payload_of(v)) for v in (1, 2, 9)]
    put_segment(storage, segment_bytes(frames))


def _repaired_segment(storage: Storage, index: Index) -> None:
    data = bytearray(storage.read(segment_path(SEGMENT)))
    data[len(segment_bytes([])) + 3] ^= 1
    put_segment(storage, bytes(data))
    assert repair(storage, dry_run=False).removed


def _shorter_segment(storage: Storage, index: Index) -> None:
    data = storage.read(segment_path(SEGMENT))
    put_segment(storage, data[: -len(frame_bytes(commit_meta(3), payload_of(3)))])


@pytest.mark.parametrize(
    "lie",
    [
        _index_of_another_log,
        _index_that_covers_too_much,
        _index_with_a_wrong_checksum,
        _index_pointing_into_a_payload,
        _rewritten_segment,
        _repaired_segment,
        _shorter_segment,
    ],
)
def test_a_stale_or_lying_index_is_filled_anew(lie: Callable[[Storage, Index], None], tmp_path: Path) -> None:
    storage = memory_storage()
    append_commits(make_writer(storage), [1, 2, 3])
    append_commits(make_writer(storage, writer_id=WRITERS[1]), [4])
    first = Catalog(storage, open_index(str(tmp_path / "index"), LOG_ID))
    first.refresh()
    lie(storage, first.index)
    first.index.close()
    catalog = Catalog(storage, open_index(str(tmp_path / "index"), LOG_ID))
    catalog.refresh()
    assert _everything(catalog.index) == _everything(_fresh(storage).index)
    catalog.index.close()


@pytest.mark.parametrize("broken", ["covered", "apply", "forget"])
def test_an_index_that_breaks_is_replaced(broken: str) -> None:
    class Breaking(MemoryIndex):
        armed = False

        def covered(self) -> Any:
            self._trip("covered")
            return super().covered()

        def apply(self, segment: str, entries: Sequence[tuple[Meta, Location]], covered: Covered | None) -> None:
            self._trip("apply")
            super().apply(segment, entries, covered)

        def forget(self, segment: str) -> None:
            self._trip("forget")
            super().forget(segment)

        def _trip(self, name: str) -> None:
            if self.armed and name == broken:
                raise BrokenIndexError("rotten block")

    storage = memory_storage()
    append_commits(make_writer(storage, 1), [1, 2])
    index = Breaking(LOG_ID)
    catalog = Catalog(storage, index)
    catalog.refresh()
    index.armed = True
    storage.delete(segment_path(SEGMENT))
    writer = make_writer(storage, writer_id=WRITERS[1])
    appended = writer.append(FrameKind.COMMIT, commit_meta(3), payload_of(3))
    if broken == "apply":
        catalog.note(*appended)
    catalog.refresh()
    assert _versions(catalog) == [2, 3]
    assert catalog._index is not index


QUESTIONS: dict[str, Callable[[Index], Any]] = {
    "stores": lambda index: index.stores(),
    "frames": lambda index: index.frames(STORE, 0, 9),
    "commits": lambda index: index.commits(STORE, 0, 9),
    "commit": lambda index: index.commit(STORE, 2, checkpoint_id(2)),
    "flush": lambda index: index.flush(STORE, 2, checkpoint_id(2)),
    "newest": lambda index: index.newest(STORE, 9),
    "output": lambda index: index.output(bytes(16)),
    "outputs": lambda index: index.outputs(0),
    "loaded": lambda index: index.loaded(1),
    "at": lambda index: index.at(0),
    "entries": lambda index: index.entries(SEGMENT),
    "covered": lambda index: index.covered(),
    "covered_of": lambda index: [index.covered_of(segment) for segment in index.covered()],
}


class _Rotten(MemoryIndex):
    """Raises in each question once it is armed."""

    is_armed = False

    def __getattribute__(self, name: str) -> Any:
        if name in QUESTIONS and object.__getattribute__(self, "is_armed"):
            raise BrokenIndexError("rotten block")
        return object.__getattribute__(self, name)


def _catalog_of(index: Index) -> tuple[FaultyStorage, Catalog]:
    """A log with two commits, and its catalog with this index."""
    storage = FaultyStorage(memory_storage())
    append_commits(make_writer(storage, 1), [1, 2])
    catalog = Catalog(storage, index)
    catalog.refresh()
    return storage, catalog


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_finds_the_index_broken_is_asked_again(question: str) -> None:
    index = _Rotten(LOG_ID)
    storage, catalog = _catalog_of(index)
    index.is_armed = True
    assert QUESTIONS[question](catalog.index) == QUESTIONS[question](_fresh(storage).index)


def test_an_index_that_could_not_be_filled_gives_no_part_of_an_answer() -> None:
    index = _Rotten(LOG_ID)
    storage, catalog = _catalog_of(index)
    index.is_armed, storage.fault = True, Trouble(call=1, lasts=2, only=["list"], error=OSError)
    for _ in range(2):
        with pytest.raises(OSError):
            catalog.index.newest(STORE, 9)
    assert _versions(catalog) == [1, 2]


def test_a_rotten_index_on_disk_is_gone_for_the_next_process(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    index = open_index(path, LOG_ID)
    assert isinstance(index, RocksDictIndex)
    _, catalog = _catalog_of(index)
    for key in [key for key, _ in index._rows.items() if key.startswith(b"f")]:
        index._rows[key] = b"\x02short"
    assert _versions(catalog) == [1, 2]
    catalog.close()
    again = open_index(path, LOG_ID)
    assert isinstance(again, RocksDictIndex)
    assert again.covered() == {}
    again.close()


def test_a_closed_catalog_does_not_fill_an_index_anew(tmp_path: Path) -> None:
    _, catalog = _catalog_of(open_index(str(tmp_path / "index"), LOG_ID))
    catalog.close()
    with pytest.raises(BrokenIndexError):
        catalog.index.newest(STORE, 9)
    catalog.refresh()  # as does a call that still runs
    again = open_index(str(tmp_path / "index"), LOG_ID)
    assert isinstance(again, RocksDictIndex)
    assert again.covered(), "its files stay"
    again.close()


def test_where_storage_cannot_append() -> None:
    storage = CannotAppend(memory_storage())
    catalog = _fresh(storage)
    writer = make_writer(storage)
    for version in range(1, 6):
        catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)))
    assert _everything(_fresh(storage).index).keys() == _everything(catalog.index).keys()
    assert catalog.index.covered() == _fresh(storage).index.covered()


class CatalogMachine(RuleBasedStateMachine):
    """Writers append, tails tear, segments go; two catalogs follow in their own time and must agree with the log."""

    @initialize()
    def begin(self) -> None:
        self.storage = memory_storage()
        self.writers = [make_writer(self.storage, 1500, writer_id) for writer_id in WRITERS]
        self.own, self.other = (Catalog(self.storage, MemoryIndex(LOG_ID)) for _ in range(2))
        self.version = 0

    @rule(writer=st.integers(0, 2), noted=st.booleans())
    def append(self, writer: int, noted: bool) -> None:
        self.version += 1
        meta = commit_meta(self.version)
        appended = self.writers[writer].append(FrameKind.COMMIT, meta, payload_of(self.version))
        if noted and writer == 0:
            self.own.note(*appended)

    @rule(number=st.integers(0, 10))
    @precondition(lambda self: bool(list_segments(self.storage)))
    def delete(self, number: int) -> None:
        files = list_segments(self.storage)
        self.storage.delete(segment_path(files[number % len(files)].name))

    @rule(lost=st.integers(1, 400))
    def tear(self, lost: int) -> None:
        closed = [f for f in list_segments(self.storage) if not f.name.startswith(WRITERS[0]) and f.size > lost]
        if closed:
            path = segment_path(closed[0].name)
            self.storage.replace(path, self.storage.read(path)[:-lost])

    @rule()
    def refresh_the_other(self) -> None:
        self.other.refresh()

    @invariant()
    def both_agree_with_the_log_once_refreshed(self) -> None:
        if not hasattr(self, "storage"):
            return
        expected = _fresh(self.storage)
        self.own.refresh()
        assert _versions(self.own) == _versions(expected)
        assert self.own.index.covered().keys() >= expected.index.covered().keys()

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.other.refresh()
            assert _versions(self.other) == _versions(_fresh(self.storage))


TestCatalogMachine = CatalogMachine.TestCase
TestCatalogMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
