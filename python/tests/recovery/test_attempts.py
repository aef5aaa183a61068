"""Which of several attempts at a version may be the one that Spark committed."""

from __future__ import annotations

import json

import pytest

from spark_cec.checkpoint.eventual import head_at
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId, new_id
from spark_cec.log.frame import FrameKind
from spark_cec.log.output_rollbacks import Cut
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import CommittedAttempts, newest_allowed
from spark_cec.recovery.generations import KEPT, next_generation, record_start
from spark_cec.recovery.spark_logs import committed_ids
from tests.checkpoint.support import Log
from tests.log.support import commit_meta, memory_storage

STORE = StoreId(0, 1)


def runs(*began_after: int | None) -> Storage:
    """Runs 1, 2, …: the batch after which each began; None: it did not say."""
    own = memory_storage()
    for committed in began_after:
        generation = next_generation(own)
        if committed is not None:
            record_start(own, generation, committed)
    return own


@pytest.mark.parametrize(
    ("began_after", "version", "least"),
    [
        pytest.param((-1,), 5, 1, id="one run"),
        pytest.param((-1, 3), 4, 1, id="batch 3 was committed when the second began"),
        pytest.param((-1, 3), 5, 2, id="batch 4 was not"),
        pytest.param((-1, 3, 3, 3), 5, 4, id="the last of those that may have run it"),
        pytest.param((-1, 3, 3, 4), 5, 3, id="not one that began behind it"),
        pytest.param((-1, 3, None), 5, 2, id="a run that did not say may have been before"),
        pytest.param((None, None), 5, 0, id="nobody said"),
        pytest.param((-1, 3, 6, 6, 2), 5, 5, id="Spark's commits were cut"),
        pytest.param((-1,), 1, 1, id="the first version"),
    ],
)
def test_the_oldest_run_whose_attempt_counts(began_after: tuple[int | None, ...], version: int, least: int) -> None:
    attempts = CommittedAttempts(memory_storage(), runs(*began_after), (), 9)
    assert attempts.least_generation(version) == least


def test_files_of_old_runs_that_are_gone_forbid_nothing() -> None:
    own = runs(-1, *range(3, 3 + KEPT + 5))
    assert CommittedAttempts(memory_storage(), own, (), 50).least_generation(5) == 1, "the first one's file stays"


@pytest.mark.parametrize(("lost", "found"), [((), 2), ((2,), None)])
def test_an_earlier_attempt_does_not_stand_in_for_a_lost_one(lost: tuple[int, ...], found: int | None) -> None:
    log = Log()
    for generation in (1, 2):
        if generation not in lost:
            meta = commit_meta(5, store=STORE, generation=generation, checkpoint_id=new_id())
            log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    allows = CommittedAttempts(memory_storage(), runs(-1, 3, 4), (), 4).allows
    if found is not None:
        assert head_at(log.catalog.index, STORE, 5, allows=allows).meta.generation == found
        return
    with pytest.raises(DamagedLog, match=r"frame of version 5 is lost: .* by run 1, and Spark has not committed"):
        head_at(log.catalog.index, STORE, 5, allows=allows)


def test_of_one_runs_attempts_that_counts_which_spark_names() -> None:
    log, ids, checkpoint = Log(), [new_id(), new_id()], memory_storage()
    for each in ids:
        meta = commit_meta(5, store=STORE, generation=1, checkpoint_id=each)
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    named = {"stateUniqueIds": {"0": [["00"], [ids[0].hex(), "01"]]}}
    checkpoint.replace("commits/4", b"v2\n" + json.dumps(named).encode())
    allows = CommittedAttempts(checkpoint, runs(-1), (), 4).allows
    assert head_at(log.catalog.index, STORE, 5, allows=allows).meta.checkpoint_id == ids[0]
    (other,) = [e for e in log.catalog.index.commits(STORE, 5, 5) if e.meta.checkpoint_id == ids[1]]
    assert not allows(other)
    assert not CommittedAttempts(checkpoint, runs(-1), (), 5).allows(other), "a start may begin at V (writeAt=async)"
    assert CommittedAttempts(checkpoint, runs(-1), (), 6).allows(other), "older ids are not read"


@pytest.mark.parametrize("committed", [4, 5])
@pytest.mark.parametrize(
    ("lost", "is_named", "found"),
    [
        pytest.param(None, True, 1, id="the id decides"),
        pytest.param(1, True, None, id="the later run's does not stand in for it"),
        pytest.param(None, False, 2, id="without ids the later run counts"),
    ],
)
def test_a_run_that_committed_after_a_later_one_began(
    committed: int, lost: int | None, is_named: bool, found: int | None
) -> None:
    """Run 1 was paused in the commit of batch 4, and run 2 has run that batch, whose commit Spark refused."""
    log, ids, checkpoint = Log(), {1: new_id(), 2: new_id()}, memory_storage()
    for generation, each in ids.items():
        if generation != lost:
            meta = commit_meta(5, store=STORE, generation=generation, checkpoint_id=each)
            log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    named = {"stateUniqueIds": {"0": [["00"], [ids[1].hex()]]} if is_named else None}
    checkpoint.replace("commits/4", b"v2\n" + json.dumps(named).encode())
    allows = CommittedAttempts(checkpoint, runs(-1, 3), (), committed).allows
    if found is not None:
        assert head_at(log.catalog.index, STORE, 5, allows=allows).meta.generation == found
        return
    with pytest.raises(DamagedLog, match=r"by run 2, and Spark has not committed that attempt, but another one"):
        head_at(log.catalog.index, STORE, 5, allows=allows)


def test_a_rollback_takes_back_what_spark_names() -> None:
    """As a run leaves it that was paused, and goes on after the rollback."""
    log, number, checkpoint = Log(), new_id(), memory_storage()
    meta = commit_meta(7, store=STORE, generation=1, checkpoint_id=number)
    log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    named = {"stateUniqueIds": {"0": [["00"], [number.hex()]]}}
    checkpoint.replace("commits/6", b"v2\n" + json.dumps(named).encode())
    (entry,) = log.catalog.index.commits(STORE, 7, 7)
    assert CommittedAttempts(checkpoint, runs(-1), (), 6).allows(entry)
    assert not CommittedAttempts(checkpoint, runs(-1), (CUT,), 6).allows(entry)


def test_what_spark_calls_the_state_of_a_store() -> None:
    checkpoint = memory_storage()
    named = {"stateUniqueIds": {"0": [["a0"], ["a1"]], "1": [["b0", "b1", "b2", "b3"]]}}
    checkpoint.replace("commits/4", b"v2\n" + json.dumps(named).encode())
    attempts = CommittedAttempts(checkpoint, runs(-1), (), 4)
    right, unknown = StoreId(1, 0, "right-keyToNumValues"), StoreId(2, 0, "default")
    assert [attempts.committed_id(store, 5) for store in (STORE, right, unknown)] == ["a1", "b2", None]
    assert attempts.committed_id(right, 4) is None, "only the ids of V are known"


@pytest.mark.parametrize(
    "text", ['v1\n{"nextBatchWatermarkMs":0}', "v2\n{", "", "v2\n[]", 'v2\n{"stateUniqueIds":null}']
)
def test_entries_without_ids_forbid_nothing(text: str) -> None:
    checkpoint = memory_storage()
    checkpoint.replace("commits/4", text.encode())
    assert committed_ids(checkpoint, 4) == {}
    assert committed_ids(checkpoint, 5) == {}


CUT = Cut(0, 5, 3, 0)
"""Run 3 is a rollback to the end of batch 5."""


@pytest.mark.parametrize(
    ("version", "generation", "counts"),
    [
        pytest.param(6, 1, True, id="what the batch has left that it went back to"),
        pytest.param(7, 1, False, id="what came after that"),
        pytest.param(9, 2, False, id="long after that"),
        pytest.param(7, 4, True, id="what comes anew"),
        pytest.param(9, 4, True, id="for who looks at a batch that runs"),
    ],
)
def test_what_a_rollback_has_taken_back_counts_for_nobody(version: int, generation: int, counts: bool) -> None:
    """Also when nobody knows any more when the runs began."""
    log = Log()
    meta = commit_meta(version, store=STORE, generation=generation, checkpoint_id=new_id())
    log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    (entry,) = log.catalog.index.commits(STORE, version, version)
    attempts = CommittedAttempts(memory_storage(), memory_storage(), (CUT,), 6)
    assert (attempts.allows(entry), attempts.allows_read(entry)) == (counts, counts)


def test_the_newest_attempt_that_counts() -> None:
    """Run 1 has come to version 9, and run 4, behind a rollback to version 6, to version 7, which it made twice."""
    log, ids = Log(), {}
    for generation, versions in ((1, range(1, 10)), (4, (7, 7))):
        for version in versions:
            ids[generation, version] = new_id()
            meta = commit_meta(version, store=STORE, generation=generation, checkpoint_id=ids[generation, version])
            log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    attempts = CommittedAttempts(memory_storage(), runs(-1, None, 5, 5), (CUT,), 6)
    for allows in (attempts.allows, attempts.allows_read):
        found = newest_allowed(log.catalog.index, STORE, allows)
        assert found is not None and found.meta.checkpoint_id == ids[4, 7]
    of_all = newest_allowed(log.catalog.index, STORE, lambda _: True)
    assert of_all is not None and of_all.meta.version == 9
    assert newest_allowed(log.catalog.index, STORE, lambda _: False) is None
    assert newest_allowed(log.catalog.index, StoreId(7, 7), attempts.allows) is None
