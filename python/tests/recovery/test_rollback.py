"""Going back to an earlier batch: what is left then, after a crash at every step too, and what is refused before it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.cuts import cuts_of
from spark_cec.log.home import join_log
from spark_cec.log.manifest import Manifest, batches, load, publish, retire
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import read_attempts
from spark_cec.recovery.generations import newest_generation, next_generation, note_start
from spark_cec.recovery.rollback import ROLLBACK_FILE, refuse_if_under_way, roll_back
from spark_cec.recovery.spark_logs import committed_batch, planned_batches

WRITES = ("create", "replace", "delete")


class Crash(Exception):
    """The process has ended."""


class Crashing:
    """A storage that ends the process before a write, counted over all that share the `budget`."""

    def __init__(self, storage: Storage, budget: list[int]) -> None:
        self._storage = storage
        self._budget = budget

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name not in WRITES:
            return found

        def write(*arguments: Any) -> Any:
            if self._budget[0] == 0:
                raise Crash
            self._budget[0] -= 1
            return found(*arguments)

        return write


class Query:
    """A query that has committed batches 0 to 5, and planned one more, in two runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.checkpoint, self.own, self.log = (open_storage(f"{place}{each}") for each in ("", "/cec", "/cec/log"))
        for name, last in (("offsets", 6), ("commits", 5)):
            for batch in range(last + 1):
                self.checkpoint.replace(f"{name}/{batch}", b"v1\n{}\n")
                self.checkpoint.replace(f"{name}/.{batch}.crc", b"crc")
        for began in (-1, 2):
            note_start(self.own, next_generation(self.own), began)
        join_log(self.log, None)
        for batch in range(7):
            self.publish(batch, 1 if batch < 3 else 2)

    def publish(self, batch: int, generation: int) -> None:
        publish(self.log, Manifest(batch, (), 0, "{}", False, generation, 0))

    def parts(self, budget: int | None = None) -> tuple[Any, Any, Any]:
        """Its storages; with a budget they stop before so many writes more."""
        all_of_them = (self.checkpoint, self.own, self.log)
        left = [-1 if budget is None else budget]
        return tuple(Crashing(each, left) for each in all_of_them)  # type: ignore[return-value]

    def is_back_at(self, batch: int) -> None:
        kept = list(range(batch + 1))
        assert sorted(planned_batches(self.checkpoint)) == kept
        assert committed_batch(self.checkpoint) == batch
        assert not [file.name for file in self.checkpoint.list("offsets") if file.name == f".{batch + 1}.crc"]
        assert batches(self.log) == kept
        refuse_if_under_way(self.own)
        # The run that goes on from there owns what comes, and none before it.
        assert read_attempts(self.checkpoint, self.own).least_generation(batch + 2) == newest_generation(self.own)
        self.publish(batch + 1, newest_generation(self.own) + 1)
        assert load(self.log, batch + 1).generation == newest_generation(self.own) + 1


@pytest.mark.parametrize("batch", [-1, 0, 3, 5])
def test_it_is_as_if_no_later_batch_had_come(batch: int, tmp_path: Path) -> None:
    query = Query(tmp_path)
    done = roll_back(*query.parts(), batch)
    assert done is not None and (done.batch, done.generation) == (batch, 3)
    query.is_back_at(batch)


def test_where_it_is_nothing_is_done(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.delete("offsets/6")
    assert roll_back(*query.parts(0), 5) is None
    new = [open_storage(f"{tmp_path}/new{each}") for each in ("", "/cec", "/cec/log")]
    assert roll_back(new[0], new[1], new[2], -1) is None


@pytest.mark.parametrize("batch", [-1, 3])
def test_a_crash_at_any_step_is_mended_by_the_next_try(batch: int, tmp_path: Path) -> None:
    """As is a crash of the next try, one step further on."""
    whole = Query(tmp_path / "whole")
    parts = whole.parts(1000)
    roll_back(*parts, batch)
    steps = 1000 - parts[0]._budget[0]
    assert steps > 10
    for crash in range(steps):
        query = Query(tmp_path / str(crash))
        with pytest.raises(Crash):
            roll_back(*query.parts(crash), batch)
        if query.own.exists(ROLLBACK_FILE):
            with pytest.raises(UnsuitableCheckpoint, match=f"taken back to the end of batch {batch}, which was not"):
                refuse_if_under_way(query.own)
            with contextlib.suppress(Crash):  # it may have one step to go
                roll_back(*query.parts(1), batch)
        roll_back(*query.parts(), batch)
        query.is_back_at(batch)
        assert len(cuts_of(query.log).known) == 1, "a cut was made twice"


def test_a_pending_one_to_elsewhere_is_overtaken(tmp_path: Path) -> None:
    query = Query(tmp_path)
    with pytest.raises(Crash):
        roll_back(*query.parts(4), 3)
    roll_back(*query.parts(), 1)
    query.is_back_at(1)


@pytest.mark.parametrize(
    ("lost", "message"), [("offsets/3", "Spark keeps batches 0 to 6 of it"), ("commits/3", "minBatchesToRetain")]
)
def test_a_batch_that_spark_has_forgotten_is_refused(lost: str, message: str, tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.delete(lost)
    with pytest.raises(UnsuitableCheckpoint, match=message):
        roll_back(*query.parts(0), 3)


def test_output_that_was_let_go_is_not_written_anew(tmp_path: Path) -> None:
    query = Query(tmp_path)
    retire(query.log, 4)
    with pytest.raises(UnsuitableCheckpoint, match="its output is kept from batch 4 on"):
        roll_back(*query.parts(0), 2)
    roll_back(*query.parts(), 3)


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.own.replace(ROLLBACK_FILE, json.dumps({"batch": "x"}).encode())
    with pytest.raises(UnsuitableCheckpoint, match=r"rollback\.json cannot be read"):
        refuse_if_under_way(query.own)
