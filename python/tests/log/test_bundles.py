"""Bundles: what they hide, what they show, and how they are made."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.ids import new_writer_id
from spark_cec.log import bundles, recent_objects
from spark_cec.log.bundles import BUNDLE_VERSION, Bundles, Duplicate, encode_bundle, read_directory
from spark_cec.log.bundling import (
    LARGEST_BUNDLE_BYTES,
    LARGEST_SEGMENT_BYTES,
    MOST_AT_ONCE,
    bundle_segments,
    choose_segments,
    choose_settled,
    delete_copied,
)
from spark_cec.log.catalog import Catalog
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import FrameKind, encode_frame
from spark_cec.log.home import join_log, read_log_id, restore_log
from spark_cec.log.index import Covered, MemoryIndex
from spark_cec.log.reader import read_many, verify
from spark_cec.log.recent_objects import RecentObjects
from spark_cec.log.repair import repair
from spark_cec.log.scan import Corrupt
from spark_cec.log.segment import SEGMENTS, SegmentName, bundle_name, is_bundle, list_segments, segment_path
from spark_cec.log.storage import Storage
from spark_cec.log.trim import TrimHorizon, trim
from tests.log.storage_contract import StorageContract
from tests.log.support import (
    LOG_ID,
    STORE,
    WRITER_ID,
    CannotAppend,
    commit_meta,
    frame_bytes,
    memory_storage,
    payload_of,
    put_segment,
    segment_bytes,
)


class TestBundles(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Bundles(memory_storage())


class TestBundlesOfObjects(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Bundles(RecentObjects(CannotAppend(memory_storage())))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _name(seq: int) -> str:
    return str(SegmentName(WRITER_ID, seq))


def _segment(seq: int) -> bytes:
    """A segment with one commit, of version `seq + 1`."""
    return segment_bytes([frame_bytes(commit_meta(seq + 1), payload_of(seq + 1))], SegmentName(WRITER_ID, seq))


def _put(storage: Storage, *numbers: int) -> list[str]:
    for seq in numbers:
        storage.create(segment_path(_name(seq)), _segment(seq))
    return [_name(seq) for seq in numbers]


def _log(segments: int) -> Storage:
    """A log with so many segments."""
    raw = memory_storage()
    join_log(raw, LOG_ID)
    _put(raw, *range(segments))
    return raw


def _bundle(storage: Bundles, *numbers: int) -> str:
    """Bundles these segments, and deletes their files."""
    found = bundle_segments(storage, [_name(seq) for seq in numbers], new_writer_id(1))
    assert found is not None
    storage.delete_files([_name(seq) for seq in numbers])
    return found


def _names(storage: Storage) -> list[str]:
    return [file.name for file in list_segments(storage)]


def test_segments_of_a_bundle_are_files() -> None:
    raw = _log(5)
    storage = Bundles(raw)
    before = storage.list(SEGMENTS)
    bundle = _bundle(storage, 1, 2, 3)
    assert {file.name for file in raw.list(SEGMENTS)} == {_name(0), _name(4), bundle}
    for view in (storage, Bundles(raw), Bundles(Bundles(raw))):
        assert view.list(SEGMENTS) == before
        for seq in range(5):
            path, content = segment_path(_name(seq)), _segment(seq)
            assert view.read(path) == content and view.size(path) == len(content) and view.exists(path)
            for offset, length in ((0, 10), (7, 1 << 20), (len(content), 5), (len(content) + 9, None), (3, 0)):
                assert view.read(path, offset, length) == content[offset:][:length]
            view.sync(path)
        with pytest.raises(FileNotFoundError):
            view.read(segment_path(_name(9)))
        with pytest.raises(FileNotFoundError):
            view.size(segment_path(_name(9)))


def test_a_view_that_listed_before_finds_them_again() -> None:
    raw = _log(3)
    early, late = Bundles(raw), Bundles(raw)
    early.list(SEGMENTS)
    _bundle(late, 0, 1)
    assert early.read(segment_path(_name(1))) == _segment(1)
    late.list(SEGMENTS)
    late.delete_all([segment_path(_name(0)), segment_path(_name(1))])
    assert [file.name for file in raw.list(SEGMENTS)] == [_name(2)], "nothing is left in the bundle"
    with pytest.raises(FileNotFoundError):
        early.read(segment_path(_name(1)))


def test_a_log_with_bundles_is_not_read_as_one_without() -> None:
    raw = _log(2)
    _bundle(Bundles(raw), 0, 1)
    with pytest.raises(ValueError, match="hides its segments"):
        list_segments(raw)


def test_an_earlier_release_refuses_a_log_with_bundles() -> None:
    raw = _log(3)
    assert json.loads(raw.read("log.json"))["format_version"] == 1
    _bundle(Bundles(raw), 0, 1)
    assert json.loads(raw.read("log.json"))["format_version"] == 2
    assert read_log_id(raw) == LOG_ID
    for storage in (raw, Bundles(raw), DelegatingStorage(Bundles(raw))):  # a view hides the bundles
        raw.delete("log.json")
        restore_log(storage, LOG_ID)
        assert json.loads(raw.read("log.json"))["format_version"] == 2
    raw.replace("log.json", json.dumps({"format_version": 4, "log_id": LOG_ID}).encode())
    with pytest.raises(NewerFormat):
        read_log_id(raw)


def test_a_file_beside_its_bundle_counts() -> None:
    raw = _log(2)
    storage = Bundles(raw)
    _bundle(storage, 0, 1)
    storage.list(SEGMENTS)
    storage.replace(segment_path(_name(0)), b"repaired")
    for view in (storage, Bundles(raw)):
        assert view.read(segment_path(_name(0))) == b"repaired"
        assert [file.size for file in view.list(SEGMENTS)] == [8, len(_segment(1))]
    assert not storage.duplicates, "its size is another one, so the file stays"


def test_a_bundle_goes_with_its_last_segment() -> None:
    raw = _log(3)
    storage = Bundles(raw)
    bundle = _bundle(storage, 0, 1, 2)
    storage.list(SEGMENTS)
    storage.delete(segment_path(_name(1)))
    assert _names(storage) == [_name(0), _name(2)]
    assert _names(Bundles(raw)) == [_name(0), _name(1), _name(2)], "as if nobody had trimmed yet"
    storage.delete_all([segment_path(_name(0)), segment_path(_name(2))])
    assert not raw.list(SEGMENTS) and not _names(storage)
    assert not raw.exists(segment_path(bundle))


def test_a_deletion_that_fails_is_made_up_for() -> None:
    class Failing(DelegatingStorage):
        fails = False

        def delete_all(self, paths: object) -> None:
            if self.fails:
                raise TimeoutError("no answer")
            super().delete_all(paths)  # type: ignore[arg-type]

    raw = Failing(_log(3))
    storage = Bundles(raw)
    _bundle(storage, 0, 1)
    storage.list(SEGMENTS)
    raw.fails = True
    with pytest.raises(TimeoutError):
        storage.delete_all([segment_path(_name(0)), segment_path(_name(1))])
    raw.fails = False
    storage.list(SEGMENTS)
    storage.delete_all([])
    assert [file.name for file in raw.list(SEGMENTS)] == [_name(2)]


class Course:
    """A random course of one log, and its model: the bytes of each segment by name."""

    def __init__(self, seed: int) -> None:
        self.dice, self.clock, self.raw = random.Random(seed), Clock(), memory_storage()
        join_log(self.raw, LOG_ID)
        objects = RecentObjects(CannotAppend(self.raw), self.clock) if seed % 2 else self.raw
        self.storage = Bundles(objects, self.clock)
        self.model: dict[str, bytes] = {}

    def create(self, step: int) -> None:
        self.model[_name(step)] = _segment(step)
        self.storage.create(segment_path(_name(step)), self.model[_name(step)])

    def bundle(self, step: int) -> None:
        ready = sorted(self.storage.beside)
        chosen = self.dice.sample(ready, min(len(ready), self.dice.randrange(2, 7)))
        bundle_segments(self.storage, chosen, new_writer_id(step))

    def settle(self, _: int) -> None:
        self.storage.delete_files(choose_settled(self.storage.duplicates, self.clock.now - 100.0))

    def delete(self, _: int) -> None:
        gone = self.dice.sample(sorted(self.model), self.dice.randrange(len(self.model) + 1))
        self.storage.delete_all([segment_path(each) for each in gone])
        for each in gone:
            del self.model[each]

    def restart(self, _: int) -> None:
        """A new view shows the deleted segments again; it deletes them, too."""
        self.storage = Bundles(self.raw, self.clock)
        self.storage.delete_all([segment_path(each) for each in {*_names(self.storage)} - {*self.model}])


@pytest.mark.parametrize("seed", range(12))
def test_a_random_course_equals_a_model(seed: int) -> None:
    course = Course(seed)
    dice, others = course.dice, [Bundles(course.raw, course.clock) for _ in range(2)]
    actions = (course.create, course.create, course.create, course.bundle, course.settle, course.delete, course.restart)
    for step in range(120):
        course.clock.now += dice.choice((1.0, 40.0, 200.0))
        course.storage.list(SEGMENTS)
        action = dice.choice(actions)
        action(step)
        where = f"seed {seed}, step {step}, {action.__name__}"
        _check(course.storage, course.model, where)
        for other in others:
            if dice.random() < 0.3:
                other.list(SEGMENTS)
            for name in dice.sample(sorted(course.model), min(3, len(course.model))):
                assert other.read(segment_path(name)) == course.model[name], f"{where}: {name}"
    files = course.raw.list(SEGMENTS)
    packed = [read_directory(course.raw, each.name, each.size) for each in files if is_bundle(each.name)]
    known = {*course.model, *(name for each in packed for name in each)}
    assert {file.name for file in files if not is_bundle(file.name)} <= known


def _check(storage: Bundles, model: Mapping[str, bytes], where: str) -> None:
    assert {file.name: file.size for file in list_segments(storage)} == {
        name: len(content) for name, content in model.items()
    }, where
    for name, content in model.items():
        assert storage.read(segment_path(name), 3, 40) == content[3:43], f"{where}: {name}"


@pytest.mark.parametrize("place", [0, 9, 17, 25, 40])
def test_a_damaged_head_is_named_and_its_segments_are_saved(place: int) -> None:
    raw = _log(4)
    bundle = _bundle(Bundles(raw), 0, 1, 2)
    data = bytearray(raw.read(segment_path(bundle)))
    data[place] ^= 1
    raw.replace(segment_path(bundle), data)
    storage = Bundles(raw)
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    assert _names(storage) == [_name(3)]
    (damage,) = catalog.damages
    assert isinstance(damage, Corrupt) and damage.segment == bundle and damage.bytes_lost == len(data)
    report = verify(storage)
    assert not report.clean and report.damages == (damage,)
    assert [each.damage for each in repair(storage, dry_run=True).removed] == [damage] and raw.exists(
        segment_path(bundle)
    )
    (removed,) = repair(storage, dry_run=False).removed
    assert raw.read(removed.kept_as) == data
    assert not raw.exists(segment_path(bundle))
    assert verify(storage).clean and _names(Bundles(raw)) == [_name(seq) for seq in range(4)]
    catalog.refresh()
    assert not catalog.damages
    entries = catalog.index.commits(STORE, 1, 4)
    assert [bytes(frame.payload) for frame in read_many(storage, [each.location for each in entries])] == [
        payload_of(version) for version in range(1, 5)
    ]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:20]])
def test_a_bundle_of_another_size_is_damaged(change: object) -> None:
    raw = _log(3)
    bundle = _bundle(Bundles(raw), 0, 1)
    raw.replace(segment_path(bundle), change(raw.read(segment_path(bundle))))  # type: ignore[operator]
    storage = Bundles(raw)
    assert _names(storage) == [_name(2)] and set(storage.damaged) == {bundle}
    assert set(storage.damaged) == {bundle}, "a listing more does not read it again"


def test_a_frame_that_is_damaged_in_a_bundle_is_repaired_beside_it() -> None:
    raw = _log(3)
    bundle = _bundle(Bundles(raw), 0, 1)
    data = bytearray(raw.read(segment_path(bundle)))
    data[-6] ^= 1
    raw.replace(segment_path(bundle), data)
    storage = Bundles(raw)
    (damage,) = verify(storage).damages
    assert damage.segment == _name(1)
    repair(storage, dry_run=False)
    assert verify(storage).clean and raw.exists(segment_path(_name(1))) and raw.exists(segment_path(bundle))
    assert verify(Bundles(raw)).clean


def test_damage_that_was_repaired_does_not_come_back_when_the_segment_is_trimmed() -> None:
    raw = _log(4)
    bundle = _bundle(Bundles(raw), 0, 1)
    data = bytearray(raw.read(segment_path(bundle)))
    data[-6] ^= 1  # of segment 1
    raw.replace(segment_path(bundle), data)
    storage = Bundles(raw)
    repair(storage, dry_run=False)
    storage.list(SEGMENTS)
    storage.delete_all([segment_path(_name(1)), segment_path(_name(2))])
    assert _names(storage) == [_name(0), _name(3)]
    assert verify(Bundles(raw)).clean, "the repaired file stays as long as the bundle"
    storage.delete_all([segment_path(_name(0))])
    assert [file.name for file in raw.list(SEGMENTS)] == [_name(3)]


def test_a_repaired_segment_stays_if_its_bundle_does() -> None:
    """S3 may keep some of many deletions, and not say so."""

    class Keeping(DelegatingStorage):
        def delete_all(self, paths: Sequence[str]) -> None:
            super().delete_all([path for path in paths if path != segment_path(bundle)])

    raw = _log(3)
    bundle = _bundle(Bundles(raw), 0, 1)
    data = bytearray(raw.read(segment_path(bundle)))
    data[-6] ^= 1  # of segment 1
    raw.replace(segment_path(bundle), data)
    storage = Bundles(Keeping(raw))
    repair(storage, dry_run=False)
    storage.list(SEGMENTS)
    storage.delete_all([segment_path(_name(0)), segment_path(_name(1))])
    assert raw.exists(segment_path(bundle)) and verify(Bundles(raw)).clean
    again = Bundles(raw)
    again.list(SEGMENTS)
    again.delete_all([segment_path(_name(0)), segment_path(_name(1))])
    assert [file.name for file in raw.list(SEGMENTS)] == [_name(2)]


def test_what_follows_damage_in_a_bundle_belongs_to_no_segment() -> None:
    """The head is damaged, and the first frame of a segment: its other frames may not become another segment's."""
    raw = _log(4)
    bundle = _bundle(Bundles(raw), 0, 1, 2)
    data = bytearray(raw.read(segment_path(bundle)))
    at = read_directory(raw, bundle, len(data))[_name(1)].offset
    data[3] ^= 1
    data[at + 40] ^= 1
    raw.replace(segment_path(bundle), data)
    storage = Bundles(raw)
    repair(storage, dry_run=False)
    assert verify(storage).clean and _names(storage) == [_name(0), _name(2), _name(3)]
    for seq in (0, 2, 3):
        assert storage.read(segment_path(_name(seq))) == _segment(seq)


def test_a_file_goes_only_if_its_copy_is_sound() -> None:
    raw = _log(5)
    storage = Bundles(raw)
    bundle = bundle_segments(storage, [_name(seq) for seq in range(4)], new_writer_id(1))
    assert bundle is not None
    data = bytearray(raw.read(segment_path(bundle)))
    data[read_directory(raw, bundle, len(data))[_name(1)].offset + 50] ^= 1
    raw.replace(segment_path(bundle), data)
    storage.list(SEGMENTS)
    raw.delete(segment_path(_name(3)))
    delete_copied(storage, [_name(seq) for seq in range(4)])
    assert {file.name for file in raw.list(SEGMENTS)} == {_name(1), _name(4), bundle}
    assert verify(Bundles(raw)).clean, "the file counts, not its copy"


def test_an_agent_that_was_paused_deletes_nothing_that_a_repair_has_saved() -> None:
    raw = _log(4)
    paused = Bundles(raw)
    bundle = bundle_segments(paused, [_name(seq) for seq in range(3)], new_writer_id(1))
    assert bundle is not None
    paused.list(SEGMENTS)
    data = bytearray(raw.read(segment_path(bundle)))
    data[3] ^= 1
    raw.replace(segment_path(bundle), data)
    repair(Bundles(raw), dry_run=False)
    for delete in (delete_copied, Bundles.delete_files):  # it was paused before it looked, or after
        delete(paused, [_name(seq) for seq in range(3)])
        assert _names(Bundles(raw)) == [_name(seq) for seq in range(4)] and verify(Bundles(raw)).clean


def test_a_newer_bundle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = _log(2)
    monkeypatch.setattr(bundles, "BUNDLE_VERSION", BUNDLE_VERSION + 1)
    bundle = _bundle(Bundles(raw), 0, 1)
    monkeypatch.undo()
    with pytest.raises(NewerFormat):
        Bundles(raw).list(SEGMENTS)
    raw.replace(segment_path(bundle), b"\0" * 100)
    with pytest.raises(DamagedLog):
        read_directory(raw, bundle, 100)


def test_a_large_directory_is_read_whole() -> None:
    raw = memory_storage()
    segments = {_name(seq): b"%d" % seq for seq in range(2_000)}
    name = bundle_name(WRITER_ID)
    raw.create(segment_path(name), encode_bundle(segments))
    storage = Bundles(raw)
    assert {file.name: storage.read(segment_path(file.name)) for file in storage.list(SEGMENTS)} == segments


def test_unsound_segments_stay_out() -> None:
    raw = _log(5)
    torn, gone, short = segment_path(_name(1)), segment_path(_name(2)), segment_path(_name(4))
    raw.replace(torn, raw.read(torn)[:-3])
    raw.delete(gone)
    damaged = bytearray(raw.read(short))
    damaged[-6] ^= 1
    raw.replace(short, damaged)
    storage = Bundles(raw)
    bundle = bundle_segments(storage, [_name(seq) for seq in range(5)], new_writer_id(1))
    assert bundle is not None
    assert set(read_directory(raw, bundle, raw.size(segment_path(bundle)))) == {_name(0), _name(3)}
    assert bundle_segments(storage, [_name(1), _name(2), _name(0)], new_writer_id(2)) is None, "one is no bundle"


def test_a_restart_reads_a_bundle_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Counter[str]()

    class Counting(DelegatingStorage):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            reads[path] += 1
            return super().read(path, offset, length)

    monkeypatch.setattr(recent_objects, "LARGEST_BYTES", 2_000)
    monkeypatch.setattr(recent_objects, "BLOCK_BYTES", 5_000)
    raw = _log(60)
    bundle = _bundle(Bundles(raw), *range(59))
    storage = Bundles(RecentObjects(Counting(raw)))
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    entries = catalog.index.commits(STORE, 1, 60)
    frames = read_many(storage, [each.location for each in entries])
    assert [bytes(frame.payload) for frame in frames] == [payload_of(version) for version in range(1, 61)]
    blocks = -(-raw.size(segment_path(bundle)) // 5_000)
    assert reads == {segment_path(bundle): blocks, segment_path(_name(59)): 1} and blocks > 3


def test_trimming_knows_segments_in_bundles() -> None:
    raw = CannotAppend(_log(6))
    storage = Bundles(raw)
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    bundle = _bundle(storage, 0, 1, 2)
    catalog.refresh()
    horizon = TrimHorizon(stores={STORE: 3}, generation=2)
    assert trim(storage, catalog.index, horizon) == [_name(0), _name(1)]
    assert raw.exists(segment_path(bundle))
    catalog.refresh()
    assert trim(storage, catalog.index, horizon) == []
    assert trim(storage, catalog.index, TrimHorizon(stores={STORE: 5}, generation=2)) == [_name(2), _name(3)]
    assert [file.name for file in raw.list(SEGMENTS)] == [_name(4), _name(5)]


def _beside(sizes: list[int]) -> tuple[dict[str, int], dict[str, Covered]]:
    beside = {_name(seq): size for seq, size in enumerate(sizes)}
    return beside, {name: Covered(size, 0, 0) for name, size in beside.items()}


def test_the_oldest_are_chosen_and_the_newest_stay() -> None:
    assert choose_segments(*_beside([10] * 5), count=4) == []
    assert choose_segments(*_beside([10] * 6), count=4) == [[_name(seq) for seq in range(4)]]
    chosen = choose_segments(*_beside([10] * 60), count=4)
    assert len(chosen) == MOST_AT_ONCE
    assert [name for each in chosen for name in each] == [_name(seq) for seq in range(4 * MOST_AT_ONCE)]


@pytest.mark.parametrize("a_call", [20, 140, 400, 1_000])
def test_bundles_keep_up_with_any_number_of_executors(a_call: int) -> None:
    """A call comes after so many new segments: one for each executor and batch."""
    waiting = 0
    for _ in range(60):
        waiting += a_call
        waiting -= sum(map(len, choose_segments(*_beside([10] * waiting), count=32)))
    assert waiting <= 5 * a_call + 48


def test_only_small_segments_that_are_known_to_their_end_are_chosen() -> None:
    beside, covered = _beside([10, LARGEST_SEGMENT_BYTES + 1, 10, 10, 10, 10])
    del covered[_name(0)]
    covered[_name(2)] = Covered(9, 0, 0)
    assert choose_segments(beside, covered, count=2) == [[_name(3), _name(4)]]


def test_large_segments_make_more_bundles() -> None:
    at_once = LARGEST_BUNDLE_BYTES // LARGEST_SEGMENT_BYTES
    chosen = choose_segments(*_beside([LARGEST_SEGMENT_BYTES] * 30), count=12)
    assert [len(each) for each in chosen] == [at_once, at_once]


def test_files_go_when_their_bundle_was_there_long_enough() -> None:
    known = [Duplicate(_name(1), 10.0), Duplicate(_name(0), 10.0), Duplicate(_name(2), 11.0)]
    assert choose_settled(known, 9.9) == []
    assert choose_settled(known, 10.0) == [_name(0), _name(1)]


def test_the_time_counts_from_the_first_listing_of_a_bundle() -> None:
    clock = Clock()
    raw = _log(3)
    storage = Bundles(raw, clock)
    clock.now = 5.0
    assert bundle_segments(storage, [_name(0), _name(1)], new_writer_id(1))
    clock.now = 7.0
    storage.list(SEGMENTS)
    clock.now = 9.0
    storage.list(SEGMENTS)
    assert storage.duplicates == [Duplicate(_name(0), 7.0), Duplicate(_name(1), 7.0)]
    assert set(storage.beside) == {_name(2)}
    with suppress(FileNotFoundError):
        storage.delete_files([_name(0), _name(1)])
    storage.list(SEGMENTS)
    assert not storage.duplicates and _names(storage) == [_name(0), _name(1), _name(2)]


def test_a_meta_that_cannot_be_decoded_hides_no_segment_of_a_damaged_bundle() -> None:
    """The first repair takes the segments out of the bundle, the second one the frame out of its segment."""
    raw = _log(4)
    short = b"".join(map(bytes, encode_frame(FrameKind.COMMIT, commit_meta(9).encode()[:9], b"")))
    put_segment(raw, _segment(1) + short + frame_bytes(commit_meta(7), payload_of(7)), _name(1))
    bundle = bundle_name(new_writer_id(1))
    segments = {_name(seq): raw.read(segment_path(_name(seq))) for seq in range(4)}
    raw.delete_all([segment_path(name) for name in segments])
    raw.create(segment_path(bundle), b"x" + encode_bundle(segments)[1:])
    storage = Bundles(raw)
    repair(storage, dry_run=False)
    (removed,) = repair(storage, dry_run=False).removed
    assert (removed.damage.segment, removed.damage.bytes_lost) == (_name(1), len(short))
    assert verify(storage).clean and _names(storage) == [_name(seq) for seq in range(4)]
    found = Catalog(storage, MemoryIndex(LOG_ID))
    found.refresh()
    assert [each.meta.version for each in found.index.commits(STORE, 0, 9)] == [1, 2, 3, 4, 7]
