"""The numbers of a query's runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import KEPT, begin_generation, has_committed, newest_generation, next_generation
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


def test_a_file_that_is_no_runs_is_passed_over() -> None:
    """As an editor leaves one."""
    own = memory_storage()
    next_generation(own)
    own.create("generations/0000000002.json~", b"")
    own.create("generations/notes.json", b"")
    assert next_generation(own) == 2
