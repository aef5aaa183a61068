"""Logs that borrow segments: what they show of the other log, and that they never change it."""

from __future__ import annotations

import pytest

from spark_cec.errors import AlreadyExists, DamagedLog
from spark_cec.log.borrowed import LOAN_FILE, Borrowed, Loan, read_loan, show_borrowed
from spark_cec.log.bundles import Bundles
from spark_cec.log.home import WITH_LOAN, begin_fork, join_log, note_bundles, read_log_file, restore_log
from spark_cec.log.segment import SEGMENTS
from spark_cec.log.storage import Storage, StoredFile
from tests.log.storage_contract import StorageContract
from tests.log.support import LOG_ID, memory_storage


class TestBorrowed(StorageContract):
    """A log without a loan is as any other storage."""

    @pytest.fixture
    def storage(self) -> Storage:
        return Borrowed(memory_storage(), memory_storage(), Loan("memory://other", {}))


@pytest.fixture
def lender() -> Storage:
    made = memory_storage()
    made.create(f"{SEGMENTS}/a", b"0123456789")
    made.create(f"{SEGMENTS}/b", b"abc")
    return made


@pytest.fixture
def fork(lender: Storage) -> Borrowed:
    own = memory_storage()
    begin_fork(own, LOG_ID, Loan("memory://lender", {"a": 4, "b": 3}))
    return show_borrowed(own, lambda _: lender)


def test_a_fork_shows_what_was_there_then(fork: Borrowed, lender: Storage) -> None:
    lender.replace(f"{SEGMENTS}/c", b"later")
    assert fork.list(SEGMENTS) == [StoredFile("a", 4), StoredFile("b", 3)]
    assert fork.read(f"{SEGMENTS}/a") == b"0123" and fork.size(f"{SEGMENTS}/a") == 4
    assert fork.read(f"{SEGMENTS}/a", 2, 9) == b"23" and fork.read(f"{SEGMENTS}/a", 7) == b""
    assert fork.exists(f"{SEGMENTS}/b") and not fork.exists(f"{SEGMENTS}/c")


def test_a_fork_never_changes_the_other_log(fork: Borrowed, lender: Storage) -> None:
    fork.create(f"{SEGMENTS}/d", b"own")
    fork.delete_all([f"{SEGMENTS}/a", f"{SEGMENTS}/d"])
    fork.replace(f"{SEGMENTS}/b", b"repaired")
    assert fork.list(SEGMENTS) == [StoredFile("b", 8)] and fork.read(f"{SEGMENTS}/b") == b"repaired"
    assert not fork.exists(f"{SEGMENTS}/a") and not fork.exists(f"{SEGMENTS}/d")
    assert lender.list(SEGMENTS) == [StoredFile("a", 10), StoredFile("b", 3)]


def test_a_segment_that_the_other_log_has_deleted_is_missed(fork: Borrowed, lender: Storage) -> None:
    lender.delete(f"{SEGMENTS}/a")
    assert not fork.exists(f"{SEGMENTS}/a")
    with pytest.raises(FileNotFoundError):
        fork.read(f"{SEGMENTS}/a")


def test_an_earlier_release_does_not_take_a_fork_for_a_whole_log(fork: Borrowed) -> None:
    found = read_log_file(fork)
    assert found is not None and found.borrows and found.version == WITH_LOAN and found.log_id == LOG_ID
    note_bundles(fork)
    restore_log(Bundles(fork), LOG_ID)
    assert read_log_file(fork) == found, "with bundles, or after a repair, it still borrows"
    other = memory_storage()
    join_log(other, LOG_ID)
    assert (plain := read_log_file(other)) is not None and not plain.borrows


def test_a_damaged_loan_is_refused(fork: Borrowed) -> None:
    with pytest.raises(AlreadyExists):
        begin_fork(fork, LOG_ID, Loan("memory://lender", {}))
    content = fork.read(LOAN_FILE)
    for damaged in (content.replace(b'"a":4', b'"a":9'), content[:-3], b"{}"):
        fork.replace(LOAN_FILE, damaged)
        with pytest.raises(DamagedLog):
            read_loan(fork)
