"""The calls of sink and reader: output becomes visible as a whole, and the three views show what is there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import reader as views_module
from spark_cec.ids import StoreId
from spark_cec.log.manifest import manifest_path, retire
from spark_cec.log.segment import segment_path
from tests.agent.support import Agent, Refused, window
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
    answer = agent.ask("write_output", batch=batch, partition=partition, attempt=0, generation=1, spool=spool)
    assert answer["rows"] == len(rows)
    frame = answer["frame"]
    assert frame is None or isinstance(frame, str)
    return frame


def publish(agent: Agent, batch: int, *frames: str | None, truncate: bool = False) -> bool:
    named = [frame for frame in frames if frame]
    return bool(
        agent.ask("publish", batch=batch, frames=named, rows=0, schema=SCHEMA, truncate=truncate, generation=1)["first"]
    )


def read(agent: Agent, view: str, columns: list[str] | None = None, **bounds: Any) -> list[dict[str, Any]]:
    splits = agent.ask("view_splits", view=view, **bounds)["splits"]
    return [row for split in splits for row in agent.rows(agent.ask("read_split", split=split, columns=columns))]


def numbers(agent: Agent, first: int = 0, last: int = 99, *, whole: bool = True) -> list[int]:
    return [row["n"] for row in read(agent, "output", first=first, last=last, whole=whole)]


def test_output_is_invisible_until_its_batch_is_published(agent: Agent) -> None:
    frames = [write(agent, 0, 1, 2), write(agent, 0, 3, partition=1)]
    assert agent.ask("view_schema")["schemas"] == []
    assert agent.ask("view_offsets", starting_timestamp_ms=None) == {"first": 0, "last": -1}
    assert numbers(agent) == []
    assert publish(agent, 0, *frames)
    assert numbers(agent) == [1, 2, 3]
    assert agent.ask("view_schema")["schemas"] == [SCHEMA, SCHEMA], "the newest batch's, and the oldest's"


def test_where_a_streams_next_batch_ends(agent: Agent) -> None:
    assert agent.ask("view_offsets", after=-1) == {"first": 0, "last": -1}
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
    assert agent.ask("view_offsets", starting_timestamp_ms=None) == {"first": 0, "last": 1}
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
        assert agent.ask("view_offsets", starting_timestamp_ms=since_ms) == {"first": first, "last": 3}, since_ms


def test_a_late_frame_of_an_old_batch_does_not_turn_back_the_clock(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that everybody had given up writes its frame long after another attempt's was published."""
    for batch in range(4):
        monkeypatch.setattr(time, "time", lambda batch=batch: 1_000.0 + 10 * batch)
        publish(agent, batch, write(agent, batch, batch))
    monkeypatch.setattr(time, "time", lambda: 1_025.0)
    write(agent, 0, 77)
    assert agent.ask("view_offsets", starting_timestamp_ms=1_024_000) == {"first": 3, "last": 3}


def test_columns_are_picked_and_missing_ones_are_null(agent: Agent) -> None:
    publish(agent, 0, write(agent, 0, 1, 2))
    bounds = {"first": 0, "last": 0, "whole": True}
    assert read(agent, "output", ["n", "added later"], **bounds) == [
        {"n": 1, "added later": None},
        {"n": 2, "added later": None},
    ]
    (split,) = agent.ask("view_splits", view="output", **bounds)["splits"]
    assert agent.ask("read_split", split=split, columns=[])["rows"] == 2, "a count needs no column"


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
        segment, offset, length = split["frames"][0]
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
            agent.ask(name, view="log")
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
