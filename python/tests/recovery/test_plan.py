"""The recovery plan: V, T, and the recording of a recovery that was cut short."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.ids import StoreId, new_id
from spark_cec.index import Index
from spark_cec.log.frame import FrameKind
from spark_cec.log.storage import Storage
from spark_cec.recovery.plan import (
    REPLAY_FILE,
    Recording,
    check_recording,
    make_plan,
    pending_recording,
    save_recording,
)
from tests.checkpoint.support import Log
from tests.log.support import Fault, FaultyStorage, commit_meta, memory_storage

FIRST, SECOND = StoreId(0, 0), StoreId(1, 0)
RECORDING = Recording(9, 5, {6: ("a", None), 7: ("b", '{"x": 1}'), 10: ("c", "d")})


def index_of(*commits: tuple[StoreId, int, int, int]) -> Index:
    """(store, version, D, generation) each."""
    log = Log()
    for wall_ms, (store, version, dirty_from, generation) in enumerate(commits):
        meta = commit_meta(
            version, store=store, dirty_from=dirty_from, generation=generation, checkpoint_id=new_id(), wall_ms=wall_ms
        )
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    return log.catalog.index


@pytest.mark.parametrize(
    ("commits", "last_commit", "committed", "rewound_to"),
    [
        pytest.param([], -1, -1, -1, id="nothing was ever committed"),
        pytest.param([], 4, 4, 4, id="no store: nothing to replay"),
        pytest.param([(FIRST, 1, 1, 1)], 0, 0, 0, id="clean"),
        pytest.param([(FIRST, 1, 0, 1)], 0, 0, -1, id="from the first batch on"),
        pytest.param([(FIRST, 5, 3, 1)], 4, 4, 2, id="batches 3 and 4"),
        pytest.param([(FIRST, 5, 5, 1), (SECOND, 5, 2, 1)], 4, 4, 1, id="the store that needs most decides"),
        pytest.param(
            [(FIRST, 5, 4, 1), (FIRST, 6, 1, 1)], 4, 4, 3, id="a version that spark did not commit has no say"
        ),
        pytest.param([(FIRST, 5, 1, 1), (FIRST, 5, 4, 2)], 4, 4, 3, id="nor has an older run"),
        pytest.param([(FIRST, 5, 4, 2), (FIRST, 5, 1, 1)], 4, 4, 3, id="nor its zombie"),
        pytest.param([(FIRST, 5, 2, 1), (FIRST, 5, 4, 1)], 4, 4, 1, id="any attempt of the newest run may be loaded"),
        pytest.param([(FIRST, 5, 4, 1), (FIRST, 5, 2, 1)], 4, 4, 1, id="whichever came last"),
    ],
)
def test_how_far_a_query_is_rewound(
    commits: list[tuple[StoreId, int, int, int]], last_commit: int, committed: int, rewound_to: int
) -> None:
    plan = make_plan(index_of(*commits), None, last_commit)
    assert (plan.committed_batch, plan.rewound_to) == (committed, rewound_to)
    assert plan.replayed_batches == committed - rewound_to
    assert len(plan.heads) == (len({store for store, *_ in commits}) if last_commit >= 0 else 0)


@pytest.mark.parametrize(
    ("commits", "newest"),
    [([(FIRST, 5, 5, 1), (SECOND, 4, 4, 1)], "4"), ([(FIRST, 5, 5, 1), (SECOND, 6, 6, 1)], "none")],
)
def test_a_store_that_lacks_a_committed_version_is_damage(
    commits: list[tuple[StoreId, int, int, int]], newest: str
) -> None:
    with pytest.raises(
        DamagedLog, match=rf"store 1/0/default: no commit frame of version 5; newest at or below it: {newest}"
    ):
        make_plan(index_of(*commits), None, 4)


def test_a_recovery_that_was_cut_short_is_planned_again_as_it_was() -> None:
    index = index_of((FIRST, 8, 8, 1), (FIRST, 10, 6, 1))
    plan = make_plan(index, RECORDING, 7)
    assert (plan.committed_batch, plan.rewound_to, plan.recording) == (9, 5, RECORDING)
    assert plan.heads[0].meta.version == 10


@pytest.mark.parametrize(
    ("last_commit", "last_offset", "pending"),
    [
        *((5, 6, True), (6, 7, True), (8, 9, True), (8, 10, True), (9, 9, True)),
        *((9, 10, False), (10, 10, False), (400, 401, False), (4, 5, False), (-1, -1, False)),
    ],
)
def test_a_recording_is_pending_until_both_logs_have_reached_its_end(
    last_commit: int, last_offset: int, pending: bool
) -> None:
    """An obsolete one is removed, so that it can never be obeyed later, should the numbers fit again."""
    storage = memory_storage()
    save_recording(storage, RECORDING)
    assert pending_recording(storage, range(last_commit + 1), last_offset) == (RECORDING if pending else None)
    assert storage.exists(REPLAY_FILE) == pending
    assert pending_recording(storage, range(8), 8) == (RECORDING if pending else None)


@pytest.mark.parametrize(
    ("commits", "pending"),
    [
        ({0, 5, 10}, True),
        ({5, 6, 7, 8, 10}, True),
        ({4, 5, 6, 7, 8, 9, 10}, False),
        ({8, 9, 10}, False),
        ({400, 401}, False),
    ],
)
def test_a_commit_by_a_run_that_was_thought_dead_does_not_end_the_recording(commits: set[int], pending: bool) -> None:
    """Such a run may write one more entry into the log that was cut; batches that Spark forgot are no gap."""
    storage = memory_storage()
    save_recording(storage, RECORDING)
    assert pending_recording(storage, commits, 11) == (RECORDING if pending else None)
    assert storage.exists(REPLAY_FILE) == pending


def test_a_recording_without_an_uncommitted_batch_ends_with_the_replay() -> None:
    storage = memory_storage()
    save_recording(storage, Recording(9, 5, {6: ("a",), 9: ("b",)}))
    assert pending_recording(storage, range(10), 9) is None


def test_without_a_recording_nothing_is_pending() -> None:
    assert pending_recording(memory_storage(), range(4), 3) is None


@given(
    st.integers(-1, 1 << 40),
    st.integers(-1, 1 << 40),
    st.dictionaries(st.integers(0, 1 << 40), st.lists(st.none() | st.text(), max_size=3).map(tuple)),
)
def test_a_recording_survives_its_text(
    committed: int, rewound_to: int, offsets: Mapping[int, tuple[str | None, ...]]
) -> None:
    recording = Recording(committed, rewound_to, offsets)
    assert Recording.from_json(recording.to_json()) == recording


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"committed_batch": 1}',
        '{"committed_batch": 1, "rewound_to": 0, "offsets": [1]}',
        '{"committed_batch": "x", "rewound_to": 0, "offsets": {}}',
        '{"committed_batch": 1, "rewound_to": 0, "offsets": {"x": []}}',
        '{"committed_batch": 1, "rewound_to": 0, "offsets": {"1": null}}',
    ],
)
def test_a_recording_that_cannot_be_read_stops_the_recovery(text: str) -> None:
    storage: Storage = memory_storage()
    storage.replace(REPLAY_FILE, text.encode())
    with pytest.raises(
        UnsuitableCheckpoint, match=r"cec/replay\.json cannot be read \(.*\): restore it from a copy of the checkpoint"
    ):
        pending_recording(storage, range(4), 4)
    assert storage.exists(REPLAY_FILE)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_recording_is_there_whole_or_not_at_all(when: str) -> None:
    storage = FaultyStorage(memory_storage(), Fault(1, when, error=lambda: OSError("no")))
    with pytest.raises(OSError, match="no"):
        save_recording(storage, RECORDING)
    assert pending_recording(storage.inner, range(7), 7) == (RECORDING if when == "after" else None)


@pytest.mark.parametrize(
    ("in_offset_log", "agrees"),
    [
        ({}, True),
        ({6: ["a", None]}, True),
        ({6: ("a", None), 7: ("b", '{"x": 1}')}, True),
        ({5: ["?"], 8: ["?"]}, True),
        ({6: ["A", None]}, False),
        ({6: ["a"]}, False),
        ({6: [None, "a"]}, False),
        ({6: ["a", None], 10: ["c", "D"]}, False),
    ],
)
def test_a_recording_must_agree_with_the_offset_log(in_offset_log: dict[int, list[str | None]], agrees: bool) -> None:
    if agrees:
        check_recording(RECORDING, in_offset_log)
        return
    batch = max(in_offset_log)
    with pytest.raises(
        UnsuitableCheckpoint, match=f"records offsets for batch {batch} that differ from Spark's offset log"
    ):
        check_recording(RECORDING, in_offset_log)
