"""Batches that had another sink: somebody says so, and their missing manifests are no loss any more."""

from __future__ import annotations

import pytest

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.log.manifest import (
    Manifest,
    batches,
    load,
    manifest_path,
    publish,
    restore_retirement,
    retire,
    take_back,
)
from spark_cec.log.other_sink import note_other_sink, plan_other_sink
from spark_cec.log.storage import Storage
from tests.log.support import Crash, Fault, FaultyStorage, memory_storage


def own(batch: int, generation: int = 1) -> Manifest:
    return Manifest(batch, (f"{batch:032x}",), 3, f"schema of {batch}", True, generation, 1_000 * batch)


def log(*published: int, generation: int = 3) -> Storage:
    """A log with the output of these batches; the last one is of that run."""
    storage = memory_storage()
    for batch in published:
        publish(storage, own(batch, generation if batch == published[-1] else 1))
    return storage


def note(storage: Storage, first: int, last: int) -> None:
    note_other_sink(storage, plan_other_sink(storage, range(first, last + 1)))


def test_the_batches_between_are_there_without_rows_and_the_others_are_unchanged() -> None:
    storage = log(0, 1, 2, 3, 8, 9)
    before = {batch: load(storage, batch) for batch in batches(storage)}
    note(storage, 4, 7)
    found = [load(storage, batch) for batch in batches(storage)]
    assert [each.batch for each in found] == list(range(10))
    assert {each.batch: each for each in found if not each.other_sink} == before
    noted = [each for each in found if each.other_sink]
    assert {(each.frames, each.rows, each.truncate, each.consumed) for each in noted} == {((), 0, False, ())}
    assert {each.schema_json for each in noted} == {"schema of 8"}
    assert [each.wall_ms for each in found] == sorted(each.wall_ms for each in found), "readers search by halves"
    note(storage, 4, 7)
    assert [load(storage, batch) for batch in batches(storage)] == found


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        (4, 8, "batch 8 was published here"),
        (3, 5, "batch 3 was published here"),
        (8, 8, "batch 8 was published here"),
        (10, 12, "there is output up to batch 9"),
        (0, 1, "output is kept from batch 2 on"),
    ],
)
def test_nothing_else_is_passed_over(first: int, last: int, why: str) -> None:
    """A batch that was published here is no batch of another sink, whatever somebody says."""
    storage = log(0, 1, 2, 3, 8, 9)
    retire(storage, 2)
    with pytest.raises(UnsuitableCheckpoint, match=why):
        note(storage, first, last)
    assert batches(storage) == [2, 3, 8, 9]


def test_output_must_be_on_both_sides() -> None:
    with pytest.raises(UnsuitableCheckpoint, match="there is output of no batch"):
        note(memory_storage(), 4, 7)
    with pytest.raises(UnsuitableCheckpoint, match="there is output from batch 8 on"):
        note(log(8), 4, 7)


def test_output_that_was_let_go_counts_as_output_before() -> None:
    storage = log(8)
    restore_retirement(storage, 6)
    note(storage, 6, 7)
    assert batches(storage) == [6, 7, 8]


def test_a_damaged_manifest_is_no_manifest_of_another_sink() -> None:
    storage = log(0, 3, 4)
    storage.replace(manifest_path(3), b"{}")
    with pytest.raises(DamagedLog):
        note(storage, 1, 3)
    assert batches(storage) == [0, 3, 4]


def test_a_rollback_takes_them_back_and_the_batches_are_written_anew() -> None:
    """Also where an earlier rollback had taken back output of these batches before the sink was changed."""
    storage = log(0, 1, 2, 3, generation=1)
    take_back(storage, 2, 3)
    publish(storage, own(8, 4))
    publish(storage, own(9, 4))
    note(storage, 3, 7)
    assert batches(storage) == list(range(10))
    take_back(storage, 5, 6)
    assert batches(storage) == list(range(6))
    publish(storage, own(6, 6))
    assert [(load(storage, b).generation, load(storage, b).other_sink) for b in (5, 6)] == [(4, True), (6, False)]


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("call", range(1, 6))
def test_after_a_crash_the_same_call_completes_it(call: int, when: str) -> None:
    storage, undisturbed = log(0, 1, 6), log(0, 1, 6)
    note(undisturbed, 2, 5)
    planned = plan_other_sink(storage, range(2, 6))
    with pytest.raises(Crash):
        note_other_sink(FaultyStorage(storage, Fault(call, when)), planned)
    note(storage, 2, 5)
    assert [load(storage, b) for b in batches(storage)] == [load(undisturbed, b) for b in batches(undisturbed)]
