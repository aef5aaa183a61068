"""One commit in the agent: what it writes and answers, and a failure at every storage call of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_cec.checkpoint.commit_frames import CommitRequest, CommitResult, LedgerMissing, StoreLedgers
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.errors import CecError, DamagedLog
from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.index import MemoryIndex
from spark_cec.log.reader import commit_records, read_frame, verify
from spark_cec.settings import ExtentBound, Settings
from tests.checkpoint.support import Log, Rows, Tip, found_state, record_table, request
from tests.log.support import LOG_ID, CannotAppend, Crash, Fault, FaultyStorage, memory_storage

STORE = StoreId(0, 3)
BATCHES: tuple[tuple[dict[bytes, Rows], set[bytes]], ...] = (
    ({b"a": {b"a": b"1"}, b"b": {b"b": b"1"}}, set()),
    ({b"a": {b"a": b"2"}, b"c": {b"c": b"1"}}, set()),
    ({b"b": {}}, {b"a"}),
    ({}, set()),
    ({b"c": {b"c": b"3"}, b"b": {b"b": b"4"}}, set()),
)


def commit(log: Log, before: Tip, batch: int, *, whole: bool, inputs: int = 5) -> tuple[Tip, CommitResult]:
    after, records = before.next(*BATCHES[batch])
    sent = request(STORE, before, after, records, False, whole=whole, inputs=inputs)
    return after, log.commit(sent, record_table(False, records))


def run_all(log: Log) -> list[tuple[Tip, CommitResult]]:
    done: list[tuple[Tip, CommitResult]] = [commit(log, Tip(), 0, whole=True)]
    for batch in range(1, len(BATCHES)):
        done.append(commit(log, done[-1][0], batch, whole=False))
    return done


def test_a_commit_is_a_frame_with_its_numbers() -> None:
    log = Log()
    results = [result for _, result in run_all(log)]
    numbers = [
        (
            r.entry.meta.records,
            r.entry.meta.extent,
            r.entry.meta.replay,
            r.entry.meta.oldest_footprint,
            r.entry.meta.dirty_from,
        )
        for r in results
    ]
    assert numbers == [(2, 2, 0, 1, 1), (1, 3, 5, 1, 1), (2, 3, 0, 2, 3), (0, 3, 0, 2, 4), (1, 4, 5, 2, 4)]
    for result in results:
        meta = result.entry.meta
        assert (
            meta.records
            == meta.opened + meta.checked + meta.closed
            == commit_records(read_frame(log.storage, result.entry.location)).num_rows
        )
        assert log.catalog.index.commit(STORE, meta.version, meta.checkpoint_id) == result.entry
        assert result.plan.version == meta.version


def test_the_plan_follows_the_settings_of_the_moment() -> None:
    log = Log()
    tip, result = commit(log, Tip(), 0, whole=True)
    assert result.plan.replay_bound == 1_000_000
    log.settings = Settings(ExtentBound(records=9), 3)
    _, result = commit(log, tip, 1, whole=False)
    assert (result.plan.replay_bound, result.plan.extent_records) == (3, 9)


def test_without_a_ledger_the_whole_of_it_is_asked_for() -> None:
    log = Log()
    tip, _ = commit(log, Tip(), 0, whole=True)
    log.ledgers = StoreLedgers()
    before = len(log.catalog.index.commits(STORE, 0, 99))
    with pytest.raises(LedgerMissing, match=r"store 0/3/default version 2: .*send the whole ledger"):
        commit(log, tip, 1, whole=False)
    assert len(log.catalog.index.commits(STORE, 0, 99)) == before
    undisturbed = run_all(Log())
    again, result = commit(log, tip, 1, whole=True)
    wanted = undisturbed[1][1]
    meta, wanted_meta = result.entry.meta, wanted.entry.meta
    assert (meta.extent, meta.replay, result.plan) == (wanted_meta.extent, wanted_meta.replay, wanted.plan)
    commit(log, again, 2, whole=False)


def test_the_ledger_of_another_attempt_does_not_serve() -> None:
    """A zombie's changes on top of a ledger that its successor has moved would be counted wrongly."""
    log = Log()
    tip, _ = commit(log, Tip(), 0, whole=True)
    commit(log, tip, 1, whole=False)
    with pytest.raises(LedgerMissing):
        commit(log, tip, 1, whole=False)
    with pytest.raises(LedgerMissing):
        commit(log, tip, 1, whole=False)
    rival, result = commit(log, tip, 1, whole=True)
    assert (result.entry.meta.extent, result.entry.meta.replay) == (3, 5)
    commit(log, rival, 2, whole=False)


def test_a_ledger_that_disagrees_is_refused_and_stays_open() -> None:
    log = Log()
    tip, _ = commit(log, Tip(), 0, whole=True)
    after, records = tip.next(*BATCHES[1])
    sent = request(STORE, tip, after, records, False, whole=False)
    wrong = replace(sent, meta=replace(sent.meta, open_windows=7))
    with pytest.raises(ValueError, match="store 0/3/default version 2: 7 open windows, the ledger has 3"):
        log.commit(wrong, record_table(False, records))
    assert log.catalog.index.newest(STORE, 99)[-1].meta.version == 1
    with pytest.raises(LedgerMissing):
        log.commit(sent, record_table(False, records))


def test_a_base_that_is_lost_is_named() -> None:
    log = Log()
    after, records = Tip(4, bytes(15) + b"x").next(*BATCHES[0])
    sent = request(STORE, Tip(4, bytes(15) + b"x"), after, records, False, whole=True)
    with pytest.raises(
        DamagedLog, match="store 0/3/default: the commit frame of version 4, the base of a commit, is lost"
    ):
        log.commit(sent, record_table(False, records))


def test_a_first_commit_rests_on_nothing() -> None:
    _, result = commit(Log(), Tip(), 0, whole=True)
    assert result.entry.meta.base_checkpoint_id == NO_CHECKPOINT


def survive(storage: FaultyStorage) -> tuple[list[Tip], Tip, list[CommitRequest]]:
    """All batches on a storage that fails once; the same process makes a new attempt of what failed."""
    log = Log(storage, segment_bytes=700)
    tip, acknowledged, failed = Tip(), [], []
    whole = True
    for batch in range(len(BATCHES)):
        for _ in range(3):
            after, records = tip.next(*BATCHES[batch])
            sent = request(STORE, tip, after, records, False, whole=whole)
            try:
                log.commit(sent, record_table(False, records))
            except (CecError, OSError):
                whole = True
                failed.append(sent)
            else:
                whole = False
                break
        else:
            raise AssertionError(f"batch {batch} never went through")
        tip = after
        acknowledged.append(tip)
    return acknowledged, tip, failed


def calls_of_a_run(storage: FaultyStorage) -> int:
    survive(storage)
    return storage.fault.calls


@pytest.mark.parametrize("appends", [True, False], ids=["appending", "whole objects"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_an_error_at_any_storage_call_loses_nothing(when: str, appends: bool) -> None:
    kind = FaultyStorage if appends else CannotAppend
    calls = calls_of_a_run(kind(memory_storage()))
    assert calls >= len(BATCHES)
    for call in range(2, calls + 1):
        fault = Fault(call, when, error=lambda: OSError("the disk is on fire"))
        storage = kind(memory_storage(), fault)
        acknowledged, _, failed = survive(storage)
        assert fault.tripped, f"call {call}"
        assert failed, f"call {call} failed without a word: {fault.seen}"
        check_all(storage, acknowledged, f"call {call} ({fault.seen[call - 1]}), {when}")


def check_all(storage: FaultyStorage, acknowledged: list[Tip], where: str, *, clean: bool = True) -> None:
    """A new process finds every acknowledged commit, and the eventual checkpoint of each."""
    catalog = Catalog(storage.inner, MemoryIndex(LOG_ID))
    catalog.refresh()
    for tip in acknowledged:
        head = head_at(catalog.index, STORE, tip.version, tip.checkpoint_id)
        assert found_state(rebuild(storage.inner, catalog.index, head), False) == (tip.seen, tip.footprints), where
    if acknowledged:
        newest = head_at(catalog.index, STORE, acknowledged[-1].version)
        assert newest.meta.version == acknowledged[-1].version, where
    assert verify(storage.inner).clean or not clean, where


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_crash_at_any_storage_call_loses_nothing_acknowledged(when: str, zeros: bool) -> None:
    calls = calls_of_a_run(FaultyStorage(memory_storage()))
    for call in range(2, calls + 1):
        storage = FaultyStorage(memory_storage(), Fault(call, when, zeros))
        acknowledged: list[Tip] = []
        log = Log(storage, segment_bytes=700)
        try:
            for batch in range(len(BATCHES)):
                tip, _ = commit(log, acknowledged[-1] if acknowledged else Tip(), batch, whole=batch == 0)
                acknowledged.append(tip)
        except Crash:
            # Zeros where a crash cut a payload off are bytes like any other: damage, of nothing acknowledged.
            check_all(storage, acknowledged, f"call {call}, {when}", clean=not zeros)
        else:
            assert not storage.fault.tripped or when == "after", f"call {call}"
