"""Going back to an earlier batch: what is left then, after a crash at every step too, and what is refused before it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import TransientError, UnsuitableCheckpoint
from spark_cec.log.home import read_log_id
from spark_cec.log.late import keep_late, list_late, read_late
from spark_cec.log.manifest import manifest_path, retire
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.readers import ReaderTrail, slowest_reader
from spark_cec.log.storage import Storage
from spark_cec.recovery import rollback
from spark_cec.recovery.attempts import read_attempts
from spark_cec.recovery.query_files import FALLBACK, QUERY, ROLLBACK, Fallback, save_fallback
from spark_cec.recovery.rollback import (
    forget_batches,
    has_whole_batch,
    refuse_during_rollback,
    refuse_out_of_reach,
    roll_back,
)
from spark_cec.recovery.spark_logs import committed_batch, planned_batches
from spark_cec.settings import PREFIX
from tests.recovery.support import Crash, Query


@pytest.mark.parametrize("batch", [-1, 0, 3, 5])
def test_it_is_as_if_no_later_batch_had_come(batch: int, tmp_path: Path) -> None:
    query = Query(tmp_path)
    done = roll_back(*query.parts(), batch)
    assert done is not None and (done.batch, done.generation) == (batch, 3)
    query.is_back_at(batch)


def test_where_it_is_nothing_is_done(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.delete("offsets/6")
    query.log.delete(manifest_path(6))
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
        if not query.own.exists(ROLLBACK.name):  # then a start is not refused, and all must be as it was
            left = (committed_batch(query.checkpoint), read_attempts(*query.parts()).least_generation(7))
            assert left in ((5, 2), (batch, 3)), f"crash {crash}"
        if query.own.exists(ROLLBACK.name):
            with pytest.raises(UnsuitableCheckpoint, match=f"taken back to the end of batch {batch}, which was not"):
                refuse_during_rollback(query.own)
            with contextlib.suppress(Crash):  # it may have one step to go
                roll_back(*query.parts(1), batch)
        roll_back(*query.parts(), batch)
        query.is_back_at(batch)
        assert len(read_cuts(query.log).known) == 1, "a cut was made twice"


def test_what_was_decided_for_the_end_of_a_later_batch_is_forgotten(tmp_path: Path) -> None:
    """Else the start would refuse it: `cec repair` was run, and then an older checkpoint is the newest there is."""
    for decided, batch, stays in ((4, 3, False), (3, 3, True)):
        query = Query(tmp_path / str(decided))
        save_fallback(query.own, Fallback(2, decided, 2))
        roll_back(*query.parts(), batch)
        assert (FALLBACK.read(query.own) is not None) is stays


def test_batches_that_no_rollback_needs_are_forgotten(tmp_path: Path) -> None:
    """Not the one before: Spark reads where it began."""
    query = Query(tmp_path)
    forget_batches(query.checkpoint, -1)
    assert sorted(planned_batches(query.checkpoint)) == list(range(7))
    for crash in range(8):
        with contextlib.suppress(Crash):
            forget_batches(query.parts(crash)[0], 4)
    forget_batches(query.checkpoint, 4)
    assert sorted(planned_batches(query.checkpoint)) == [3, 4, 5, 6]
    left = {path.name for path in (tmp_path / "commits").iterdir()}
    assert left == {"3", "4", "5", ".3.crc", ".4.crc", ".5.crc"}
    roll_back(*query.parts(), 4)
    assert committed_batch(query.checkpoint) == 4
    with pytest.raises(UnsuitableCheckpoint, match=r"to its beginning: Spark keeps batches from 3 on.*cec/checkpoints"):
        roll_back(*query.parts(), -1)


@pytest.mark.parametrize("name", ["commits", "offsets"])
def test_a_batch_of_which_a_file_is_empty_is_refused(name: str, tmp_path: Path) -> None:
    """As after a power loss."""
    query = Query(tmp_path)
    query.checkpoint.replace(f"{name}/3", b"")
    assert not has_whole_batch(query.checkpoint, 3) and has_whole_batch(query.checkpoint, 5)
    assert has_whole_batch(query.checkpoint, 4) is (name == "commits"), (
        "Spark reads the plan before the newest one, too"
    )
    for batch in (3, 4) if name == "offsets" else (3,):
        with pytest.raises(UnsuitableCheckpoint, match=f"cannot be taken back to batch {batch}"):
            roll_back(*query.parts(), batch)


def test_output_of_a_batch_whose_plan_is_lost_is_taken_back(tmp_path: Path) -> None:
    """Where the log is on another disk: the batch is planned anew, and may have other rows."""
    query = Query(tmp_path)
    for log, batch in (("commits", 4), ("commits", 5), ("offsets", 4), ("offsets", 5), ("offsets", 6)):
        for name in (f".{batch}.crc", str(batch)):
            query.checkpoint.delete(f"{log}/{name}")
    assert roll_back(*query.parts(), 3) is not None
    assert roll_back(*query.parts(0), 3) is None
    query.is_back_at(3)


def test_at_the_beginning_there_are_no_operators(tmp_path: Path) -> None:
    """The next run may have other ones, and another number of partitions."""
    of_join = "1/0/left-keyToNumValues/_metadata/schema"
    files = ("0/_metadata/metadata", "0/0/_metadata/schema", "1/_metadata/v2/0", of_join)
    for batch in (3, -1):
        query = Query(tmp_path / str(batch))
        for file in files:
            query.checkpoint.replace(f"state/{file}", b"v1")
        roll_back(*query.parts(), batch)
        left = [path for path in (tmp_path / str(batch) / "state").rglob("*") if path.is_file()]
        assert len(left) == (0 if batch < 0 else len(files) + 1), left  # with the checksum of the first


class _KeepsSome:
    """As S3 by fsspec: a deletion of many may leave some, and nobody says so."""

    def __init__(self, inner: Storage, times: int) -> None:
        self._inner, self._times = inner, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete_all(self, paths: Sequence[str]) -> None:
        self._times -= 1
        self._inner.delete_all(paths[:-1] if self._times >= 0 else paths)


@pytest.mark.parametrize("times", [2, 100])
def test_state_that_the_storage_kept_is_deleted_again_or_named(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path)

    def list_later(checkpoint: Storage, batch: int) -> list[str]:
        names = [file.name for file in checkpoint.list("state/0/0")]
        return [f"state/0/0/{name}" for name in names if int(name.partition(".")[0]) > batch + 1]

    monkeypatch.setattr(rollback, "files_of_later_batches", list_later)
    QUERY.write(query.own, {"log_id": "00", "log_home": "log"})
    for version in (3, 7, 8):
        query.checkpoint.create(f"state/0/0/{version}.snapshot", b"x")
    checkpoint: Any = _KeepsSome(query.checkpoint, times)
    if times > 2:
        with pytest.raises(TransientError, match=r"1 files of later state .* take the query back again"):
            roll_back(checkpoint, query.own, query.log, 3)
        assert ROLLBACK.is_in(query.own), "no start goes on"
    else:
        roll_back(checkpoint, query.own, query.log, 3)
        assert [file.name for file in query.checkpoint.list("state/0/0")] == ["3.snapshot"]


def test_a_pending_one_to_elsewhere_is_overtaken(tmp_path: Path) -> None:
    query = Query(tmp_path)
    with pytest.raises(Crash):
        roll_back(*query.parts(4), 3)
    roll_back(*query.parts(), 1)
    query.is_back_at(1)


@pytest.mark.parametrize("crash", range(2, 7))
def test_a_pending_one_is_not_overtaken_by_one_that_wants_more(crash: int, tmp_path: Path) -> None:
    """Spark's logs may still have what its output has lost."""
    query = Query(tmp_path)
    with pytest.raises(Crash):
        roll_back(*query.parts(crash), 3)
    for refused in (refuse_out_of_reach, roll_back):
        with pytest.raises(UnsuitableCheckpoint, match=r"end of batch 3, which is before batch 5: run `cec rollback"):
            refused(*query.parts(0), 5)
    roll_back(*query.parts(), 3)
    query.is_back_at(3)


@pytest.mark.parametrize("protocol", [False, True])
def test_who_does_the_rest_is_named(protocol: bool, tmp_path: Path) -> None:
    """Of a flow that takes part in a protocol the others must go back, too."""
    query = Query(tmp_path)
    conf = {PREFIX + "protocol": "coordinated"} if protocol else {}
    QUERY.write(query.own, {"log_id": "00", "log_home": "log", "settings_conf": conf})
    with pytest.raises(Crash):
        roll_back(*query.parts(4), 3)
    words = "start the pipeline that it belongs to" if protocol else f"run `cec rollback {tmp_path} --to 3`"
    with pytest.raises(UnsuitableCheckpoint, match=f"which was not finished: {words}, which does the rest"):
        refuse_during_rollback(query.own)


def test_no_row_of_what_is_taken_back_is_late(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.log.create("readers/totals.json", b"{}")
    for batch in (3, 4, 5):
        keep_late(query.log, "totals", batch, bytes(16), pa.table({"n": [batch]}))
    roll_back(*query.parts(), 3)
    assert [read_late(query.log, path)["n"].to_pylist() for path in list_late(query.log, "totals")] == [[3]]


def test_nobody_has_read_what_is_taken_back(tmp_path: Path) -> None:
    """Else the new output would be let go before a reader that begins anew has read it."""
    query = Query(tmp_path)
    log_id = read_log_id(query.log)
    assert log_id is not None
    for name, through in (("ahead", 3), ("far", 6), ("behind", 2)):
        trail = ReaderTrail(query.log, log_id, name)
        trail.begin(through)
        for end in (3, 4, 6):
            trail.add(end, retained=100)
        trail.save()
    query.log.replace("readers/damaged.json", b"{")
    assert slowest_reader(query.log, log_id, ["far"]) == 7
    roll_back(*query.parts(), 4)
    assert [slowest_reader(query.log, log_id, [name]) for name in ("ahead", "far", "behind")] == [4, 5, 3]
    trail = ReaderTrail(query.log, log_id, "behind")
    trail.add(5, retained=0)
    trail.save()
    assert slowest_reader(query.log, log_id, ["behind"]) == 3, "it has the ends 3, 4 and 5 now"


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


@pytest.mark.parametrize("batch", [-1, 1])
def test_behind_its_cut_a_rollback_whose_note_is_damaged_goes_no_less_far(batch: int, tmp_path: Path) -> None:
    """The output behind the cut is gone: a start behind a later batch would leave out rows."""
    whole = Query(tmp_path / "whole")
    parts = whole.parts(1000)
    roll_back(*parts, batch)
    refused = 0
    for crash in range(1000 - parts[0]._budget[0]):
        query = Query(tmp_path / str(crash))
        with pytest.raises(Crash):
            roll_back(*query.parts(crash), batch)
        if not query.own.exists(ROLLBACK.name):
            continue
        query.own.replace(ROLLBACK.name, b"{")
        if read_cuts(query.log).known:
            for check in (roll_back, refuse_out_of_reach):
                with pytest.raises(UnsuitableCheckpoint, match=f"to the end of batch {batch}, which is before batch 3"):
                    check(*query.parts(), 3)
            refused += 1
        roll_back(*query.parts(), batch)
        query.is_back_at(batch)
    assert refused > 5


@pytest.mark.parametrize("batch", [3, 5])
@pytest.mark.parametrize("note", [b"", json.dumps({"batch": "x"}).encode()])
def test_a_damaged_note_is_named_and_overtaken(note: bytes, batch: int, tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.checkpoint.delete("offsets/6")
    query.checkpoint.delete("offsets/.6.crc")
    query.log.delete(manifest_path(6))  # it is at batch 5
    query.own.replace(ROLLBACK.name, note)
    with pytest.raises(UnsuitableCheckpoint, match=r"rollback\.json cannot be read.*run `cec rollback .* --to BATCH`"):
        refuse_during_rollback(query.own)
    refuse_out_of_reach(*query.parts(), batch)
    assert roll_back(*query.parts(), batch) is not None
    query.is_back_at(batch)
