"""Indexes: both against a plain model, and the one on disk against everything that can befall its files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_cec.adapters.rocksdict_index import RocksDictIndex, open_index
from spark_cec.ids import StoreId
from spark_cec.log import index_keys
from spark_cec.log.frame import CommitMeta, Location, Meta, OutputMeta
from spark_cec.log.index import BrokenIndexError, Covered, Index, MemoryIndex
from spark_cec.log.meta import CommitFlags, LoadedMeta
from spark_cec.log.segment import SegmentName
from tests.log.support import LOG_ID, STORE, checkpoint_id, commit_meta, loaded_meta, output_meta

OTHER_LOG = "f" * 32
SEGMENTS = [str(SegmentName(f"{n:012x}-0011223344556677", n)) for n in range(3)]
STORES = [STORE, StoreId(0, 3, "x"), StoreId(0, 3, "xy"), StoreId(-1, 0), StoreId(256, 1)]
SMALL = st.integers(0, 4)
EDGES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 255, 256, 2**63 - 1])

COMMITS = st.builds(
    lambda store, version, generation, wall_ms, attempt, is_flush: commit_meta(
        version, watermark_ms=0, store=store, generation=generation, wall_ms=wall_ms,
        checkpoint_id=checkpoint_id(1, attempt), flags=CommitFlags.FLUSH if is_flush else CommitFlags(0),
    ),
    st.sampled_from(STORES), EDGES, SMALL, EDGES, SMALL, st.booleans(),
)  # fmt: skip
OUTPUTS = st.builds(
    lambda number, batch, wall_ms: output_meta(number, batch=batch, wall_ms=wall_ms), SMALL, EDGES, EDGES
)
LOADS = st.builds(
    lambda store, generation, wall_ms: loaded_meta(store=store, generation=generation, wall_ms=wall_ms),
    st.sampled_from(STORES), SMALL, EDGES,
)  # fmt: skip
FRAMES = st.tuples(st.sampled_from(SEGMENTS), st.integers(0, 5), st.one_of(COMMITS, OUTPUTS, LOADS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.lists(FRAMES, min_size=1, max_size=6)),
        st.tuples(st.just("apply"), st.lists(FRAMES, min_size=4, max_size=9)),
        st.tuples(st.just("forget"), st.sampled_from(SEGMENTS)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=12,
)


class Model:
    """What an index must answer, by looking through everything."""

    def __init__(self) -> None:
        self.frames: dict[Location, Meta] = {}

    def of(self, kind: type[Any]) -> list[tuple[Any, Location]]:
        return [(meta, location) for location, meta in sorted(self.frames.items()) if isinstance(meta, kind)]

    def commits(self, store: StoreId, first: int, last: int) -> list[tuple[Any, Location]]:
        of_store = [pair for pair in self.of(CommitMeta) if pair[0].store == store and not pair[0].is_flush]
        found = [pair for pair in of_store if first <= pair[0].version <= last]
        return sorted(found, key=lambda pair: (pair[0].version, pair[0].generation, pair[0].wall_ms, pair[1]))

    def newest(self, store: StoreId, at_or_below: int) -> list[tuple[Any, Location]]:
        below = self.commits(store, -(2**63), at_or_below)
        return [pair for pair in below if pair[0].version == below[-1][0].version]

    def at(self, wall_ms: int) -> list[tuple[Any, Location]]:
        answer = []
        for kind in (CommitMeta, OutputMeta):
            later = [pair for pair in self.of(kind) if pair[0].wall_ms >= wall_ms]
            answer += sorted(later, key=lambda pair: (pair[0].wall_ms, pair[1]))[:1]
        return answer


def _pairs(entries: list[Any]) -> list[tuple[Any, Location]]:
    return [(entry.meta, entry.location) for entry in entries]


def _location(segment: str, slot: int) -> Location:
    return Location(segment, slot * 1000, 1000)


def _agree(index: Index, model: Model) -> None:
    assert index.stores() == sorted({meta.store for meta, _ in model.of(CommitMeta)})
    for store in STORES:
        for first, last in ((-(2**63), 2**63 - 2), (0, 2), (2, 2), (3, 1)):
            assert _pairs(index.commits(store, first, last)) == model.commits(store, first, last)
        for version in (-(2**63), -2, 0, 2, 255, 2**62):
            assert _pairs(index.newest(store, version)) == model.newest(store, version)
        for attempt in range(5):
            wanted = [p for p in model.commits(store, 1, 1) if p[0].checkpoint_id == checkpoint_id(1, attempt)]
            found = index.commit(store, 1, checkpoint_id(1, attempt))
            by_run = sorted(wanted, key=lambda pair: (-pair[0].generation, pair[1]))
            assert _pairs([found] if found else []) == by_run[:1]
    for number in range(5):
        copies = [pair for pair in model.of(OutputMeta) if pair[0].frame_id == number.to_bytes(16, "big")]
        output = index.output(number.to_bytes(16, "big"))
        assert _pairs([output] if output else []) == copies[:1]
        loads = [pair for pair in model.of(LoadedMeta) if pair[0].generation == number]
        assert _pairs(index.loaded(number)) == sorted(loads, key=lambda pair: (pair[0].wall_ms, pair[1]))
    for batch in (-1, 0, 1, 256):
        assert _pairs(index.outputs(batch)) == [pair for pair in model.of(OutputMeta) if pair[0].batch == batch]
    for wall_ms in (-(2**63), -1, 0, 2, 200, 2**63 - 1):
        assert _pairs(index.at(wall_ms)) == model.at(wall_ms)
    for segment in SEGMENTS:
        known = [(meta, location) for location, meta in sorted(model.frames.items()) if location.segment == segment]
        assert index.entries(segment) == known


def _step(index: Index, model: Model, what: str, detail: Any) -> None:
    if what == "clear":
        index.clear()
        model.frames.clear()
    elif what == "forget":
        index.forget(detail)
        model.frames = {at: meta for at, meta in model.frames.items() if at.segment != detail}
    else:
        for segment, slot, meta in detail:
            location = _location(segment, slot)
            # One place never holds two different frames; applying the same again must change nothing.
            meta = model.frames.setdefault(location, meta)
            index.apply(segment, [(meta, location)], Covered(location.end, location.offset, 7))
            assert index.covered()[segment] == Covered(location.end, location.offset, 7)


@given(STEPS)
def test_memory_against_the_model(steps: list[tuple[str, Any]]) -> None:
    index, model = MemoryIndex(LOG_ID), Model()
    for what, detail in steps:
        _step(index, model, what, detail)
    _agree(index, model)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_disk_against_the_model(steps: list[tuple[str, Any]], tmp_path: Path) -> None:
    index, model = open_index(str(tmp_path / "index"), LOG_ID), Model()
    assert isinstance(index, RocksDictIndex)
    index.clear()
    try:
        for what, detail in steps:
            _step(index, model, what, detail)
        _agree(index, model)
        covered = index.covered()
    finally:
        index.close()
    again = open_index(str(tmp_path / "index"), LOG_ID)
    try:
        _agree(again, model)
        assert again.covered() == covered
    finally:
        again.close()


@pytest.fixture(params=["memory", "disk"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: Index = MemoryIndex(LOG_ID) if request.param == "memory" else open_index(str(tmp_path / "index"), LOG_ID)
    yield made
    made.close()


def test_entries_alone_do_not_change_what_is_covered(index: Index) -> None:
    index.apply(SEGMENTS[0], [(commit_meta(1), _location(SEGMENTS[0], 0))], None)
    assert index.covered() == {}
    assert len(index.commits(STORE, 1, 1)) == 1


def test_coverage_without_entries(index: Index) -> None:
    index.apply(SEGMENTS[0], [], Covered(10, 2, 3))
    assert index.covered() == {SEGMENTS[0]: Covered(10, 2, 3)}
    index.forget(SEGMENTS[0])
    index.forget(SEGMENTS[1])
    assert index.covered() == {}


def test_forgetting_leaves_no_pointer_behind(index: Index) -> None:
    for segment in SEGMENTS[:2]:
        metas: list[Meta] = [commit_meta(3), output_meta(5, batch=2), loaded_meta(generation=4)]
        frames = [(meta, _location(segment, slot)) for slot, meta in enumerate(metas)]
        index.apply(segment, frames, Covered(3000, 2000, 1))
    index.forget(SEGMENTS[0])
    found = [
        *index.commits(STORE, 0, 9), *index.newest(STORE, 9), index.output(output_meta(5).frame_id), *index.outputs(2),
        *index.loaded(4), *index.at(0),
    ]  # fmt: skip
    assert [entry.location.segment for entry in found if entry is not None] == [SEGMENTS[1]] * 7
    index.forget(SEGMENTS[1])
    assert (index.stores(), index.outputs(2), index.loaded(4), index.at(0)) == ([], [], [], [])


def test_of_a_commit_written_twice_the_first_by_position_counts(index: Index) -> None:
    for segment, wall_ms in ((SEGMENTS[1], 1), (SEGMENTS[0], 2)):
        index.apply(segment, [(commit_meta(3, wall_ms=wall_ms), _location(segment, 0))], None)
    found = index.commit(STORE, 3, checkpoint_id(3))
    assert found is not None
    assert found.location.segment == SEGMENTS[0]
    assert [entry.location.segment for entry in index.commits(STORE, 3, 3)] == [SEGMENTS[1], SEGMENTS[0]]


def test_a_version_whose_commit_is_lost_and_whose_flush_is_not_is_passed_over(index: Index) -> None:
    flushes = [commit_meta(version, flags=CommitFlags.FLUSH) for version in (1, 3, 4)]
    metas = [flushes[0], commit_meta(2), *flushes[1:]]
    frames: list[tuple[Meta, Location]] = [(meta, _location(SEGMENTS[0], slot)) for slot, meta in enumerate(metas)]
    index.apply(SEGMENTS[0], frames, None)
    assert [entry.meta.version for entry in index.newest(STORE, 2**62)] == [2]
    assert index.newest(STORE, 1) == []


def test_what_is_covered_is_a_copy(index: Index) -> None:
    index.apply(SEGMENTS[0], [], Covered(10, 2, 3))
    before = index.covered()
    index.clear()
    assert before == {SEGMENTS[0]: Covered(10, 2, 3)}


def test_an_empty_index_answers(index: Index) -> None:
    assert index.log_id == LOG_ID
    assert (index.stores(), index.outputs(0), index.loaded(0), index.at(0)) == ([], [], [], [])
    assert index.newest(STORE, 5) == index.commits(STORE, 0, 5) == []
    assert index.commit(STORE, 1, checkpoint_id(1)) is None
    assert index.output(bytes(16)) is None


def _filled(path: Path, log_id: str = LOG_ID, versions: int = 300) -> None:
    index = open_index(str(path), log_id)
    assert isinstance(index, RocksDictIndex)
    for version in range(1, versions + 1):
        location = Location(SEGMENTS[0], version * 1000, 1000)
        index.apply(SEGMENTS[0], [(commit_meta(version), location)], Covered(location.end, location.offset, version))
    index.close()


def _usable(path: Path) -> Index:
    index = open_index(str(path), LOG_ID)
    assert isinstance(index, RocksDictIndex)
    index.apply(SEGMENTS[1], [(commit_meta(1), _location(SEGMENTS[1], 0))], Covered(1000, 0, 1))
    assert index.commit(STORE, 1, checkpoint_id(1)) is not None
    return index


def test_it_remembers(tmp_path: Path) -> None:
    _filled(tmp_path / "index")
    index = open_index(str(tmp_path / "index"), LOG_ID)
    assert index.covered() == {SEGMENTS[0]: Covered(301_000, 300_000, 300)}
    assert [entry.meta for entry in index.commits(STORE, 1, 400)] == [commit_meta(v) for v in range(1, 301)]
    index.close()
    index.close()


def test_a_deleted_index_begins_anew(tmp_path: Path) -> None:
    _filled(tmp_path / "index")
    shutil.rmtree(tmp_path / "index")
    index = _usable(tmp_path / "index")
    assert index.covered().keys() == {SEGMENTS[1]}
    index.close()


def test_an_index_of_another_log_is_emptied(tmp_path: Path) -> None:
    _filled(tmp_path / "other", OTHER_LOG)
    shutil.copytree(tmp_path / "other", tmp_path / "index")
    index = _usable(tmp_path / "index")
    assert index.covered().keys() == {SEGMENTS[1]}
    assert len(index.commits(STORE, 0, 1000)) == 1
    index.close()
    again = open_index(str(tmp_path / "index"), LOG_ID)
    assert again.covered().keys() == {SEGMENTS[1]}
    again.close()


@pytest.mark.parametrize("damage", ["empty", "half", "rubbish", "gone"])
@pytest.mark.parametrize("victim", ["CURRENT", "MANIFEST-*", "*.log", "*.sst", "OPTIONS-*", "rocksdict-config.json"])
def test_damaged_files_are_no_obstacle(victim: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "block" / "index"  # a message of damage may say so, which sounds like a lock
    _filled(path)
    open_index(str(path), LOG_ID).close()
    files = sorted(path.glob(victim))
    assert files, sorted(file.name for file in path.iterdir())
    for file in files:
        data = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes({"empty": b"", "half": data[: len(data) // 2], "rubbish": b"\xa5" * len(data)}[damage])
    index = _usable(path)
    known = index.covered().get(SEGMENTS[0])
    try:
        found = index.commits(STORE, 2, 1000)
    except BrokenIndexError:
        found = None
    if found is not None and known is not None:
        assert len(found) == known.last_crc - 1, "what is covered must be there"
    index.close()


def test_rows_that_make_no_sense_empty_the_index(tmp_path: Path) -> None:
    _filled(tmp_path / "index", versions=1)
    index = open_index(str(tmp_path / "index"), LOG_ID)
    assert isinstance(index, RocksDictIndex)
    index._rows[index_keys.COVERED + b"nonsense"] = b"short"
    index.close()
    _usable(tmp_path / "index").close()


def test_a_rotten_row_breaks_the_index_and_nothing_else(tmp_path: Path) -> None:
    _filled(tmp_path / "index", versions=1)
    index = open_index(str(tmp_path / "index"), LOG_ID)
    assert isinstance(index, RocksDictIndex)
    index._rows[index_keys.frame_row(commit_meta(1), Location(SEGMENTS[0], 1000, 1))[0]] = b"\x02short"
    with pytest.raises(BrokenIndexError):
        index.commits(STORE, 1, 1)
    index.close()
    with pytest.raises(BrokenIndexError):
        index.commits(STORE, 1, 1)


READS: dict[str, Callable[[Index], Any]] = {
    "commits": lambda index: index.commits(STORE, 1, 9),
    "newest": lambda index: index.newest(STORE, 9),
    "outputs": lambda index: index.outputs(7),
    "output": lambda index: index.output(output_meta(1).frame_id),
    "loaded": lambda index: index.loaded(loaded_meta().generation),
    "at": lambda index: index.at(0),
}


@pytest.mark.parametrize("read", READS)
def test_a_segment_that_is_forgotten_under_a_read_breaks_nothing(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has found a pointer, and the log is trimmed before it follows it."""
    index = RocksDictIndex(str(tmp_path / "index"), LOG_ID)
    metas: list[Meta] = [commit_meta(1), output_meta(1, batch=7), loaded_meta()]
    frames = [(meta, Location(SEGMENTS[0], 1000 * (place + 1), 1)) for place, meta in enumerate(metas)]
    index.apply(SEGMENTS[0], frames, Covered(9000, 3000, 1))
    kept = commit_meta(2)
    index.apply(SEGMENTS[1], [(kept, Location(SEGMENTS[1], 1000, 1))], Covered(2000, 1000, 1))
    follow = index_keys.frame_key

    def trim(pointer: bytes) -> bytes:
        monkeypatch.setattr(index_keys, "frame_key", follow)
        index.forget(SEGMENTS[0])
        return follow(pointer)

    monkeypatch.setattr(index_keys, "frame_key", trim)
    found = READS[read](index) or []
    assert [each.meta for each in found] == ([kept] if read in ("commits", "newest", "at") else [])
    index.close()


@pytest.mark.parametrize("read", READS)
def test_a_pointer_without_its_frame_breaks_the_index(read: str, tmp_path: Path) -> None:
    index = RocksDictIndex(str(tmp_path / "index"), LOG_ID)
    metas: list[Meta] = [commit_meta(1), output_meta(1, batch=7), loaded_meta()]
    frames = [(meta, Location(SEGMENTS[0], 1000 * (place + 1), 1)) for place, meta in enumerate(metas)]
    index.apply(SEGMENTS[0], frames, Covered(9000, 3000, 1))
    for meta, location in frames:
        index._rows.delete(index_keys.frame_row(meta, location)[0])
    with pytest.raises(BrokenIndexError):
        READS[read](index)
    index.close()


def test_a_lock_held_in_this_process(tmp_path: Path) -> None:
    first = open_index(str(tmp_path / "index"), LOG_ID)
    second = open_index(str(tmp_path / "index"), LOG_ID)
    assert (type(first), type(second)) == (RocksDictIndex, RocksDictIndex)
    assert second.log_id == LOG_ID
    first.close()
    third = open_index(str(tmp_path / "index"), LOG_ID)
    assert type(third) is RocksDictIndex
    second.close()
    third.close()


def test_a_lock_held_by_another_process(tmp_path: Path) -> None:
    _filled(tmp_path / "index", versions=3)
    script = (
        "import rocksdict, sys; held = rocksdict.Rdict(sys.argv[1], rocksdict.Options(raw_mode=True)); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "index")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        for filled in (0, 4):  # its second start finds what its first one has left
            index = open_index(str(tmp_path / "index"), LOG_ID)
            assert isinstance(index, RocksDictIndex)
            assert len(index.commits(STORE, 1, 9)) == filled
            index.close()
            _filled(tmp_path / "index-2", versions=4)
        holder.stdin.close()
    index = open_index(str(tmp_path / "index"), LOG_ID)
    assert len(index.commits(STORE, 1, 3)) == 3
    index.close()


def test_if_all_places_are_taken_the_index_is_in_memory(tmp_path: Path) -> None:
    open_ = [open_index(str(tmp_path / "index"), LOG_ID) for _ in range(9)]
    assert [type(index) for index in open_] == [RocksDictIndex] * 8 + [MemoryIndex]
    assert len(list(tmp_path.iterdir())) == 8
    for index in open_:
        index.close()


def test_where_no_directory_can_be_the_index_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert isinstance(open_index(str(tmp_path / "file" / "index"), LOG_ID), MemoryIndex)
    (tmp_path / "index").write_text("mine")
    assert isinstance(open_index(str(tmp_path / "index"), LOG_ID), MemoryIndex)
    assert (tmp_path / "index").read_text() == "mine"


def test_segments_of_another_form_are_refused(tmp_path: Path) -> None:
    index = open_index(str(tmp_path / "index"), LOG_ID)
    with pytest.raises(BrokenIndexError, match="no segment's name"):
        index.apply("nonsense", [], Covered(1, 0, 0))
    index.close()


class Counting:
    """Rows of an index, and how many of them its scans were given."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)

    def __getitem__(self, key: bytes) -> bytes:
        value: bytes = self.rows[key]
        return value

    def items(self, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in self.rows.items(**options):
            self.given += 1
            yield row


def test_a_scan_ends_with_its_last_row(tmp_path: Path) -> None:
    """RocksDB is told the end: before the next row there may be thousands that were removed, which it would go over."""
    index = RocksDictIndex(str(tmp_path / "index"), LOG_ID)
    stores = [StoreId(0, partition) for partition in range(3)]
    frames: list[tuple[Meta, Location]] = [
        (commit_meta(version, store=store), Location(SEGMENTS[0], 100 * version + store.partition, 1))
        for version in range(1, 11)
        for store in stores
    ]
    index.apply(SEGMENTS[0], frames, Covered(2000, 0, 0))
    index._rows = rows = Counting(index._rows)
    for store in stores:
        assert [entry.meta.version for entry in index.newest(store, 10)] == [10]
        assert [entry.meta.version for entry in index.frames(store, 4, 6)] == [4, 5, 6]
    assert rows.given == len(stores) * 4
    assert index.loaded(1) == [] == index.outputs(3)
    assert rows.given == len(stores) * 4
    index.close()
