"""Forks: what they copy, what they borrow, and that the first query's files stay as they are."""

from __future__ import annotations

import json

import pytest

from spark_cec.log.borrowed import Loan, read_loan
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.home import read_log_file
from spark_cec.log.storage import Listing, Storage
from spark_cec.recovery.facts import Places
from spark_cec.recovery.fork import ForkError, fork_query
from tests.log.support import LOG_ID, memory_storage

ENTRY = b'v1\n{"batchWatermarkMs":0}\n{"batch":7}\n{"batch":9}\n'


def all_files(storage: Storage) -> set[str]:
    directories = ("", "offsets", "commits", "state/0/_metadata", "state/0/0/_metadata", "sources/1", "generations")
    found = {f"{each}/{file.name}".lstrip("/") for each in directories for file in storage.list(each)}
    return found | {f"cuts/{file.name}" for file in storage.list("cuts")}


@pytest.fixture
def source() -> Places:
    """A query that has committed batch 2, and runs batch 3."""
    places = Places(memory_storage(), memory_storage(), memory_storage())
    for batch in range(4):
        places.checkpoint.create(f"offsets/{batch}", ENTRY)
        if batch < 3:
            places.checkpoint.create(f"commits/{batch}", b"v1\n{}")
    places.checkpoint.create("metadata", b'{"id":"first"}')
    for path in ("state/0/_metadata/metadata", "state/0/0/_metadata/schema", "sources/1/0"):
        places.checkpoint.create(path, path.encode())
    places.own.create("query.json", json.dumps({"log_home": "log", "log_id": LOG_ID, "generation": 4}).encode())
    for path in ("session.json", "generations/0000000004.json", "lock", "flush.json"):
        places.own.create(path, path.encode())
    places.log.create("segments/000000000001-0123456789abcdef-00000000.cec", b"12345")
    places.log.create("cuts/00000000.json", b"cut")
    places.log.create("manifests/00000000000000000002.json", b"manifest")
    return places


def test_a_fork_has_the_past_of_the_query_and_an_id_of_its_own(source: Places) -> None:
    before = [all_files(each) for each in (source.checkpoint, source.own, source.log)]
    target = Places(memory_storage(), memory_storage(), memory_storage())
    assert fork_query(source, target, "memory://log", "log") == 2
    assert all_files(target.checkpoint) == {
        *(f"{log}/{batch}" for log in ("offsets", "commits") for batch in range(3)), "metadata",
        "state/0/_metadata/metadata", "state/0/0/_metadata/schema", "sources/1/0",
    }  # fmt: skip
    assert json.loads(target.checkpoint.read("metadata"))["id"] != "first"
    assert all_files(target.own) == {"query.json", "session.json", "generations/0000000004.json"}
    assert all_files(target.log) == {"log.json", "borrowed.json", "cuts/00000000.json"}
    found = read_log_file(target.log)
    assert found is not None and found.log_id == LOG_ID and found.borrows
    sizes = {"000000000001-0123456789abcdef-00000000.cec": 5}
    assert read_loan(target.log) == Loan("memory://log", sizes, 2)
    assert [all_files(each) for each in (source.checkpoint, source.own, source.log)] == before


def test_a_query_that_has_committed_nothing_has_no_past(source: Places) -> None:
    target = Places(memory_storage(), memory_storage(), memory_storage())
    empty = Places(memory_storage(), source.own, source.log)
    assert fork_query(empty, target, "memory://log", "log") == -1
    assert not all_files(target.checkpoint) and not all_files(target.log)


def test_a_query_that_commits_all_the_time_is_not_forked(source: Places) -> None:
    """Its log may have frames that no crash after V can leave."""

    class Commits(DelegatingStorage):
        batch = 3

        def list(self, directory: str) -> Listing:
            if directory == "segments":
                source.checkpoint.replace(f"commits/{self.batch}", b"v1\n{}")
                source.checkpoint.replace(f"offsets/{self.batch}", ENTRY)
                self.batch += 1
            return super().list(directory)

    moving = Places(source.checkpoint, source.own, Commits(source.log))
    with pytest.raises(ForkError, match="commits batches too fast to be forked"):
        fork_query(moving, Places(memory_storage(), memory_storage(), memory_storage()), "memory://log", "log")
