"""A mount of NFS may show old sizes for a minute. No frame that another machine wrote counts as missing for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import logs, protocols
from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage
from spark_cec.settings import ProtocolSettings
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip
from tests.log.support import OldSizes

STORE = StoreId(0, 3)
KEY = [0, 3, "default"]


@dataclass
class Machines:
    """An executor's agent, and another one that sees old sizes; both have the log open, after the first commit."""

    writer: Agent
    other: Agent
    sizes: OldSizes
    tip: Tip

    def append(self, changes: dict[bytes, Any], *checked: bytes) -> None:
        self.tip, _ = self.writer.append(STORE, self.tip, changes, frozenset(checked))

    def load(self, version: int) -> dict[bytes, int]:
        answer = self.other.ask("load", store=KEY, version=version, checkpoint_id=None, retained=100)
        return {row["window"]: row["footprint"] for row in self.other.rows(answer)}


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    wrapped: list[OldSizes] = []

    def open_old(url: str, *, must_exist: bool = False) -> Storage:
        wrapped.append(OldSizes(open_storage(url, must_exist=must_exist)))
        return wrapped[-1]

    writer = Agent(tmp_path)
    writer.begin_run(decision=WITH_STATE)
    writer.ask("open_log")
    tip, _ = writer.append(STORE, Tip(), window(b"a"))
    (tmp_path / "other").mkdir()
    other = Agent(tmp_path / "other", Path(writer.checkpoint))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(logs, "open_storage", open_old)
        other.ask("open_log")
    yield Machines(writer, other, wrapped[-1], tip)
    for agent in (writer, other):
        agent.calls.close()


def test_a_version_that_a_listing_does_not_show_is_loaded(machines: Machines) -> None:
    machines.append({**window(b"a", b"2"), **window(b"b")})
    machines.append({}, b"a", b"b")
    assert machines.load(3) == machines.tip.footprints
    assert machines.load(2) and machines.load(3), "the next listing is as old"
    machines.append(window(b"b", b"2"))
    assert machines.other.ask("footer", store=KEY, version=4, committed_batch=None)["footer"] is not None
    machines.sizes.now += 1
    machines.append({}, b"b")
    assert machines.load(5) == machines.tip.footprints


def test_a_version_that_nobody_wrote_is_damage(machines: Machines) -> None:
    with pytest.raises(Refused, match="no commit frame of version 2") as refused:
        machines.load(2)
    assert refused.value.kind == "DamagedLog"


def test_a_flush_that_a_listing_does_not_show_is_complete(machines: Machines) -> None:
    machines.append(window(b"a", b"2"))
    machines.append({}, b"a")
    told = machines.other.ask("flushed", version=3, generation=1, request=None, failed=[])
    assert told["unwritten"] == []
    machines.append(window(b"a", b"3"))
    machines.append({})
    told = machines.other.ask("flushed", version=5, generation=1, request=None, failed=[])
    assert told["unwritten"] == ["store 0/3/default still needs a replay from batch 3 on"]


def test_a_checkpoint_that_a_listing_does_not_show_is_whole(machines: Machines) -> None:
    """The executors of a flow have written their stores, and its driver asks at once."""
    machines.append(window(b"b"))
    other = machines.other
    run = protocols._Run(ProtocolSettings("", "f", "", True), other.checkpoint, other.home, 1, -1)
    with other.calls._logs.serving():
        log = other.calls._logs.get_known(other.home)
        assert protocols._find_stores_without(log, run, 2)[0] == []
        assert protocols._find_stores_without(log, run, 3)[0] == ["store 0/3/default"]


def test_a_start_begins_behind_the_newest_commit(machines: Machines) -> None:
    """The executors have just ended, with their newest commits."""
    machines.append(window(b"b"))
    machines.append({}, b"b")
    plan = machines.other.plan(committed=2, decision=WITH_STATE)
    assert (plan["committed_batch"], plan["rewound_to"], plan["base"]) == (2, 2, 3)


def test_rows_that_a_listing_does_not_show_are_read(machines: Machines) -> None:
    writer, other = machines.writer, machines.other
    frame = writer.write_output(0, writer.spool(pa.table({"n": pa.array([7], pa.int64())})), 1)
    known = {"schema": "{}", "truncate": False, "generation": 1, "sources": []}
    writer.ask("publish", batch=0, frames=[frame], rows=1, **known)
    splits = other.ask("view_splits", view="output", first=0, last=0, whole=False)["splits"]
    assert [row for split in splits for row in other.rows(other.ask("read_split", split=split))] == [{"n": 7}]


def test_writes_that_a_listing_does_not_show_are_found(machines: Machines) -> None:
    machines.append(window(b"b"))
    frame = machines.writer.write_output(0, machines.writer.spool(pa.table({"n": pa.array([1], pa.int64())})), 1)
    store = {"operator": 0, "partition": 3, "name": "default"}
    named = [{"store": store, "version": 2, "checkpoint_id": machines.tip.checkpoint_id.hex()}]
    found = machines.other.ask("find_writes", commits=named, frames=[frame])
    assert found == {"commits": [named[0]["checkpoint_id"]], "frames": [frame]}
