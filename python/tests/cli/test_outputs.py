"""`cec outputs`: what went into each batch, and no trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.boundary import Boundary, note_boundary
from spark_cec.log.late import keep_late, list_late
from spark_cec.log.manifest import Consumed, load, manifest_path, publish, retire, take_back
from spark_cec.log.output_rollbacks import cut_path
from spark_cec.recovery.generations import next_generation
from spark_cec.recovery.rollback import roll_back
from tests.cli.support import Checkpoint, answer, files, run


def say_what_went_in(checkpoint: Checkpoint) -> None:
    """The manifests of the batches 1 to 3, with inputs and a watermark; that of batch 0 is of an earlier release."""
    storage = checkpoint.storage
    for batch in range(1, 4):
        found = load(storage, batch)
        read = (Consumed("cec /flows/bids", str(10 * batch)), Consumed("files", None))
        storage.delete(manifest_path(batch))
        publish(storage, dataclasses.replace(found, consumed=read, boundary_ms=1_700_000_000_000 + batch))


def test_a_batch_begins_where_the_one_before_it_ended(checkpoint: Checkpoint) -> None:
    say_what_went_in(checkpoint)
    before = files(checkpoint.path)
    result = run("outputs", str(checkpoint.path), "--json", "--last", "2")
    found = answer(result)["batches"]
    assert result.exit_code == 0
    assert [(each["batch"], each["rows"], each["frames"], each["watermark_ms"]) for each in found] == [
        (2, 6, 2, 1_700_000_000_002), (3, 6, 2, 1_700_000_000_003),
    ]  # fmt: skip
    assert found[0]["inputs"] == [
        {"source": "cec /flows/bids", "from": "10", "to": "20"}, {"source": "files", "from": None, "to": None},
    ]  # fmt: skip
    assert files(checkpoint.path) == before


def test_of_the_first_and_of_an_earlier_release_it_says_what_is_known(checkpoint: Checkpoint) -> None:
    say_what_went_in(checkpoint)
    found = answer(run("outputs", str(checkpoint.path), "--json"))["batches"]
    assert [[(i["from"], i["to"]) for i in each["inputs"]] for each in found] == [
        [], [(None, "10"), (None, None)], [("10", "20"), (None, None)], [("20", "30"), (None, None)],
    ]  # fmt: skip
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert said[0] == "batch 0: 6 rows in 2 frames, published 1970-01-01 00:00:01 UTC"
    assert said[4:7] == [
        "batch 2: 6 rows in 2 frames, published 1970-01-01 00:00:03 UTC, watermark 2023-11-14 22:13:20 UTC",
        "    cec /flows/bids from batch 10 to batch 20",
        "    files to nothing yet",
    ]


def test_up_to_when_the_output_is_complete(checkpoint: Checkpoint) -> None:
    """Until a rollback takes the batch back that the boundary is after."""
    assert answer(run("outputs", str(checkpoint.path), "--json"))["complete"] is None
    crc = load(checkpoint.storage, 3).crc
    note_boundary(checkpoint.storage, Boundary(3, crc, 1_700_000_000_000))
    found = answer(run("outputs", str(checkpoint.path), "--json"))["complete"]
    assert found == {"batch": 3, "to_ms": 1_700_000_000_000, "columns": {}}
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert said[-1] == "complete to 2023-11-14 22:13:20 UTC: all input is in batches up to 3"
    note_boundary(checkpoint.storage, Boundary(3, crc, None, {"end": 1_700_000_060_000}))
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert said[-2].startswith("complete to 2023-11-14 22:13:20 UTC: ")
    assert said[-1] == "complete to 2023-11-14 22:14:20 UTC by end: no batch after 3 has an older row"
    take_back(checkpoint.storage, 2, 7)
    assert answer(run("outputs", str(checkpoint.path), "--json"))["complete"] is None
    note_boundary(checkpoint.storage, Boundary(-1, None, 1_700_000_000_000))
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert said[-1] == "complete to 2023-11-14 22:13:20 UTC: there was no input"


def test_late_rows_are_counted_by_reader(checkpoint: Checkpoint) -> None:
    """Damage to some of them hides no other one."""
    storage = checkpoint.storage
    for name in ("per_minute", "totals", "board"):
        storage.create(f"readers/{name}.json", b"{}")
    for batch, rows in ((1, [1, 2]), (2, [3])):
        keep_late(storage, "per_minute", batch, bytes(16), pa.table({"n": rows}))
    keep_late(storage, "totals", 1, bytes(16), pa.table({"n": [1]}))
    expected = [{"reader": "per_minute", "rows": 3}, {"reader": "totals", "rows": 1}]
    assert answer(run("outputs", str(checkpoint.path), "--json"))["late"] == expected
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert "late for per_minute: 3 rows, kept aside (view=late)" in said
    path = list_late(storage, "per_minute")[0]
    storage.replace(path, storage.read(path)[:-1])
    found = answer(run("outputs", str(checkpoint.path), "--json"))
    assert found["late"] == [{"reader": "per_minute", "rows": 1}, {"reader": "totals", "rows": 1}]
    assert [each["where"] for each in found["damages"]] == [path]


def test_what_was_taken_back_is_said(checkpoint: Checkpoint) -> None:
    own = open_storage(str(checkpoint.path / "cec"))
    for _ in range(6):
        next_generation(own)
    roll_back(open_storage(str(checkpoint.path)), own, checkpoint.storage, 1)
    found = answer(run("outputs", str(checkpoint.path), "--json"))
    assert [each["batch"] for each in found["batches"]] == [0, 1]
    assert [(cut["after"], cut["generation"]) for cut in found["cuts"]] == [(1, 7)]
    said = run("outputs", str(checkpoint.path)).stdout.splitlines()
    assert said[0].startswith("taken back by run 7, 20") and said[0].endswith(" UTC: all after batch 1")
    assert run("verify", str(checkpoint.path)).exit_code == 0


@pytest.mark.parametrize("command", ["outputs", "verify", "inspect"])
def test_a_damaged_cut_is_named(checkpoint: Checkpoint, command: str) -> None:
    take_back(checkpoint.storage, 1, 7)
    cut = checkpoint.home / cut_path(0)
    cut.write_bytes(cut.read_bytes()[:-9])
    result = run(command, str(checkpoint.path), "--json")
    assert result.exit_code == 1
    assert cut_path(0) in [damage["where"] for damage in answer(result)["damages"]]


def test_what_is_retired_is_not_there_and_what_is_damaged_is_named(checkpoint: Checkpoint) -> None:
    retire(checkpoint.storage, 1)
    broken = checkpoint.home / manifest_path(2)
    broken.write_bytes(broken.read_bytes()[:-9])
    result = run("outputs", str(checkpoint.path), "--json")
    found = answer(result)
    assert result.exit_code == 1
    assert [each["batch"] for each in found["batches"]] == [1, 3]
    assert [damage["where"] for damage in found["damages"]] == [manifest_path(2)]


def test_a_query_with_another_sink_has_none(checkpoint: Checkpoint) -> None:
    for batch in range(4):
        (checkpoint.home / manifest_path(batch)).unlink()
    result = run("outputs", str(checkpoint.path))
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert "only the cec sink" in result.stdout


def test_no_log(tmp_path: Path) -> None:
    assert run("outputs", str(tmp_path)).exit_code == 2
