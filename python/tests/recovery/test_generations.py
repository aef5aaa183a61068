"""The numbers of a query's runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import (
    KEPT,
    begin_generation,
    has_committed,
    newest_generation,
    next_generation,
    note_held,
)
from tests.log.support import Fault, FaultyStorage, memory_storage


def numbers(own: Storage) -> list[int]:
    return [int(file.name.removesuffix(".json")) for file in own.list("generations")]


def test_runs_are_numbered_from_one_on() -> None:
    own = memory_storage()
    assert newest_generation(own) == 0
    assert [next_generation(own) for _ in range(3)] == [1, 2, 3]
    assert newest_generation(own) == 3


def test_old_runs_leave_nothing_but_the_first_which_says_since_when_the_query_is_watched() -> None:
    own = memory_storage()
    for wanted in range(1, 4 * KEPT):
        assert next_generation(own) == wanted
    assert numbers(own) == [1, *range(3 * KEPT, 4 * KEPT)]


def test_no_number_is_given_twice() -> None:
    own = memory_storage()
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: next_generation(own), range(5 * KEPT)))
    assert len(set(given)) == 5 * KEPT
    assert newest_generation(own) == max(given)


@pytest.mark.parametrize("call", range(1, 6))
def test_a_number_whose_run_did_not_begin_is_given_back(call: int) -> None:
    """As on a full disk: a first run without a note would hide for good since when the query is watched."""
    own = memory_storage()
    fault = Fault(call, error=lambda: OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        begin_generation(FaultyStorage(own, fault), lambda: 4)
    assert begin_generation(own, lambda: 4) == 1
    assert has_committed(own, 5) and not has_committed(own, 4)


def test_a_first_run_that_died_before_its_note_hides_nothing() -> None:
    """As by a kill between the two: the file of the first run stays for ever."""
    own = memory_storage()
    own.create("generations/0000000001.json", b'{"started_unix_ms": 1}')
    assert not has_committed(own, 5)
    begin_generation(own, lambda: -1)
    assert has_committed(own, 0) and not has_committed(own, -1)


def run_once(own: Storage, committed: int) -> int:
    """A run that began after that batch, and took the lease."""
    generation = begin_generation(own, lambda: committed)
    note_held(own, generation)
    return generation


def die_early(own: Storage) -> None:
    """As by a kill right after the start took its number."""
    next_generation(own, held=False)


@pytest.mark.parametrize("first_end", [4, 9])
def test_the_run_with_the_last_commit_stays_in_a_crash_loop(first_end: int) -> None:
    """Its attempts at the last batch count, and those of the runs before it do not."""
    own = memory_storage()
    began = [-1, 2, first_end, *[9] * (3 * KEPT)]
    for committed in began:
        generation = run_once(own, committed)
    assert generation == len(began)
    left = numbers(own)
    wanted = 3 if first_end == 4 else 2
    assert left[:2] == [1, wanted] and left[2:] == list(range(left[2], generation + 1)) and len(left) <= KEPT + 3
    run_once(own, 10)
    for _ in range(KEPT):
        run_once(own, 11)
    assert wanted not in numbers(own), "a later run has the last commit"


@pytest.mark.parametrize("died", ["right after it", "as the newest", "all"])
def test_starts_that_died_early_do_not_hide_the_run_with_the_last_commit(died: str) -> None:
    own = memory_storage()
    for committed in (-1, 2, 4):
        run_once(own, committed)
    if died == "right after it":
        die_early(own)
    for _ in range(KEPT):
        die_early(own) if died == "all" else run_once(own, 9)
    if died == "as the newest":
        die_early(own)
    run_once(own, 9)
    assert 3 in numbers(own)
    assert (2 in numbers(own)) == (died == "all"), "then no file tells whether run 3 committed anything"


def test_a_start_that_spark_refused_does_not_hide_the_run_with_the_last_commit() -> None:
    """Run 3 lost its lease to that start before its last commit."""
    own = memory_storage()
    for committed in (-1, 2, 4):
        run_once(own, committed)
    for committed in (8, *[9] * KEPT):
        begin_generation(own, lambda committed=committed: committed)  # type: ignore[misc]
    assert numbers(own)[:2] == [1, 3]


def test_a_file_that_is_no_runs_is_passed_over() -> None:
    """As an editor leaves one."""
    own = memory_storage()
    next_generation(own)
    own.create("generations/0000000002.json~", b"")
    own.create("generations/notes.json", b"")
    assert next_generation(own) == 2
