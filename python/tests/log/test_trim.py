"""Trimming: what the decision says, and that nothing needed ever goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import Manifest, batches, publish
from spark_cec.log.segment import GIVEN_UP_AFTER_IDLE_MS, SegmentName, list_segments, segment_path
from spark_cec.log.storage import Storage, delete_until
from spark_cec.log.trim import SegmentSummary, Summaries, TrimHorizon, removable_segments, summarize, trim
from tests.log.support import (
    LOG_ID,
    SEGMENT,
    STORE,
    append_commits,
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

OLD, NEW = "0198c0ffee01-00112233445566ff", "0198c0ffee02-00112233445566ff"
OTHER = StoreId(1, 0)


def _segment(writer: str = OLD, seq: int = 0, generation: int = 1, **fields: Any) -> SegmentSummary:
    return SegmentSummary(SegmentName(writer, seq), generation, **fields)


def _gone(*segments: SegmentSummary, **keep: Any) -> list[int]:
    """Numbers of the segments that may go."""
    horizon = TrimHorizon(**{"stores": {STORE: 10}, "generation": 2, **keep})
    removable = removable_segments(segments, horizon)
    assert removable == sorted(removable)
    return [number for number, segment in enumerate(segments) if str(segment.name) in removable]


@pytest.mark.parametrize(("version", "gone"), [(1, [0]), (9, [0]), (10, []), (11, [])])
def test_commits_older_than_the_oldest_footprint_go(version: int, gone: list[int]) -> None:
    assert _gone(_segment(commits={STORE: version})) == gone


def test_one_store_that_needs_it_holds_a_segment() -> None:
    assert _gone(_segment(commits={STORE: 9, OTHER: 3}), stores={STORE: 10, OTHER: 4}) == [0]
    assert _gone(_segment(commits={STORE: 9, OTHER: 4}), stores={STORE: 10, OTHER: 4}) == []


def test_a_store_that_the_horizon_does_not_name_keeps_all() -> None:
    assert _gone(_segment(commits={OTHER: 1})) == []


@pytest.mark.parametrize(("before", "gone"), [(None, []), (5, []), (6, [0])])
def test_output_is_held_by_retention(before: int | None, gone: list[int]) -> None:
    assert _gone(_segment(output_batch=5), output_before=before) == gone
    assert _gone(_segment(commits={STORE: 10}, output_batch=5), output_before=before) == []


def test_a_segment_without_anything_to_keep_goes() -> None:
    assert _gone(_segment()) == [0]


def test_the_segment_being_written_stays() -> None:
    segments = [_segment(NEW, seq, generation=2, commits={STORE: 1}) for seq in range(3)]
    assert _gone(*segments) == [0, 1]


def test_a_writer_that_has_written_in_this_run_keeps_its_newest_whatever_is_in_it() -> None:
    assert _gone(_segment(NEW, 0, generation=2), _segment(NEW, 1, generation=-1)) == [0]
    assert _gone(_segment(NEW, 0, generation=3), _segment(NEW, 1, generation=1)) == [0]


def test_writers_of_earlier_runs_keep_nothing() -> None:
    assert _gone(_segment(OLD, 0, generation=1), _segment(OLD, 1, generation=1)) == [0, 1]


@pytest.mark.parametrize(
    ("silent_ms", "gone"), [(0, [0]), (GIVEN_UP_AFTER_IDLE_MS, [0]), (GIVEN_UP_AFTER_IDLE_MS + 1, [0, 1])]
)
def test_a_writer_that_is_silent_for_long_keeps_nothing(silent_ms: int, gone: list[int]) -> None:
    """Its executor is idle for the rest of the run, or was taken away."""
    segments = [_segment(NEW, seq, generation=2, commits={STORE: 1}, wall_ms=1_000 + seq) for seq in range(2)]
    assert _gone(*segments, now_ms=1_001 + silent_ms) == gone


def test_a_trimming_looks_at_new_frames_only() -> None:
    storage = memory_storage()
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    writer, summaries, seen = make_writer(storage, 1 << 20, NEW), Summaries(), list[int]()

    class Watched:
        """An index that notes how many entries were asked for."""

        def __getattr__(self, name: str) -> Any:
            return getattr(catalog.index, name)

        def entries(self, segment: str, start: int = 0) -> Any:
            found = catalog.index.entries(segment, start)
            seen.append(len(found))
            return found

    for round_ in range(5):
        for version in range(10 * round_ + 1, 10 * round_ + 11):
            catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(version, generation=round_), payload_of(version)))
        index: Any = Watched()
        (name,) = catalog.index.covered()
        assert summaries.of(index, [name])[name] == summarize(name, catalog.index.entries(name))
    assert max(seen[1:]) == 10, seen
    index = Watched()
    assert summaries.of(index, []) == {}


def test_summaries() -> None:
    where = Any
    entries: list[Any] = [
        (commit_meta(3, generation=4), where),
        (commit_meta(9), where),
        (commit_meta(8), where),
        (commit_meta(2, store=OTHER), where),
        (output_meta(batch=7), where),
        (output_meta(batch=6, generation=5), where),
        (loaded_meta(version=50, generation=6), where),
    ]
    expected = SegmentSummary(SegmentName.parse(SEGMENT), 6, {STORE: 9, OTHER: 2}, 7, 9_000)  # type: ignore[arg-type]
    assert summarize(SEGMENT, entries) == expected
    assert summarize(SEGMENT, []).output_batch is None
    with pytest.raises(ValueError, match="no segment's name"):
        summarize("x", [])


SEGMENTS = st.lists(
    st.builds(
        _segment,
        st.sampled_from([OLD, NEW]),
        st.integers(0, 5),
        st.integers(-1, 3),
        commits=st.dictionaries(st.sampled_from([STORE, OTHER]), st.integers(1, 20)),
        output_batch=st.none() | st.integers(0, 9),
    ),
    unique_by=lambda segment: segment.name,
)


@given(SEGMENTS, st.dictionaries(st.sampled_from([STORE, OTHER]), st.integers(1, 20)), st.none() | st.integers(0, 9))
def test_nothing_needed_goes_and_a_wider_horizon_takes_no_less(
    segments: list[SegmentSummary], stores: dict[StoreId, int], before: int | None
) -> None:
    horizon = TrimHorizon(stores, 2, before)
    gone = set(removable_segments(segments, horizon))
    for segment in segments:
        if str(segment.name) in gone:
            assert all(store in stores and version < stores[store] for store, version in segment.commits.items())
            assert segment.output_batch is None or (before is not None and segment.output_batch < before)
    wider = dataclasses.replace(horizon, stores={store: version + 3 for store, version in stores.items()})
    assert gone <= set(removable_segments(segments, wider))


def _log() -> tuple[Storage, Catalog]:
    storage = memory_storage()
    append_commits(make_writer(storage, 1, OLD), range(1, 11))
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    return storage, catalog


def _versions(catalog: Catalog) -> list[int]:
    return [entry.meta.version for entry in catalog.index.commits(STORE, 0, 100)]


def test_trimming_deletes_and_forgets() -> None:
    storage, catalog = _log()
    removed = trim(storage, catalog.index, TrimHorizon({STORE: 7}, 2))
    assert removed == [str(SegmentName(OLD, seq)) for seq in range(6)]
    assert _versions(catalog) == [7, 8, 9, 10]
    assert [file.name for file in list_segments(storage)] == [str(SegmentName(OLD, seq)) for seq in range(6, 10)]
    assert trim(storage, catalog.index, TrimHorizon({STORE: 7}, 2)) == []
    fresh = Catalog(storage, MemoryIndex(LOG_ID))
    fresh.refresh()
    assert _versions(fresh) == [7, 8, 9, 10]


def test_the_live_writer_goes_on_after_trimming() -> None:
    storage = memory_storage()
    writer = make_writer(storage, writer_id=NEW)
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(1, generation=2), payload_of(1)))
    assert trim(storage, catalog.index, TrimHorizon({STORE: 100}, 2)) == []
    catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(2, generation=2), payload_of(2)))
    assert _versions(catalog) == [1, 2]


def test_what_the_index_has_not_seen_stays() -> None:
    storage, catalog = _log()
    path = segment_path(str(SegmentName(OLD, 0)))
    storage.replace(path, storage.read(path) + frame_bytes(commit_meta(50), payload_of(50)))
    append_commits(make_writer(storage, writer_id=NEW), [51])
    removed = trim(storage, catalog.index, TrimHorizon({STORE: 3}, 2))
    assert removed == [str(SegmentName(OLD, 1))]
    catalog.refresh()
    assert {50, 51} <= set(_versions(catalog))


@pytest.mark.parametrize(("tail", "goes"), [(b"\x89CECFRM", True), (bytes(100), True), (b"rubbish", False)])
def test_a_torn_tail_goes_and_a_corrupt_one_stays(tail: bytes, goes: bool) -> None:
    storage = memory_storage()
    put_segment(storage, segment_bytes([frame_bytes(commit_meta(1), payload_of(1))]) + tail)
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    assert trim(storage, catalog.index, TrimHorizon({STORE: 5}, 2)) == ([SEGMENT] if goes else [])


def _with_output() -> tuple[Storage, Catalog]:
    storage = memory_storage()
    writer = make_writer(storage, 1, OLD)
    for batch in range(6):
        meta = output_meta(batch, batch=batch)
        writer.append(FrameKind.OUTPUT, meta, b"rows")
        publish(storage, Manifest(batch, (meta.frame_id.hex(),), 3, "{}", False, 1, 7))
    catalog = Catalog(storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    return storage, catalog


def test_output_stays_without_retention() -> None:
    storage, catalog = _with_output()
    assert trim(storage, catalog.index, TrimHorizon({}, 2)) == []
    assert batches(storage) == list(range(6))


@pytest.mark.parametrize("where", ["spark_cec.log.storage._DELETED_AT_ONCE", "spark_cec.log.manifest.delete_until"])
def test_a_long_trimming_goes_on_with_the_next_call_and_output_stays_with_its_manifest(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first one after `output.retainBatches` was set: the JVM takes an agent for dead that does not answer."""
    two = 2 if where.endswith("AT_ONCE") else lambda storage, paths, end: delete_until(storage, paths[:2], end)
    monkeypatch.setattr(where, two)
    monkeypatch.setattr("spark_cec.log.trim.MOST_S", 0.0)
    storage, catalog = _with_output()
    for left in ([2, 3, 4, 5], [4, 5], [5], [5]):
        trim(storage, catalog.index, TrimHorizon({}, 2, output_before=5))
        assert batches(storage) == left
        assert all(catalog.index.outputs(batch) for batch in left)
    assert [batch for batch in range(6) if catalog.index.outputs(batch)] == [5]


@pytest.mark.parametrize(("before", "left"), [(0, [0, 1, 2, 3, 4, 5]), (4, [4, 5]), (5, [5]), (6, [5]), (100, [5])])
def test_output_and_its_manifests_go_together_but_never_the_newest(before: int, left: list[int]) -> None:
    storage, catalog = _with_output()
    removed = trim(storage, catalog.index, TrimHorizon({}, 2, output_before=before))
    assert len(removed) == 6 - len(left)
    assert batches(storage) == left
    for batch in range(6):
        assert bool(catalog.index.outputs(batch)) == (batch in left)
