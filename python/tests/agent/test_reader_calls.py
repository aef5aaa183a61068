"""The calls of sink and reader: output becomes visible as a whole, and the three views show what is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import reader as views_module
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.checkpoint.readers import output_batches
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.boundary import BOUNDARY_FILE
from spark_cec.log.home import read_log_id
from spark_cec.log.manifest import Consumed, load, manifest_path, restore_retirement, retire, take_back
from spark_cec.log.other_sink import note_other_sink, plan_other_sink
from spark_cec.log.output_rollbacks import append_cut
from spark_cec.log.segment import segment_path
from spark_cec.recovery import lost_output
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip

SCHEMA = '{"type":"struct","fields":[]}'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    made.begin_run()
    yield made
    made.calls.close()


def write(agent: Agent, batch: int, *rows: int, partition: int = 0) -> str | None:
    """An output frame; its id."""
    spool = agent.spool(pa.table({"n": pa.array(rows, pa.int64())}))
    return agent.write_output(batch, spool, len(rows), partition=partition) if rows else None


def bounds(first: int, last: int, newest: int) -> dict[str, Any]:
    """An answer to a look at the offsets that knows no more than this."""
    return {"first": first, "last": last, "newest": newest, "of": None, "quiet_ms": None, "columns": {}}


def publish(
    agent: Agent,
    batch: int,
    *frames: str | None,
    truncate: bool = False,
    sources: Sequence[str] = (),
    generation: int = 1,
    schema: str = SCHEMA,
) -> bool:
    named = [frame for frame in frames if frame]
    sent = {"frames": named, "rows": len(named), "schema": schema, "truncate": truncate}
    return bool(agent.ask("publish", batch=batch, generation=generation, sources=list(sources), **sent)["first"])


def read(agent: Agent, view: str, columns: list[str] | None = None, **bounds: Any) -> list[dict[str, Any]]:
    splits = agent.ask("view_splits", view=view, **bounds)["splits"]
    return [row for split in splits for row in agent.rows(agent.ask("read_split", split=split, columns=columns))]


def numbers(agent: Agent, first: int = 0, last: int = 99, *, whole: bool = True) -> list[int]:
    return [row["n"] for row in read(agent, "output", first=first, last=last, whole=whole)]


def test_output_is_invisible_until_its_batch_is_published(agent: Agent) -> None:
    frames = [write(agent, 0, 1, 2), write(agent, 0, 3, partition=1)]
    assert agent.ask("view_schema")["schemas"] == []
    assert agent.ask("view_offsets", starting_timestamp_ms=None) == bounds(0, -1, -1)
    assert numbers(agent) == []
    assert publish(agent, 0, *frames)
    assert numbers(agent) == [1, 2, 3]
    assert agent.ask("view_schema")["schemas"] == [SCHEMA, SCHEMA], "the newest batch's, and the oldest's"


def test_where_a_streams_next_batch_ends(agent: Agent) -> None:
    assert agent.ask("view_offsets", after=-1) == bounds(0, -1, -1)
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))

    def end(after: int, **bounds: Any) -> int:
        return int(agent.ask("view_offsets", after=after, **bounds)["last"])

    assert end(-1) == 5
    assert end(-1, max_batches=2) == 1
    assert end(1, max_batches=2, up_to=2) == 2
    assert end(5) == 5
    with pytest.raises(Refused, match=r"has read up to batch 7 of the output, which ends at batch 5: .* begun anew"):
        end(7)
    with pytest.raises(Refused, match="up to batch 6 of the output, which ends at batch 5"):
        numbers(agent, 6, 6, whole=False)
    retire(open_storage(agent.home), 4)
    assert end(0, max_batches=2) == 2, "the reader is told that it is not kept any more"
    assert end(0, max_batches=2, may_lose=True) == 5, "what is not kept does not count"


def test_a_stream_knows_its_log_again(agent: Agent, tmp_path: Path) -> None:
    """A log that was begun anew, or restored and written on, has other batches of the same numbers."""
    for batch in range(3):
        publish(agent, batch, write(agent, batch, batch))
    seen = agent.ask("view_offsets", after=-1, max_batches=2)["of"]
    assert seen[:8] == (read_log_id(open_storage(agent.home)) or "")[:8]
    assert agent.ask("view_offsets", after=1, seen=seen)["last"] == 2
    assert agent.ask("view_offsets", after=1, seen=seen[:9])["last"] == 2, "it was not kept then"
    restored = manifest_path(1)
    known = open_storage(agent.home).read(restored)
    open_storage(agent.home).delete(restored)
    publish(agent, 1, write(agent, 1, 100))
    another = "up to batch 1 of the output, which has another batch of that number now"
    with pytest.raises(Refused, match=another):
        agent.ask("view_offsets", after=1, seen=seen)
    with pytest.raises(Refused, match=another):
        agent.ask("view_splits", view="output", first=0, last=1, whole=False, seen=seen)
    with pytest.raises(Refused, match="another batch"):
        agent.ask("view_offsets", after=1, seen="00000000" + seen[8:])
    open_storage(agent.home).replace(restored, known)
    assert agent.ask("view_offsets", after=1, seen=seen)["last"] == 2
    retire(open_storage(agent.home), 2)
    assert agent.ask("view_offsets", after=1, seen=seen)["last"] == 2
    assert agent.ask("view_offsets", after=2, seen=None) == bounds(2, 2, 2)


def test_batches_without_rows_wait_for_one_with_some(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that reads its own channel would answer each of them with another one, for ever."""
    publish(agent, 0, write(agent, 0, 1))
    publish(agent, 1)
    publish(agent, 2)
    assert agent.ask("view_offsets", after=-1)["last"] == 2
    nothing = agent.ask("view_offsets", after=0)
    assert (nothing["last"], nothing["newest"]) == (0, 0)
    with monkeypatch.context() as later:
        later.setattr(views_module, "EMPTY_WAIT_MS", -1)
        assert agent.ask("view_offsets", after=0)["last"] == 2, "but not for ever: else they would be kept"
    publish(agent, 3, truncate=True)
    assert agent.ask("view_offsets", after=0)["last"] == 3, "it says that all rows before are gone"
    publish(agent, 4)
    publish(agent, 5, write(agent, 5, 1))
    assert agent.ask("view_offsets", after=3)["last"] == 5


def test_a_batch_is_published_though_nobody_can_tell_what_went_into_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError("the checkpoint's storage does not answer")

    monkeypatch.setattr("spark_cec.agent.output.read_planned", fails)
    assert publish(agent, 0, write(agent, 0, 1), sources=["files"])
    assert numbers(agent) == [1]
    assert load(open_storage(agent.home), 0).consumed == ()


@pytest.mark.parametrize(
    ("sources", "consumed"),
    [(["cec /a", "files"], [Consumed("cec /a", "7"), Consumed("files", None)]), (["cec /a"], []), ([], [])],
)
def test_a_manifest_says_what_went_into_its_batch(agent: Agent, sources: list[str], consumed: list[Consumed]) -> None:
    """Where the query's sources are others than those of Spark's offset log, nothing is guessed."""
    planned = Path(agent.checkpoint) / "offsets" / "4"
    planned.parent.mkdir(parents=True)
    planned.write_text('v1\n{"batchWatermarkMs":1700000000000,"batchTimestampMs":1700000001000,"conf":{}}\n7\n-')
    publish(agent, 4, sources=sources)
    publish(agent, 5, sources=sources)
    four, five = (load(open_storage(agent.home), batch) for batch in (4, 5))
    assert (list(four.consumed), four.boundary_ms) == (consumed, 1_700_000_000_000)
    assert (five.consumed, five.boundary_ms) == ((), None), "the batch is not in Spark's offset log"


def test_files_that_a_power_loss_forgot_are_told_from_others(agent: Agent) -> None:
    """The offset of a source of files is a number of its own, of which others files may be the first after that."""
    checkpoint = Path(agent.checkpoint)
    for directory in ("offsets", "sources/0", "sources/1"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"logOffset":0}\n{"batch":3}')
    (checkpoint / "sources/0/0").write_text('v1\n{"path":"a","timestamp":1,"batchId":0}')
    sources = ["files", "cec"]
    frame = write(agent, 0, 1)
    assert publish(agent, 0, frame, sources=sources)
    assert [each.files is None for each in load(open_storage(agent.home), 0).consumed] == [False, True]
    assert not publish(agent, 0, frame, generation=2, sources=sources), "the same batch again"
    (checkpoint / "sources/0/0").write_text('v1\n{"path":"b","timestamp":2,"batchId":0}')
    with pytest.raises(Refused, match="batch 0 of the output was made of other files than it is planned with now"):
        publish(agent, 0, frame, generation=3, sources=sources)
    (checkpoint / "sources/0/0").unlink()
    assert not publish(agent, 0, frame, generation=3, sources=sources), "what is not known is no difference"


def test_a_reader_in_the_writers_process_need_not_ask_the_storage(agent: Agent, tmp_path: Path) -> None:
    """Rows written after the first look are at hand; another process reads the same rows from the log."""
    publish(agent, 0, write(agent, 0, 1, 2))
    assert numbers(agent) == [1, 2]
    publish(agent, 1, write(agent, 1, 3), write(agent, 1, 4, partition=1))
    (tmp_path / "other").mkdir()
    other = Agent(tmp_path / "other", Path(agent.checkpoint))
    assert numbers(agent) == numbers(other) == [1, 2, 3, 4]
    for segment in (Path(agent.home) / "segments").iterdir():
        data = segment.read_bytes()
        segment.write_bytes(data.replace(b"ARROW1", b"AR0OW1") if b"ARROW1" in data else data[:-40] + bytes(40))
    assert numbers(agent, first=1) == [3, 4]
    with pytest.raises(Refused) as refused:
        numbers(other)
    assert refused.value.kind == "DamagedLog"
    other.calls.close()


def test_the_first_manifest_of_a_batch_wins(agent: Agent) -> None:
    first, second = write(agent, 0, 1), write(agent, 0, 2)
    assert publish(agent, 0, first)
    assert not publish(agent, 0, second)
    publish(agent, 0, first)
    assert numbers(agent) == [1]


def test_no_rows_are_no_frame_but_a_batch(agent: Agent) -> None:
    assert write(agent, 0) is None
    publish(agent, 0)
    publish(agent, 1, write(agent, 1, 5))
    assert agent.ask("view_offsets", starting_timestamp_ms=None) == bounds(0, 1, 1)
    assert numbers(agent) == [5]
    assert numbers(agent, 0, 0) == []


def test_bounds_of_batches(agent: Agent) -> None:
    for batch in range(5):
        publish(agent, batch, write(agent, batch, 10 * batch))
    assert numbers(agent, 1, 3) == [10, 20, 30]
    assert numbers(agent, 4, 4) == [40]
    assert numbers(agent, 3, 2) == []


def test_complete_mode_shows_the_newest_whole_output(agent: Agent) -> None:
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch, batch + 100), truncate=True)
    assert numbers(agent) == [3, 103]
    assert numbers(agent, 0, 2) == [2, 102]
    assert numbers(agent, 1, 2, whole=False) == [1, 101, 2, 102], "a stream is handed every batch"


def test_a_read_starts_where_the_clock_says(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(4):
        monkeypatch.setattr(time, "time", lambda batch=batch: 1_000.0 + batch)
        publish(agent, batch, write(agent, batch, batch))
    for since_ms, first in ((0, 0), (1_000_000, 0), (1_000_001, 1), (1_002_500, 3), (1_003_001, 4)):
        found = agent.ask("view_offsets", starting_timestamp_ms=since_ms)
        assert found == bounds(first, 3, 3), since_ms


def test_a_read_starts_with_what_is_kept_although_older_manifests_are_there_still(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, or a long trim, came between the note of the retirement and the deletion of its manifests."""
    for batch in range(4):
        monkeypatch.setattr(time, "time", lambda batch=batch: 1_000.0 + batch)
        publish(agent, batch, write(agent, batch, batch))
    restore_retirement(open_storage(agent.home), 2)
    for since_ms, first in ((None, 2), (0, 2), (1_000_000, 2), (1_002_500, 3)):
        assert agent.ask("view_offsets", starting_timestamp_ms=since_ms) == bounds(first, 3, 3), since_ms


def test_a_late_frame_of_an_old_batch_does_not_turn_back_the_clock(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that everybody had given up writes its frame long after another attempt's was published."""
    for batch in range(4):
        monkeypatch.setattr(time, "time", lambda batch=batch: 1_000.0 + 10 * batch)
        publish(agent, batch, write(agent, batch, batch))
    monkeypatch.setattr(time, "time", lambda: 1_025.0)
    write(agent, 0, 77)
    found = agent.ask("view_offsets", starting_timestamp_ms=1_024_000)
    assert found == bounds(3, 3, 3)


def lose_the_frame_of(agent: Agent, batch: int) -> None:
    """As when a segment was deleted by hand: no frame of that batch is there."""
    path = Path(agent.home, manifest_path(batch))
    there = load(open_storage(agent.home), batch)
    path.unlink()
    publish(agent, batch, "ab" * 16, generation=there.generation)


def test_a_start_finds_a_manifest_whose_frame_is_gone(agent: Agent) -> None:
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch))
    assert agent.warnings(3) == []
    for batch in (1, 2):
        lose_the_frame_of(agent, batch)
    (line,) = agent.warnings(3)
    lost = "no segment holds 1 of the 1 frames of batch 1 (and so it is with 1 more)"
    assert line.startswith(f"the log at {agent.home} has lost output: {lost}")
    assert 'option("failOnDataLoss", "false")' in line and "`cec verify` names all" in line


def test_a_stream_reads_across_batches_that_had_another_sink_once_that_is_said(agent: Agent) -> None:
    """A start with the `cec` sink warns of them. Neither the log nor the checkpoint tells them from lost ones."""
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch))
    assert agent.warnings(3) == []
    (line,) = agent.warnings(7)
    assert line.startswith(f"the log at {agent.home} has no output of batches 4 to 7, which Spark has committed: they")
    assert "run `cec repair` with --other-sink 4-7" in line
    publish(agent, 8, write(agent, 8, 8))
    before = agent.ask("view_offsets", after=8)
    with pytest.raises(Refused, match="the manifest of batch 4 is missing"):
        numbers(agent, 4, 8, whole=False)
    storage = open_storage(agent.home)
    note_other_sink(storage, plan_other_sink(storage, range(4, 8)))
    assert numbers(agent, 4, 8, whole=False) == [8]
    assert numbers(agent, 0, 8, whole=False) == [0, 1, 2, 3, 8]
    assert agent.ask("view_offsets", after=3)["last"] == 8
    assert agent.ask("view_offsets", after=8) == before, "a stream that has read on stays where it is"
    assert agent.warnings(8) == []
    Path(agent.home, manifest_path(2)).unlink()
    with pytest.raises(Refused, match="the manifest of batch 2 is missing"):
        numbers(agent, 0, 8, whole=False)


def test_a_start_that_may_have_another_sink_warns_of_no_batch_without_output(agent: Agent) -> None:
    assert agent.warnings(3) == [], "the sink is new, and readers begin with its first batch"
    publish(agent, 4, write(agent, 4, 4))
    for log in ("offsets", "commits"):
        open_storage(agent.checkpoint).replace(f"{log}/7", b"v1\n{}\n-")
    said = agent.begin(7, decision=WITH_STATE, sink="waits")["said"]
    assert not any("has no output" in each["line"] for each in said)
    said = agent.begin(7, decision=WITH_STATE, sink="log")["said"]
    assert any("has no output of batches 5 to 7" in each["line"] for each in said)
    restore_retirement(open_storage(agent.home), 6)
    Path(agent.home, manifest_path(4)).unlink()
    assert "has no output of batches 6 to 7" in agent.warnings(7)[0], "all that was published was let go"


def test_a_start_finds_a_manifest_that_is_damaged(agent: Agent) -> None:
    for batch in range(2):
        publish(agent, batch, write(agent, batch, batch))
    Path(agent.home, manifest_path(0)).write_bytes(b"{")
    (line,) = agent.warnings(1)
    assert "the manifest of batch 0 cannot be read" in line


@pytest.mark.parametrize("damage", ["frame", "manifest"])
def test_a_manifest_that_would_stand_for_a_batch_that_runs_again_is_named_with_its_mend(
    agent: Agent, damage: str
) -> None:
    """The batch was published, and Spark has not committed it: the first manifest of a batch wins."""
    for batch in range(2):
        publish(agent, batch, write(agent, batch, batch))
    path = Path(agent.home, manifest_path(1))
    if damage == "frame":
        lose_the_frame_of(agent, 1)
    else:
        path.write_bytes(b"{")
    with pytest.raises(Refused, match=f"the batch is about to run again: delete {path}, and") as refused:
        agent.begin(0)
    assert refused.value.kind == "UnsuitableCheckpoint"
    path.unlink()
    assert agent.warnings(0) == []
    assert publish(agent, 1, write(agent, 1, 1))
    assert numbers(agent) == [0, 1]


def test_what_a_start_looks_at_is_bounded(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(6):
        publish(agent, batch, *(write(agent, batch, row, partition=row) for row in range(3)))
    lose_the_frame_of(agent, 0)
    assert len(agent.warnings(5)) == 1
    with monkeypatch.context() as fewer:
        fewer.setattr(lost_output, "MAX_MANIFESTS_LOCAL", 5)
        assert agent.warnings(5) == []
    with monkeypatch.context() as fewer:
        fewer.setattr(lost_output, "MAX_FRAMES", 15)
        assert agent.warnings(5) == []


def test_a_clock_that_was_set_back_hides_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    later = Agent(tmp_path)
    clock = [1_000.0, 1_010.0, 500.0, 990.0, 1_020.0, 10.0]
    for batch, now in enumerate(clock):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        if batch == 3:  # another agent has not seen the earlier ones
            later.begin_run(2)
        publisher = later if batch >= 3 else agent
        publish(publisher, batch, write(publisher, batch, batch))
    for since_ms, first in ((0, 0), (1_000_001, 1), (1_010_001, 4), (1_020_001, 6)):
        assert agent.ask("view_offsets", starting_timestamp_ms=since_ms)["first"] == first, since_ms
    later.calls.close()


@pytest.mark.parametrize(("asked", "since"), [("view_schema", {}), ("view_offsets", {"starting_timestamp_ms": 0})])
def test_a_batch_is_let_go_while_a_read_is_planned(
    agent: Agent, asked: str, since: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch))
    storage, load_one = open_storage(agent.home), manifest.load
    due = [2]

    def late(storage: Any, batch: int) -> manifest.Manifest:
        if due:
            retire(storage, due.pop())
        return load_one(storage, batch)

    agent.ask("view_schema")
    monkeypatch.setattr(manifest, "load", late)
    answer = agent.ask(asked, **since)
    assert answer in ({"schemas": [SCHEMA, SCHEMA]}, bounds(2, 3, 3))
    assert not due and manifest.batches(storage) == [2, 3]


def test_a_cut_leaves_nothing_that_is_still_kept(agent: Agent) -> None:
    """All up to it has been let go: who has read up to it goes on behind it, who has not is told."""
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    retire(open_storage(agent.home), 4)
    take_back(open_storage(agent.home), 3, 2)
    nothing = bounds(4, 3, 3)
    assert agent.ask("view_offsets") == nothing
    assert agent.ask("view_offsets", after=3) == nothing
    assert agent.ask("view_splits", view="output", first=4, last=3, whole=False)["splits"] == []
    assert agent.ask("view_offsets", after=1)["last"] == 3
    with pytest.raises(Refused, match="batches 2 to 3 of the output are not kept any more"):
        agent.ask("view_splits", view="output", first=2, last=3, whole=False)
    with pytest.raises(Refused, match=r"up to batch 4 of the output, of which run 2 .* taken back all after batch 3"):
        agent.ask("view_offsets", after=4)
    publish(agent, 4, write(agent, 4, 44), generation=2)
    assert agent.ask("view_offsets", after=3)["last"] == 4
    assert numbers(agent, 4, 4, whole=False) == [44]


def test_columns_are_picked_and_missing_ones_are_null(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1, 2))
    bounds = {"first": 0, "last": 0, "whole": True}
    assert read(agent, "output", ["n", "added later"], **bounds) == [
        {"n": 1, "added later": None},
        {"n": 2, "added later": None},
    ]
    (split,) = agent.ask("view_splits", view="output", **bounds)["splits"]
    assert agent.ask("read_split", split=split, columns=[])["rows"] == 2, "a count needs no column"


def of_columns(**types: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize("whole", [True, False])
def test_rows_are_not_read_by_a_type_that_they_were_not_written_with(agent: Agent, whole: bool) -> None:
    """Microseconds as a number, or the fields of a struct in another order: nothing in the bytes says so."""
    number, time = of_columns(n="long"), of_columns(n="timestamp", m="string")
    publish(agent, 0, write(agent, 0, 1, 2), schema=number)
    publish(agent, 1, schema=of_columns(n="string"))  # without a row there is none to misread
    publish(agent, 2, write(agent, 2, 3), schema=time)
    bounds = {"view": "output", "whole": whole}
    with pytest.raises(Refused, match="column n was written as BIGINT with batch 0, and is wanted as TIMESTAMP"):
        agent.ask("view_splits", **bounds, first=0, last=2, schema=time)
    with pytest.raises(Refused, match="column n was written as TIMESTAMP with batch 2, and is wanted as BIGINT"):
        agent.ask("view_splits", **bounds, first=0, last=2, schema=number)
    for first, last, wanted in ((0, 1, number), (1, 2, time), (0, 2, of_columns(other="long"))):
        assert agent.ask("view_splits", **bounds, first=first, last=last, schema=wanted)["splits"]
    assert [agent.ask("view_offsets", after=after)["last"] for after in (-1, 1)] == [1, 2], "no batch has both"


def test_a_column_that_is_spelled_in_another_case_is_not_null(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1, 2), schema=of_columns(n="long"))
    bounds = {"first": 0, "last": 0, "whole": True}
    assert read(agent, "output", ["N"], **bounds) == [{"N": 1}, {"N": 2}]
    with pytest.raises(Refused, match="column N was written as BIGINT with batch 0, and is wanted as STRING"):
        agent.ask("view_splits", view="output", **bounds, schema=of_columns(N="string"))
    agent.conf["spark.sql.caseSensitive"] = "true"
    assert read(agent, "output", ["N"], **bounds) == [{"N": None}, {"N": None}]


def test_the_oldest_manifests_are_missed_by_who_has_read_the_one_before(agent: Agent) -> None:
    """As where a rule of a bucket removes what is old: nothing says that these were let go."""
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    storage = open_storage(agent.home)
    for batch in range(4):
        storage.delete(manifest_path(batch))
    with pytest.raises(Refused, match=r"0002.json: the manifests before batch 4 are missing"):
        numbers(agent, 2, 5, whole=False)
    assert lost(agent, 2, 5, whole=False)[0] == [4, 5]
    assert numbers(agent, 4, 5, whole=False) == [4, 5]
    storage.replace("manifests/retired.json", b'{"before":3}')
    with pytest.raises(Refused, match=r"0003.json: the manifests before batch 4 are missing"):
        numbers(agent, 3, 5, whole=False)


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_manifest_at_an_end_does_not_hide_the_columns(agent: Agent, damaged: int) -> None:
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch), schema=of_columns(**{f"c{batch}": "long"}))
    open_storage(agent.home).replace(manifest_path(damaged), b"{}")
    with pytest.raises(Refused, match="no manifest"):
        agent.ask("view_schema")
    newest, oldest = (3, 1) if damaged == 0 else (2, 0)
    wanted = [of_columns(**{f"c{batch}": "long"}) for batch in (newest, oldest)]
    assert agent.ask("view_schema", may_lose=True)["schemas"] == wanted


def test_what_is_let_go_after_a_read_was_planned_is_no_damage(agent: Agent) -> None:
    for batch in range(4):
        publish(agent, batch, write(agent, batch, batch))
    (split,) = agent.ask("view_splits", view="output", first=1, last=3, whole=False)["splits"]
    (segment,) = (Path(agent.home) / "segments").iterdir()
    segment.unlink()
    with pytest.raises(Refused) as refused:
        agent.ask("read_split", split=split, columns=None)
    assert refused.value.kind == "DamagedLog"
    retire(open_storage(agent.home), 2)
    with pytest.raises(Refused, match="batches 1 to 1 of the output are not kept any more"):
        agent.ask("read_split", split=split, columns=None)


@pytest.mark.parametrize(("bound", "wanted"), [({"max_batches": 1}, [0, 3, 4]), ({"max_rows": 1}, [2, 3, 4])])
def test_empty_batches_count_for_no_bound(agent: Agent, bound: dict[str, int], wanted: list[int]) -> None:
    for batch, rows in enumerate([(1,), (), (), (2, 3), (4,)]):
        publish(agent, batch, write(agent, batch, *rows))
    ends, after = [], -1
    while after < 4:
        after = int(agent.ask("view_offsets", after=after, **bound)["last"])
        ends.append(after)
        assert len(ends) < 9
    assert ends == wanted


def test_a_clock_that_is_ahead_makes_no_batch_wait_for_long(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    publish(agent, 0)
    monkeypatch.setattr(time, "time", lambda: 10_000.0 - 3_600)
    assert agent.ask("view_offsets", after=-1)["last"] == 0


def test_a_column_that_is_not_asked_for_may_be_of_several_types(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1))
    spool = agent.spool(pa.table({"n": pa.array([b"two"]), "m": pa.array([2], pa.int64())}))
    publish(agent, 1, agent.write_output(1, spool, 1))
    assert read(agent, "output", ["m"], first=0, last=1, whole=True) == [{"m": None}, {"m": 2}]


def test_large_output_is_split(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_module, "SPLIT_BYTES", 1)
    publish(agent, 0, *[write(agent, 0, n, partition=n) for n in range(4)])
    assert len(agent.ask("view_splits", view="output", first=0, last=0, whole=True)["splits"]) == 4
    assert numbers(agent) == [0, 1, 2, 3]


def lost(agent: Agent, first: int, last: int, *, whole: bool) -> tuple[list[int], list[str]]:
    """What a reader gets that may lose something, and what it is told."""
    bounds = {"first": first, "last": last, "whole": whole}
    answer = agent.ask("view_splits", view="output", may_lose=True, **bounds)
    rows, told = list[int](), list[str](answer["lost"])
    for split in answer["splits"]:
        part = agent.ask("read_split", split=split, columns=None, may_lose=True)
        rows += [row["n"] for row in agent.rows(part)]
        told += part["lost"]
    return rows, told


def test_a_stream_does_not_pass_over_what_is_not_kept_any_more(agent: Agent) -> None:
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    retire(open_storage(agent.home), 4)
    assert numbers(agent, 4, 5, whole=False) == [4, 5]
    assert numbers(agent, 0, 5) == [4, 5], "a whole read is of what is kept"
    with pytest.raises(Refused, match=r"batches 2 to 3 of the output are not kept any more \(output.retainBatches"):
        numbers(agent, 2, 5, whole=False)
    rows, told = lost(agent, 2, 5, whole=False)
    assert rows == [4, 5]
    assert len(told) == 1
    assert "batches 2 to 3" in told[0]


def test_output_that_begins_late_is_no_loss(agent: Agent) -> None:
    """A query that wrote elsewhere before: its first batch here is not its first."""
    publish(agent, 7, write(agent, 7, 7))
    assert numbers(agent, 0, 7, whole=False) == [7]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("damage", ["manifest gone", "manifest damaged", "frame gone", "frame damaged"])
def test_lost_output_is_named_and_passed_over_only_if_that_is_wanted(agent: Agent, damage: str, whole: bool) -> None:
    for batch in range(5):
        publish(agent, batch, "ab" * 16 if damage == "frame gone" and batch == 2 else write(agent, batch, batch))
    path = manifest_path(2)
    if damage == "manifest gone":
        open_storage(agent.home).delete(path)
    if damage == "manifest damaged":
        open_storage(agent.home).replace(path, open_storage(agent.home).read(path)[:-9])
    if damage == "frame damaged":
        (split,) = agent.ask("view_splits", view="output", first=2, last=2, whole=False)["splits"]
        segment, offset, length, _ = split["frames"][0]
        data = bytearray(open_storage(agent.home).read(segment_path(segment)))
        data[offset + length - 6] ^= 0x40
        open_storage(agent.home).replace(segment_path(segment), bytes(data))
    with pytest.raises(Refused, match="damaged log"):
        numbers(agent, 0, 4, whole=whole)
    rows, told = lost(agent, 0, 4, whole=whole)
    assert rows == [0, 1, 3, 4]
    assert told
    assert all("damaged log" in each for each in told)
    assert numbers(agent, 3, 4, whole=whole) == [3, 4], "what is behind it is read as ever"


def test_a_frame_that_is_gone_is_named(agent: Agent) -> None:
    publish(agent, 0, "ab" * 16)
    with pytest.raises(
        Refused, match=r"output frame (ab)+ of batch 0: the manifest names it, but no segment holds it"
    ) as refused:
        numbers(agent)
    assert refused.value.kind == "DamagedLog"


def two_stores(agent: Agent) -> None:
    for partition in (0, 1):
        tip = Tip()
        for batch in (window(b"a%d" % partition), window(b"b%d" % partition), window(b"a%d" % partition, b"2")):
            tip, _ = agent.append(StoreId(0, partition), tip, batch)


def test_the_windows_of_all_partitions(agent: Agent) -> None:
    two_stores(agent)
    rows = read(agent, "windows", operator=0, store="default", version=None)
    found = {(row["partition"], row["key"]): (row["value"], row["footprint_version"], row["dirty"]) for row in rows}
    assert found == {
        (0, b"a0"): (b"1", 1, None),
        (0, b"b0"): (b"1", 2, None),
        (1, b"a1"): (b"1", 1, None),
        (1, b"b1"): (b"1", 2, None),
    }
    older = read(agent, "windows", operator=0, store="default", version=2)
    assert {row["dirty"] for row in older} == {False}
    assert len(read(agent, "windows", operator=0, store="default", version=1)) == 2


@pytest.mark.parametrize("version", [0, -1, 4, 99])
def test_a_version_that_is_not_there_is_no_damage(version: int, agent: Agent) -> None:
    two_stores(agent)
    with pytest.raises(Refused, match=rf"no version {version} of all partitions: give one from 1 to \d$") as refused:
        read(agent, "windows", operator=0, store="default", version=version)
    assert refused.value.kind == "LogLocationError"


def test_a_store_that_is_not_there_is_told_from_those_that_are(agent: Agent) -> None:
    two_stores(agent)
    with pytest.raises(Refused, match=r"no store 'left' of operator 3; there are: operator 0 store default"):
        read(agent, "windows", operator=3, store="left", version=None)


def test_the_raw_log(agent: Agent) -> None:
    tip, _ = agent.append(StoreId(0, 0), Tip(), {**window(b"a"), **window(b"b")})
    tip, _ = agent.append(StoreId(0, 0), tip, {**window(b"a", b"")}, {b"b"})
    agent.append(StoreId(4, 1, "left"), Tip(), {b"g": {b"k1": b"1", b"k2": b"2"}}, grouped=True)
    rows = read(agent, "log")
    found = sorted(
        (r["operator"], r["partition"], r["store"], r["version"], r["kind"], r["window"], r["key"], r["value"])
        for r in rows
    )
    assert found == [
        (0, 0, "default", 1, "OPEN", b"a", b"a", b"1"),
        (0, 0, "default", 1, "OPEN", b"b", b"b", b"1"),
        (0, 0, "default", 2, "CHECK", b"b", b"b", b"1"),
        (0, 0, "default", 2, "CLOSE", b"a", b"a", None),
        (4, 1, "left", 1, "OPEN", b"g", b"k1", b"1"),
        (4, 1, "left", 1, "OPEN", b"g", b"k2", b"2"),
    ]
    assert {r["segment"] for r in rows} <= {path.name for path in Path(agent.home, "segments").iterdir()}


def test_reading_begins_no_log(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    for name in ("view_schema", "view_splits", "view_offsets"):
        with pytest.raises(
            Refused, match="there is no log here: give the checkpoint of a query, or the `path` of its sink"
        ) as refused:
            agent.ask(name, **({"view": "log"} if name == "view_splits" else {}))
        assert refused.value.kind == "LogLocationError"
    assert not Path(agent.checkpoint).exists()
    agent.calls.close()


def test_reading_writes_nothing(agent: Agent) -> None:
    two_stores(agent)
    publish(agent, 0, write(agent, 0, 1))

    def files() -> dict[str, tuple[int, int]]:
        found = [path for path in Path(agent.checkpoint).rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    before = files()
    reader = Agent(agent.scratch)
    assert numbers(reader) == [1]
    assert len(read(reader, "windows", operator=0, store="default", version=None)) == 4
    assert len(read(reader, "log")) == 4
    reader.calls.close()
    assert files() == before
    assert json.loads(Path(agent.checkpoint, "cec", "query.json").read_text())["generation"] == 1


def test_a_stream_that_has_read_what_was_taken_back_is_told(agent: Agent) -> None:
    """Also one that runs, and has seen that all was right when it began; who has not read so far goes on."""
    for batch in range(5):
        publish(agent, batch, write(agent, batch, batch))
    storage = open_storage(agent.home)
    early = agent.ask("view_offsets", after=-1, max_batches=2)["of"]
    late = agent.ask("view_offsets", after=-1)["of"]
    assert agent.ask("view_offsets", after=4, seen=late, checked=True)["last"] == 4
    take_back(storage, 2, 2)
    told = r"has read up to batch 4 of the output, of which run 2 of the query .* has taken back all after batch 2"
    with pytest.raises(Refused, match=told):
        agent.ask("view_offsets", after=4, seen=late, checked=True)
    assert agent.ask("view_offsets", after=1, seen=early, checked=True)["last"] == 2
    for batch in (3, 4, 5):
        publish(agent, batch, write(agent, batch, 10 * batch), generation=2)
    with pytest.raises(Refused, match=told):
        agent.ask("view_offsets", after=4, seen=late, checked=True)
    with pytest.raises(Refused, match=told):
        agent.ask("view_splits", view="output", first=3, last=4, whole=False, seen=late)
    assert numbers(agent) == [0, 1, 2, 30, 40, 50]
    assert agent.ask("view_offsets", after=1, seen=early, checked=True)["last"] == 5


def test_a_stream_that_runs_notices_a_log_that_was_begun_anew(agent: Agent) -> None:
    """Its query was deleted and started again, and has more batches than the stream has read, before it looks again."""
    for batch in range(5):
        publish(agent, batch, write(agent, batch, batch))
    seen = agent.ask("view_offsets", after=-1, max_batches=2)["of"]
    assert agent.ask("view_offsets", after=1, seen=seen, checked=True)["last"] == 4
    with pytest.raises(Refused, match="batch 1 of the output, which has another batch of that number now"):
        agent.ask("view_offsets", after=1, seen="00000000" + seen[8:], checked=True)


def test_a_rollback_while_a_stream_looks_gives_no_offset_without_an_identity(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an offset would fit each batch that has its number later, and the stream would pass over the rollback."""
    for batch in range(8):
        publish(agent, batch, write(agent, batch, batch))
    seen = agent.ask("view_offsets", after=-1, max_batches=3)["of"]
    choose = views_module._choose_end

    def roll_back(*given: Any) -> int:
        last = choose(*given)
        take_back(open_storage(agent.home), 3, 2)
        return last

    monkeypatch.setattr(views_module, "_choose_end", roll_back)
    with pytest.raises(Refused, match=r"up to batch 7 of the output, of which run 2 .* taken back all after batch 3"):
        agent.ask("view_offsets", after=2, seen=seen, checked=True)
    monkeypatch.undo()
    assert agent.ask("view_offsets", after=2, seen=seen, checked=True)["last"] == 3


def test_a_run_that_is_cut_off_while_it_publishes_replaces_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run has published the batch. A rollback comes, and a later run has the batch next."""
    publish(agent, 0, write(agent, 0, 1))
    frame, storage_type = write(agent, 0, 2), type(open_storage(agent.home))
    real = storage_type.create

    def cut_first(storage: Any, path: str, content: bytes) -> Any:
        if path == manifest_path(0):
            monkeypatch.undo()
            append_cut(open_storage(agent.home), -1, 3, 0)
        return real(storage, path, content)

    monkeypatch.setattr(storage_type, "create", cut_first)
    with pytest.raises(Refused, match="run 3 has taken back the output after batch -1"):
        publish(agent, 0, frame, generation=2)
    assert load(open_storage(agent.home), 0).generation == 1, "it is as it was"


def test_a_run_whose_output_was_taken_back_publishes_nothing(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1))
    take_back(open_storage(agent.home), -1, 2)
    with pytest.raises(Refused, match="run 1 cannot publish batch 0 any more"):
        publish(agent, 0, write(agent, 0, 1))
    assert publish(agent, 0, write(agent, 0, 2), generation=2)
    assert numbers(agent) == [2]


def test_a_channel_without_a_batch_has_markers_too(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source without a batch must not stop the rounds of a protocol, so the protocol hears of each look."""
    looks: list[tuple[int, int, int | None]] = []
    monkeypatch.setattr(ProtocolCalls, "end_of", lambda *_: -1)
    monkeypatch.setattr(
        ProtocolCalls, "will_read", lambda _self, _settings, _channel, _log, *given: looks.append(given[:3])
    )
    for _ in range(2):
        assert agent.ask("view_offsets", after=-1)["last"] == -1
    assert looks == [(-1, -1, -1)] * 2
    publish(agent, 0, write(agent, 0, 1))
    assert agent.ask("view_offsets", after=-1)["last"] == -1
    assert looks == [(-1, -1, -1)] * 3


def test_who_waits_for_a_log_may_plan_a_batch_of_nothing(tmp_path: Path, agent: Agent) -> None:
    """Spark runs a first batch from nothing to nothing; and two readers may be told at once that there is no log."""
    nowhere = {"path": str(tmp_path / "up"), "view": "output", "first": 0, "last": -1, "whole": False}
    assert agent.ask("view_splits", **nowhere) == {"splits": [], "lost": []}
    for _ in range(2):
        assert agent.ask("view_offsets", path=str(tmp_path / "up"), may_wait=True)["last"] == -1


def test_a_reader_is_not_misled_when_the_writer_knows_of_a_cut_first(agent: Agent) -> None:
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    seen = agent.ask("view_offsets", after=-1, max_batches=3)["of"]
    take_back(open_storage(agent.home), 3, 2)
    publish(agent, 4, write(agent, 4, 40), generation=2)
    assert agent.ask("view_offsets", after=2, seen=seen, checked=True)["last"] == 4
    assert numbers(agent) == [0, 1, 2, 3, 40]


def test_what_is_published_while_a_read_is_planned_is_no_damage(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frames are not in the catalog yet; who reads all has what there was."""
    publish(agent, 0, write(agent, 0, 0))

    def late(storage: Any, catalog: Any, *rest: Any) -> Any:
        frame = write(agent, 1, 1)
        publish(agent, 1, frame)
        assert frame is not None
        known = catalog.index.output
        monkeypatch.setattr(catalog.index, "output", lambda each: None if each.hex() == frame else known(each))
        return output_batches(storage, catalog, *rest)

    monkeypatch.setattr("spark_cec.agent.reader.output_batches", late)
    assert numbers(agent, 0, (1 << 63) - 1) == [0]


def take_back_within(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, batches_before: int, *anew: int
) -> Callable[[], None]:
    """The next load of manifests comes to so many batches, and a rollback takes back all after batch 3.

    A later run has the batches `anew`, then. Answers a check that this has happened.
    """
    real, done = manifest.load_between, list[bool]()

    def load_some(storage: Any, first: int, last: int) -> Iterator[Any]:
        for number, found in enumerate(real(storage, first, last)):
            yield found
            if number + 1 == batches_before and not done:
                done.append(True)
                take_back(open_storage(agent.home), 3, 2)
                for batch in anew:
                    publish(agent, batch, write(agent, batch, 10 * batch), generation=2)

    def cut_first(storage: Any, first: int, last: int) -> Iterator[Any]:
        if not batches_before and not done:
            done.append(True)
            take_back(open_storage(agent.home), 3, 2)
        return load_some(storage, first, last)

    def check() -> None:
        assert done

    monkeypatch.setattr(manifest, "load_between", cut_first)
    return check


@pytest.mark.parametrize("may_lose", [False, True])
@pytest.mark.parametrize(
    ("batches_before", "anew", "left"),
    [(0, (), [0, 1, 2, 3]), (5, (), [0, 1, 2, 3]), (5, (4, 5), [0, 1, 2, 3, 40, 50])],
)
def test_a_rollback_while_a_read_is_planned_is_no_damage(
    batches_before: int, anew: tuple[int, ...], left: list[int], may_lose: bool, agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read has what there is after the rollback: no batch of the history that was taken back beside a later one."""
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    check = take_back_within(agent, monkeypatch, batches_before, *anew)
    answer = agent.ask("view_splits", view="output", first=0, last=99, whole=True, may_lose=may_lose)
    check()
    found = [row["n"] for split in answer["splits"] for row in agent.rows(agent.ask("read_split", split=split))]
    assert (found, answer["lost"]) == (left, [])
    assert numbers(agent) == left


@pytest.mark.parametrize("may_lose", [False, True])
def test_a_rollback_while_a_batch_of_a_stream_is_planned_is_named(
    may_lose: bool, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that came before."""
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    seen = agent.ask("view_offsets", after=1)["of"]
    check = take_back_within(agent, monkeypatch, 0)
    with pytest.raises(Refused, match=r"up to batch 5 of the output, of which run 2 .* has taken back") as named:
        agent.ask("view_splits", view="output", first=2, last=5, whole=False, seen=seen, may_lose=may_lose)
    check()
    assert named.value.kind == "OutputTakenBack"
    with pytest.raises(Refused) as later:
        agent.ask("view_splits", view="output", first=2, last=5, whole=False, seen=seen, may_lose=may_lose)
    assert (later.value.kind, str(later.value)) == ("OutputTakenBack", str(named.value))


def test_a_rollback_to_the_beginning_while_a_start_by_time_looks_leaves_no_batch(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(3):
        publish(agent, batch, write(agent, batch, batch))
    find = views_module._find_since

    def roll_back(*given: Any) -> Any:
        if open_storage(agent.home).exists(manifest_path(0)):
            take_back(open_storage(agent.home), -1, 2)
        return find(*given)

    monkeypatch.setattr(views_module, "_find_since", roll_back)
    during = agent.ask("view_offsets", starting_timestamp_ms=0)
    assert during == agent.ask("view_offsets", starting_timestamp_ms=0) == bounds(0, -1, -1)


def test_a_missing_manifest_is_damage_behind_an_older_rollback(agent: Agent) -> None:
    """Only a rollback that came while the read was planned explains one."""
    for batch in range(6):
        publish(agent, batch, write(agent, batch, batch))
    take_back(open_storage(agent.home), 3, 2)
    publish(agent, 4, write(agent, 4, 40), generation=2)
    open_storage(agent.home).delete(manifest_path(2))
    with pytest.raises(Refused, match="the manifest of batch 2 is missing"):
        numbers(agent)


QUIET = {"spark.sql.streaming.stateStore.cec.sources.quiet": "1s"}


def note(agent: Agent, batch: int, quiet_ms: int, generation: int = 1) -> None:
    """The writer has read all input up to a time, and has ended with this batch."""
    agent.ask("boundary", batch=batch, quiet_ms=quiet_ms, columns={"end": quiet_ms + 7}, generation=generation)


def quiet_ms(agent: Agent, after: int, **more: Any) -> int | None:
    """Up to when the channel is read by a stream that has read up to a batch."""
    answer = agent.ask("view_offsets", after=after, conf={**agent.conf, **QUIET}, checked=True, **more)
    found: int | None = answer["quiet_ms"]
    assert answer["columns"] == ({} if found is None else {"end": found + 7})
    return found


def test_a_stream_that_has_read_all_knows_up_to_when_its_channel_is_complete(agent: Agent) -> None:
    assert quiet_ms(agent, -1) is None
    note(agent, -1, 500)
    assert quiet_ms(agent, -1) == 500, "no batch is needed for that"
    publish(agent, 0, write(agent, 0, 1))
    assert quiet_ms(agent, -1) is None, "it has not read the batch"
    assert quiet_ms(agent, 0) == 500
    note(agent, 0, 700)
    publish(agent, 1, write(agent, 1, 4))
    assert quiet_ms(agent, 0) is None and quiet_ms(agent, 1) == 700
    note(agent, 1, 800)
    assert quiet_ms(agent, 1) == 800
    note(agent, 1, 790)
    assert quiet_ms(agent, 1) == 800, "it never goes back"
    note(agent, 2, 990)
    assert quiet_ms(agent, 1) == 800, "the writer's last batch is not there"


def test_a_stream_reads_batches_without_rows_before_it_takes_what_is_said_behind_them(agent: Agent) -> None:
    """Else it would not notice that they are taken back."""
    publish(agent, 0, write(agent, 0, 1))
    publish(agent, 1)
    note(agent, 1, 900)
    assert quiet_ms(agent, 0) is None
    soon = time.monotonic() + 30

    def end() -> int:
        asked = {**agent.conf, **QUIET, "spark.sql.streaming.stateStore.cec.sources.quiet": "100ms"}
        return int(agent.ask("view_offsets", after=0, conf=asked, checked=True)["last"])

    while end() == 0:  # they wait for as long as a step
        assert time.monotonic() < soon
    assert quiet_ms(agent, 1) == 900


def test_a_stream_with_an_end_or_without_the_setting_knows_nothing(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1))
    note(agent, 0, 900)
    assert quiet_ms(agent, 0) == 900
    assert quiet_ms(agent, 0, up_to=0) is None
    assert agent.ask("view_offsets", after=0, checked=True)["quiet_ms"] is None


def test_a_boundary_does_not_outlive_the_batch_that_it_is_after(agent: Agent) -> None:
    """A rollback takes the batch back, and the query writes another one of its number."""
    for batch in (0, 1):
        publish(agent, batch, write(agent, batch, batch))
    note(agent, 1, 900)
    log = open_storage(agent.home)
    take_back(log, 0, 2)
    assert quiet_ms(agent, 0) is None, "batch 1 is gone"
    with pytest.raises(Refused, match="run 2 has taken back the output after batch 0"):
        note(agent, 1, 950)
    publish(agent, 1, write(agent, 1, 7, 8), generation=2)
    assert quiet_ms(agent, 1) is None, "this is another batch 1"
    with pytest.raises(Refused, match="run 2 has taken back"):
        note(agent, 1, 960)
    note(agent, 1, 600, generation=2)
    assert quiet_ms(agent, 1) == 600


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 1}', b"\xff"])
def test_a_damaged_boundary_is_as_good_as_none(agent: Agent, content: bytes) -> None:
    publish(agent, 0, write(agent, 0, 1))
    note(agent, 0, 900)
    log = open_storage(agent.home)
    log.replace(BOUNDARY_FILE, content)
    assert quiet_ms(agent, 0) is None
    note(agent, 0, 901)
    assert quiet_ms(agent, 0) == 901


def test_a_stream_that_was_taken_back_says_where_it_goes_on(agent: Agent) -> None:
    storage = open_storage(agent.home)
    for batch in range(9):
        write(agent, batch, batch)
        publish(agent, batch)
    ask = {"path": agent.checkpoint, "reader": "board", "may_wait": False, "retained": 1}
    agent.ask("note_reader", begins=-1, **ask)
    for batch in range(8):
        agent.ask("note_reader", ends=batch, **ask)
    agent.ask("note_reader", **ask)
    before = json.loads(storage.read("readers/board.json"))
    assert before["ends"][-1] == 7
    agent.ask("note_reader", resumes=7, **ask)
    assert json.loads(storage.read("readers/board.json")) == before
    agent.ask("note_reader", resumes=5, **ask)
    assert json.loads(storage.read("readers/board.json"))["ends"][-1] == 5
