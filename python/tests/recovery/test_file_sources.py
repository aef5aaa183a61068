"""Notes of files that were read: those after a batch that cannot be read go, and those that nobody reads any more."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.storage import Storage
from spark_cec.recovery.file_sources import unneeded_entries, unreadable_entries
from spark_cec.recovery.rollback import forget_batches, has_whole_batch, roll_back
from tests.recovery.support import Crash, Query

KAFKA = b'\0v1\n{"events":{"0":7}}'
METADATA = json.dumps({"batchTimestampMs": 1})


def entry(*numbers: int) -> bytes:
    """As a file source writes one."""
    files = [json.dumps({"path": f"/in/{each}", "timestamp": each, "batchId": each}) for each in numbers]
    return "\n".join(["v1", *files]).encode()


def name(number: int) -> str:
    return f"{number}.compact" if number % 10 == 9 else str(number)


def note(checkpoint: Storage, source: int, first: int, last: int) -> None:
    """A source reads a file with each entry."""
    for number in range(first, last + 1):
        files = range(number + 1) if name(number).endswith("t") else (number,)
        checkpoint.replace(f"sources/{source}/{name(number)}", entry(*files))
        checkpoint.replace(f"sources/{source}/.{name(number)}.crc", b"crc")


def plan(checkpoint: Storage, batch: int, *offsets: str) -> None:
    checkpoint.replace(f"offsets/{batch}", "\n".join(["v1", METADATA, *offsets]).encode())


def log_offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def left(checkpoint: Storage, source: int) -> list[str]:
    """Sorted by number."""
    here = checkpoint.local_path(f"sources/{source}")
    assert here is not None
    every = {path.name for path in Path(here).iterdir()}
    sums = {each for each in every if each.startswith(".")}
    names = every - sums
    assert sums == {f".{each}.crc" for each in names}
    return sorted(names, key=lambda each: int(each.partition(".")[0]))


class Reading(Query):
    """With two file sources, of which the first one is further, and one of another kind before them.

    Batch b reads up to entry 2 b + 1 of the first and b - 1 of the second, which had nothing for batch 0.
    """

    def __init__(self, place: Path, noted: int = 25) -> None:
        super().__init__(place)
        self.checkpoint.replace("sources/0/0", KAFKA)
        self.checkpoint.replace("sources/0/.0.crc", b"crc")
        note(self.checkpoint, 1, 0, noted)
        note(self.checkpoint, 2, 0, 6)
        for batch in range(7):
            plan(self.checkpoint, batch, '{"events":{"0":9}}', log_offset(2 * batch + 1),
                 log_offset(batch - 1) if batch else "-")  # fmt: skip

    def damage(self, source: int, number: int, content: bytes = b"") -> None:
        self.checkpoint.replace(f"sources/{source}/{name(number)}", content)


NOT_WHOLE = {
    "empty": b"", "zeros": b"\0" * 4096, "broken off": entry(9, 10)[:-20], "only begun": entry(9)[:4],
    "zeros behind": entry(9)[:3] + b"\0" * 9, "zeros before": b"\0" * 60 + entry(9, 10)[60:],
}  # fmt: skip


@pytest.mark.parametrize("content", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_a_power_loss_behind_the_line_takes_nothing_with_it(content: bytes, tmp_path: Path) -> None:
    """Spark reads all notes as it starts, those that no batch has read yet, too."""
    query = Reading(tmp_path)
    query.damage(1, 10, content)
    query.damage(2, 6, content)
    assert roll_back(*query.parts(), 3) is not None
    assert roll_back(*query.parts(0), 3) is None
    query.is_back_at(3)
    assert left(query.checkpoint, 0) == ["0"]
    assert left(query.checkpoint, 1) == [name(each) for each in range(10)], "there is no gap"
    assert left(query.checkpoint, 2) == [name(each) for each in range(6)]


def test_entries_that_can_be_read_stay(tmp_path: Path) -> None:
    """Their files are read by the next batch; those of the line are Spark's to name if they are damaged."""
    query = Reading(tmp_path)
    query.damage(1, 7)
    roll_back(*query.parts(), 3)
    assert left(query.checkpoint, 1) == [name(each) for each in range(26)]


def test_behind_a_gap_nothing_is_read(tmp_path: Path) -> None:
    query = Reading(tmp_path)
    for each in ("10", ".10.crc"):
        query.checkpoint.delete(f"sources/1/{each}")
    roll_back(*query.parts(), 3)
    assert left(query.checkpoint, 1) == [name(each) for each in range(10)]


def test_a_source_that_has_read_nothing_yet(tmp_path: Path) -> None:
    query = Reading(tmp_path)
    query.damage(2, 0)
    roll_back(*query.parts(), 0)
    assert left(query.checkpoint, 2) == []
    assert left(query.checkpoint, 1) == [name(each) for each in range(26)]


def test_a_source_at_several_places_has_one_folder(tmp_path: Path) -> None:
    """As in a union of parts of one stream: what is behind it is not in the folder of its place."""
    query = Reading(tmp_path, noted=60)
    note(query.checkpoint, 2, 7, 60)
    # Of batch 3: folder 1 reads up to 35, folder 2 up to 25; the first one of another kind at two places.
    plan(query.checkpoint, 3, '{"a":{"0":9}}', '{"a":{"0":9}}', log_offset(35), log_offset(25))
    assert unneeded_entries(query.checkpoint, 3) == [
        f"sources/{folder}/{name(each)}" for folder in (1, 2) for each in range(9)
    ], "by the one that is less far"
    for source in (1, 2):
        query.damage(source, 30)
        query.damage(source, 41)
    lost = [f"sources/{folder}/{name(each)}" for folder in (1, 2) for each in range(60, 40, -1)]
    assert unreadable_entries(query.checkpoint, 3) == lost, "behind the one that is furthest"
    plan(query.checkpoint, 3, log_offset(35), log_offset(35), log_offset(45))
    query.checkpoint.replace("sources/0/46", b"")
    assert unreadable_entries(query.checkpoint, 3) == ["sources/0/46"]


def test_it_is_looked_for_where_no_batch_is_taken_back(tmp_path: Path) -> None:
    query = Reading(tmp_path)
    roll_back(*query.parts(), 3)
    query.damage(1, 25)
    query.checkpoint.delete("sources/1/.25.crc")
    assert roll_back(*query.parts(), 3) is not None
    assert left(query.checkpoint, 1) == [name(each) for each in range(25)]


@pytest.mark.parametrize("is_planned", [True, False])
def test_at_the_beginning(is_planned: bool, tmp_path: Path) -> None:
    """Where a source began stays: another one may have let rows go by since."""
    query = Reading(tmp_path)
    if not is_planned:
        for path in (*(f"commits/{each}" for each in range(6)), *(f"offsets/{each}" for each in range(7))):
            query.checkpoint.delete(path)
    query.checkpoint.replace("sources/5/0", b"whatever a source of another kind writes {")
    query.checkpoint.replace("sources/5/.0.crc", b"crc")
    query.damage(1, 0)
    query.damage(2, 3, entry(3)[:20])
    roll_back(*query.parts(), -1)
    assert [left(query.checkpoint, each) for each in (0, 1, 2, 5)] == [["0"], [], ["0", "1", "2"], ["0"]]
    query.damage(0, 0)
    roll_back(*query.parts(), -1)
    assert left(query.checkpoint, 0) == []


def test_a_crash_at_any_step_is_mended_by_the_next_try(tmp_path: Path) -> None:
    for crash in range(200):
        query = Reading(tmp_path / str(crash), noted=12)
        query.damage(1, 10)
        try:
            roll_back(*query.parts(crash), 3)
        except Crash:
            roll_back(*query.parts(), 3)
            assert left(query.checkpoint, 1) == [name(each) for each in range(10)]
            query.is_back_at(3)
        else:
            assert crash > 20
            return
    raise AssertionError("it does not end")


def test_what_is_put_together_elsewhere_goes_with_its_batches(tmp_path: Path) -> None:
    """Else all that was ever read would be noted again with each tenth entry, and all of that kept."""
    query = Reading(tmp_path, noted=60)
    for batch in range(7):
        plan(query.checkpoint, batch, "-", log_offset(10 * batch), log_offset(12 * batch))
    note(query.checkpoint, 2, 7, 45)
    forget_batches(query.checkpoint, 4)
    # Of batch 3, behind entries 30 and 36, the last two with all before them stay.
    assert left(query.checkpoint, 1) == [name(each) for each in range(19, 61)]
    assert left(query.checkpoint, 2) == [name(each) for each in range(19, 46)] and left(query.checkpoint, 0) == ["0"]
    assert has_whole_batch(query.checkpoint, 4)
    query.damage(1, 41)
    roll_back(*query.parts(), 4)
    assert left(query.checkpoint, 1) == [name(each) for each in range(19, 41)]


def test_after_a_crash_there_is_no_gap(tmp_path: Path) -> None:
    query = Reading(tmp_path, noted=60)
    plan(query.checkpoint, 3, "-", log_offset(40))
    for crash in range(80):
        with contextlib.suppress(Crash):
            forget_batches(query.parts(crash)[0], 4)
        numbers = sorted(int(each.name.partition(".")[0]) for each in query.checkpoint.list("sources/1"))
        assert numbers == list(range(numbers[0], 61))
    assert numbers[0] == 29


def test_without_a_plan_nothing_is_known(tmp_path: Path) -> None:
    checkpoint = open_storage(str(tmp_path))
    note(checkpoint, 0, 0, 40)
    assert unneeded_entries(checkpoint, 30) == unreadable_entries(checkpoint, 30) == []
    for offset in ("7", '{"logOffset":"x"}', '{"offset":3}', "nonsense"):
        plan(checkpoint, 30, offset)
        assert unneeded_entries(checkpoint, 30) == unreadable_entries(checkpoint, 30) == []
