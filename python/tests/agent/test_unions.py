"""The calls of streams that read channels by buckets: they plan together, and late rows are kept aside."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import bucket_reads, channel_looks, unions
from spark_cec.agent.channel_looks import find_look_s
from spark_cec.agent.messages import BucketLeaveRequest
from spark_cec.agent.reader import ReaderCalls
from spark_cec.availability.buckets import Backlog, advance
from spark_cec.availability.union import Member
from spark_cec.availability.union import Union as BucketUnion
from spark_cec.log.boundary import Boundary, still_holds
from spark_cec.log.late import keep_late, list_late, read_late
from spark_cec.log.manifest import PublishedBatches, load, take_back
from spark_cec.log.storage import Storage
from spark_cec.log.times import TimeRange
from tests.agent.support import Agent, Refused
from tests.log.support import CannotAppend, memory_storage

NAMES = ("app", "web")
SCHEMA = json.dumps({"type": "struct", "fields": [
    {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    {"name": "time", "type": "timestamp", "nullable": True, "metadata": {}},
]})  # fmt: skip


@dataclass
class Union:
    """Channels, and the streams of one query that read them; `offsets` by channel, as the shim has them."""

    agents: dict[str, Agent]
    run: int = 0
    delay_ms: int = 1_000

    def __post_init__(self) -> None:
        self.names = tuple(self.agents)
        self.offsets: dict[str, dict[str, Any]] = {
            name: {"until_ms": 1, "batch": -1, "first": 0, "of": None} for name in self.names
        }
        self.written = dict.fromkeys(self.names, 0)

    def write(self, name: str, *times: int | None, old: bool = False, truncate: bool = False) -> None:
        """Publishes a batch with rows of these times. `old`: as an earlier release, without their range."""
        agent, batch = self.agents[name], self.written[name]
        self.written[name] += 1
        micros = [None if each is None else each * 1000 for each in times]
        numbers = [batch * 100 + place for place in range(len(times))]
        table = pa.table({"n": pa.array(numbers, pa.int64()), "time": pa.array(micros, pa.timestamp("us", "UTC"))})
        frames = [agent.write_output(batch, agent.spool(table), len(times))] if times else []
        known = [each for each in times if each is not None]
        ranges = {"column": "time", "first_ms": min(known, default=None), "last_ms": max(known, default=None)}
        sent = [] if old or not times else [{**ranges, "nulls": len(times) - len(known)}]
        agent.ask(
            "publish", batch=batch, generation=1, sources=[], frames=frames, rows=len(times), schema=SCHEMA,
            truncate=truncate, times=sent,
        )  # fmt: skip

    def ask(self, name: str, **more: Any) -> dict[str, Any]:
        """Where the stream's next batch ends."""
        members = [
            {"name": each, "path": self.agents[each].checkpoint, "time": "time", "delay_ms": self.delay_ms}
            for each in self.names
        ]
        at = self.offsets[name]
        sent = {"until_ms": at["until_ms"], "batch": at["batch"], "first": at["first"], "seen": at["of"]}
        return self.agents[name].ask("bucket_end", **{
            "union": {"bucket_ms": 1_000, "members": members}, "own": self.names.index(name), "query": "query",
            "source": f"sources/{self.names.index(name)}", "leader": f"run {self.run}", "leads": name == self.names[0],
            **sent, **more,
        })  # fmt: skip

    def plan(self, **more: Any) -> dict[str, dict[str, Any]]:
        """What Spark asks before a batch: each stream, one after the other."""
        return {name: self.ask(name, **more) for name in self.names}

    def read(self, ends: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
        """Runs the batch: the rows of each channel, in their order."""
        rows = {}
        for name, end in ends.items():
            agent, at = self.agents[name], self.offsets[name]
            rows[name] = self.rows(agent, at, end)
            self.offsets[name] = {key: end[key] for key in ("until_ms", "batch", "first", "of")}
        return rows

    def rows(
        self, agent: Agent, at: dict[str, Any], end: dict[str, Any], columns: Sequence[str] = ("n",)
    ) -> list[int]:
        if end["until_ms"] == at["until_ms"]:
            return []
        buckets = {
            "column": "time", "after_ms": at["until_ms"], "until_ms": end["until_ms"], "fresh_from": at["batch"] + 1,
            "reader": "totals",
        }  # fmt: skip
        bounds = {"first": at["first"], "last": end["batch"], "whole": False, "seen": end["of"], "schema": SCHEMA}
        splits = agent.ask("view_splits", view="output", **bounds, buckets=buckets)["splits"]
        answers = [agent.ask("read_split", split=each, columns=list(columns)) for each in splits]
        if not columns:
            return [int(answer["rows"]) for answer in answers]
        return [row["n"] for answer in answers for row in agent.rows(answer)]

    def batch(self, **more: Any) -> dict[str, list[int]]:
        return self.read(self.plan(**more))


    def replace_agent(self, tmp_path: Path) -> None:
        """The agent has died, and another one answers."""
        self.agents[self.names[0]].calls.close()
        calls = Agent(tmp_path / self.names[0]).calls
        for agent in self.agents.values():
            agent.calls = calls


def make_union(tmp_path: Path, names: Sequence[str]) -> Union:
    agents = {}
    for name in names:
        (tmp_path / name).mkdir()
        agents[name] = Agent(tmp_path / name)
    for name in names[1:]:
        agents[name].calls.close()
        agents[name].calls = agents[names[0]].calls  # one process reads all
    for agent in agents.values():
        agent.begin_run()
    return Union(agents)


@pytest.fixture
def union(tmp_path: Path) -> Iterator[Union]:
    made = make_union(tmp_path, NAMES)
    yield made
    made.agents[NAMES[0]].calls.close()


@pytest.mark.parametrize("asked", range(4))
@pytest.mark.parametrize("behind", ["app", "web", "tel"])
def test_an_agent_that_dies_between_two_streams_leaves_none_out(behind: str, asked: int, tmp_path: Path) -> None:
    """The query does not fail: its streams go on asking, and the next agent has not seen those that asked before."""
    union = make_union(tmp_path, ("app", "web", "tel"))
    for name in union.names:
        union.write(name, 100, 1_200, 3_500 if name == behind else 9_500)
    union.batch()
    ends = {name: union.ask(name) for name in union.names[:asked]}
    union.replace_agent(tmp_path)
    ends |= {name: union.ask(name) for name in union.names[asked:]}
    rows = dict.fromkeys(union.names, 0)
    for _ in range(4):
        assert max(end["until_ms"] for end in ends.values()) <= 2_000, "the one behind has no rows below 2.5 s alone"
        for name, found in union.read(ends).items():
            rows[name] += len(found)
        ends = union.plan()
    assert rows == dict.fromkeys(union.names, 2)
    union.agents["app"].calls.close()


def test_streams_take_the_same_buckets(union: Union) -> None:
    union.write("app", 100, 4_500)
    union.write("web", 200, 1_300, 3_999)
    assert union.batch() == {"app": [], "web": []}, "a plan needs to know where all streams are"
    ends = union.plan()
    assert {end["until_ms"] for end in ends.values()} == {2_000}
    assert union.read(ends) == {"app": [0], "web": [0, 1]}
    union.write("web", 9_000, 2_500)
    ends = union.plan()
    union.write("app", 20_000)
    assert {end["until_ms"] for end in ends.values()} == {3_000}, "the first one that asks decides"
    assert union.read(ends) == {"app": [], "web": [101]}
    ends = union.plan()
    assert {end["until_ms"] for end in ends.values()} == {8_000}
    assert union.read(ends) == {"app": [1], "web": [2]}
    assert union.offsets["web"]["first"] == 1, "batch 0 is not needed any more"


def test_a_round_asks_each_channel_once(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a request on an object store, and Spark asks ten times a second."""
    union.plan()
    for name in NAMES:
        union.write(name, 100, 4_500)
        union.agents[name].ask("boundary", batch=0, generation=1, quiet_ms=None, columns={"time": 2_000})
    union.batch()
    asked: list[str] = []
    bounds = PublishedBatches.bounds

    def note_bounds(self: PublishedBatches) -> tuple[int, int] | None:
        asked.append("bounds")
        return bounds(self)

    def note_check(storage: Storage, boundary: Boundary) -> bool:
        asked.append("boundary")
        return still_holds(storage, boundary)

    monkeypatch.setattr(PublishedBatches, "bounds", note_bounds)
    monkeypatch.setattr("spark_cec.agent.reader.still_holds", note_check)
    union.plan()
    assert asked == ["bounds", "bounds"], "each boundary was checked before"


def test_a_repeat_reads_the_same_rows(union: Union) -> None:
    union.plan()
    union.write("app", 100, 4_500)
    union.write("web", 200, 1_300, 8_000)
    before = dict(union.offsets["web"])
    ends = union.plan()
    union.read(ends)
    union.write("web", 300, 1_500)
    assert union.rows(union.agents["web"], before, ends["web"]) == [0, 1]
    assert union.rows(union.agents["web"], before, ends["web"], columns=[]) == [2], "a count needs no column"


def test_late_rows_are_kept_aside_once(union: Union) -> None:
    union.plan()
    union.write("app", 100, 50_000)
    union.write("web", 200, 10_000)
    assert union.batch()["web"] == [0]
    union.write("web", 8_999, 9_500, None, 30_000)
    before = dict(union.offsets["web"])
    ends = union.plan()
    assert union.read(ends)["web"] == [102, 101, 1], "a row without a time comes first"
    web = union.agents["web"]
    assert sorted(union.rows(web, before, ends["web"])) == [1, 101, 102], "again"
    storage = open_storage(web.home)
    (path,) = list_late(storage, "totals")
    assert read_late(storage, path)["n"].to_pylist() == [100]
    splits = web.ask("view_splits", view="late", reader="totals")["splits"]
    rows = [row for split in splits for row in web.rows(web.ask("read_split", split=split))]
    assert [row["n"] for row in rows] == [100]
    assert web.ask("view_splits", view="late", reader="another")["splits"] == []


@pytest.mark.parametrize("kept", range(4))
def test_late_rows_on_a_full_disk_fail_the_batch_and_come_again(
    kept: int, union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch must not count before its late rows are kept. `kept`: so many objects with late rows find room."""
    union.plan()
    union.write("app", 100, 50_000)
    union.write("web", 200, 10_000)
    assert union.batch()["web"] == [0]
    for late_ms in (8_999, 8_000, 7_000):
        union.write("web", late_ms, 9_500)
    union.write("web", 30_000)
    before, ends, web, room = dict(union.offsets["web"]), union.plan(), union.agents["web"], [kept]
    spools = sorted(web.calls.spool.directory.iterdir())

    def keep(storage: Storage, *rows: Any) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "late")
        room[0] -= 1
        keep_late(storage, *rows)

    with monkeypatch.context() as full:
        full.setattr(bucket_reads, "keep_late", keep)
        if kept < 3:
            with pytest.raises(Refused, match="no space is left: make room there"):
                union.rows(web, before, ends["web"])
        else:
            union.rows(web, before, ends["web"])
    assert len(late_rows(union, "web")) == kept
    assert sorted(web.calls.spool.directory.iterdir()) == spools, "a read that fails leaves no file"
    assert sorted(union.rows(web, before, ends["web"])) == [1, 101, 201, 301]
    assert late_rows(union, "web") == [100, 200, 300], "each of them once, with those that were kept before"


def test_a_channel_of_an_earlier_release_has_no_ranges(union: Union) -> None:
    union.plan()
    union.write("app", 100, 4_500, old=True)
    union.write("web", None, 200, 9_000, old=True)
    assert load(open_storage(union.agents["web"].home), 0).times == {}
    assert union.batch() == {"app": [0], "web": [0, 1]}


def test_the_range_of_all_tasks_is_in_the_manifest(union: Union) -> None:
    union.write("web", None, 200, 9_000)
    assert load(open_storage(union.agents["web"].home), 0).times == {"time": TimeRange(200, 9_000, 1)}


def test_a_channel_that_says_more_than_its_rows(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    union.plan()
    union.write("app", 100, 4_500)
    union.write("web", 200)
    assert union.plan()["web"]["until_ms"] == 1
    web = union.agents["web"]
    web.ask("boundary", batch=0, generation=1, quiet_ms=8_000, columns={"time": 3_000})
    assert union.plan()["web"]["until_ms"] == 3_000, "the rows of app end there"
    web.ask("boundary", batch=0, generation=1, quiet_ms=None, columns={"time": 9_000})
    union.write("app", 60_000)
    ends = union.plan()
    assert {end["until_ms"] for end in ends.values()} == {9_000}
    union.read(ends)
    web.ask("boundary", batch=0, generation=1, quiet_ms=None, columns={"time": 12_000})
    assert union.plan()["web"]["until_ms"] == 9_000, "no row is due"
    monkeypatch.setattr(unions, "EMPTY_WAIT_MS", -1)
    assert union.plan()["web"]["until_ms"] == 12_000, "but after a while"


def test_rows_that_were_read_wait_for_a_channel_that_stands_still(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the query's state, in a window that is open. So the channels have no row that waits."""
    now, has_state = begin_wait(union, monkeypatch)[0], list[bool]()
    monkeypatch.setattr(unions, "has_state", lambda query: query == "query" and bool(has_state))
    members = [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]
    bound = {"union": {"bucket_ms": 1_000, "members": members, "silence_ms": 2_000}}

    def tell(name: str, second: int) -> None:
        union.agents[name].ask("boundary", batch=0, generation=1, quiet_ms=1_000 * second + 1_000, columns={})

    def waits() -> dict[str, int]:
        found = union.plan(**bound)["app"]
        return dict(zip(found["waits_for"], found["held_ms"], strict=True))

    union.batch(**bound)
    for second in range(20, 24):
        now[0] += 1
        tell("app", second)
        tell("web", second)
        union.batch(**bound)
        assert waits() == {}, "both go on"
    for second in range(24, 28):
        now[0] += 1
        tell("app", second)
        union.batch(**bound)
        assert waits() == {}, "without state nothing waits"
    has_state.append(True)
    assert waits() == {}, "that is asked now and then"
    now[0] += 10
    tell("app", 37)
    assert waits() == {"web": 13_000}, "since app went on without it"
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__._channels, "find_pause_s", lambda *_: 6.6)
    assert waits() == {}, "its boundary is asked every 6.6 seconds"
    monkeypatch.setattr(handler.__self__._channels, "find_pause_s", lambda *_: 6.5)
    assert waits() == {"web": 13_000}
    has_state.clear()
    now[0] += 1
    assert waits() == {"web": 14_000}
    kept = {"union": {**bound["union"], "most_wait_ms": 3_000}}
    assert union.plan(**kept)["web"]["until_ms"] == union.offsets["web"]["until_ms"], "it is not given up"
    assert union.plan(absent=["web"], **bound)["app"]["waits_for"] == []
    union.write("app", 36_500, 40_000)
    assert waits() == {"web": 14_000}, "a row that comes later does not begin the wait anew"
    union.run += 1
    fork = {**bound, "query": "totals/epochs/1/sources"}
    handler.__self__._streams["totals/sources"] = handler.__self__._streams["query"]
    union.plan(**fork)
    now[0] += 1
    found = union.plan(**fork)["app"]
    assert dict(zip(found["waits_for"], found["held_ms"], strict=True)) == {"web": 15_000}, "nor does a fork"


@pytest.mark.parametrize(("silence_ms", "wait_ms", "look_s"), [
    (None, 0, 5.0), (30_000, 0, 5.0), (2_500, 0, 1.25), (None, 4_000, 1.0), (2_500, 4_000, 1.0), (100, 0, 0.25),
])  # fmt: skip
def test_an_object_store_is_asked_for_a_boundary_four_times_before_an_answer_is_due(
    silence_ms: int | None, wait_ms: int, look_s: float
) -> None:
    """`silence_ms` is half of the time that rows may wait."""
    member = Member("app", "", "time", 0, wait_ms=wait_ms)
    assert find_look_s(member, BucketUnion(1_000, (member,), silence_ms=silence_ms)) == look_s


def test_a_boundary_on_an_object_store_is_asked_for_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = [100.0], SimpleNamespace(home="s3://b/log", storage=CannotAppend(memory_storage()))
    monkeypatch.setattr("spark_cec.agent.reader.time.monotonic", lambda: now[0])
    readers: Any = ReaderCalls.__new__(ReaderCalls)
    readers._boundaries = {}
    for _ in range(40):
        readers.read_boundary(log, 1.25)
        now[0] += 0.25
    assert log.storage.fault.seen.count("read") == 8


def test_channels_that_all_stand_still_hold_nothing_back(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    now = begin_wait(union, monkeypatch)[0]
    monkeypatch.setattr(unions, "has_state", lambda _: True)
    members = [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]
    bound = {"union": {"bucket_ms": 1_000, "members": members, "silence_ms": 2_000}}
    for name in NAMES:
        union.agents[name].ask("boundary", batch=0, generation=1, quiet_ms=38_000, columns={})
    union.batch(**bound)
    now[0] += 9
    union.batch(**bound)
    now[0] += 9
    assert union.plan(**bound)["app"]["waits_for"] == []
    union.agents["app"].ask("boundary", batch=0, generation=1, quiet_ms=48_000, columns={})
    for waited_s, waits_for in ((0.0, []), (1.9, []), (0.2, ["web"])):  # web follows a batch later, as a rule
        now[0] += waited_s
        assert union.plan(**bound)["app"]["waits_for"] == waits_for


def test_a_batch_without_rows_comes_after_its_pause(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows after this one would take it for away if its boundary stood still for longer."""
    now, kept = begin_wait(union, monkeypatch)
    union.plan(union=kept)
    for name in NAMES:
        union.agents[name].ask("boundary", batch=0, generation=1, quiet_ms=21_000, columns={})
    union.batch(union=kept)
    for name in NAMES:
        union.agents[name].ask("boundary", batch=0, generation=1, quiet_ms=31_000, columns={})
    for pause_ms, at, comes in ((3_000, 2.9, False), (None, 3.1, False), (3_000, 3.1, True)):
        now[0] = at
        end = union.plan(union={**kept, "pause_of_empty_ms": pause_ms})["app"]["until_ms"]
        assert end == (30_000 if comes else 20_000), (pause_ms, at)


def test_a_query_has_state_if_its_note_says_so(tmp_path: Path) -> None:
    place = tmp_path / "totals" / "cec"
    place.mkdir(parents=True)
    query = f"{tmp_path}/totals/sources"
    assert not unions.has_state(query) and not unions.has_state("query")
    for operators, expected in (([], False), ([{"name": "windows"}], True)):
        (place / "query.json").write_text(json.dumps({"log_home": "cec/log", "log_id": "00", "operators": operators}))
        assert unions.has_state(query) is expected


def test_streams_of_a_new_run_agree_again(union: Union) -> None:
    union.plan()
    union.write("app", 100, 4_500)
    union.write("web", 200, 3_999)
    union.batch()
    for name in NAMES:
        union.write(name, 30_000)
    assert union.ask("app")["until_ms"] == 29_000, "and then the query fails"
    union.run += 1
    first = union.plan()
    assert [first[name]["until_ms"] for name in NAMES] == [2_000, 2_000]
    assert {end["until_ms"] for end in union.plan().values()} == {29_000}


def test_a_channel_that_is_read_twice_has_two_streams(union: Union) -> None:
    """Spark makes two streams of a channel that is joined with itself."""
    union.plan()
    union.ask("web", source="sources/2")
    for name in NAMES:
        union.write(name, 100, 4_500)
    ends = [*union.plan().values(), union.ask("web", source="sources/2")]
    assert {end["until_ms"] for end in ends} == {3_000}


def test_a_channel_that_the_query_leaves_out_holds_nobody_back(union: Union) -> None:
    union.ask("web", leads=True)
    union.write("web", 100, 4_500)
    assert union.ask("web", leads=True)["until_ms"] == 3_000


def test_an_agent_that_begins_in_the_middle_of_a_round_keeps_the_streams_together(union: Union) -> None:
    union.ask("web")
    for name in NAMES:
        union.write(name, 100, 4_500)
    ends = [union.plan(), union.plan()]
    assert all(len({end["until_ms"] for end in each.values()}) == 1 for each in ends)
    assert ends[1]["web"]["until_ms"] == 3_000


def test_a_log_that_was_begun_anew_has_other_ranges(union: Union) -> None:
    union.plan()
    for name in NAMES:
        union.write(name, 100, 60_000)
    union.batch()
    for name in NAMES:
        shutil.rmtree(union.agents[name].checkpoint)
        union.agents[name].begin_run()
    union.__post_init__()
    union.run += 1
    union.plan()
    for name in NAMES:
        union.write(name, 100, 4_500)
    assert union.plan()["web"]["until_ms"] == 3_000


def test_streams_that_run_notice_a_log_that_was_begun_anew(union: Union) -> None:
    """Its query was deleted and started again, and has more batches than the stream has read, before it looks again."""
    union.plan()
    for second in (4, 8):
        for name in NAMES:
            union.write(name, 1_000 * second)
        union.batch(checked=True)
    shutil.rmtree(union.agents["web"].checkpoint)
    union.agents["web"].begin_run()
    union.written["web"] = 0
    for second in range(20, 26):
        union.write("web", 1_000 * second)
    with pytest.raises(Refused, match="which has another batch of that number now"):
        union.plan(checked=True)


def test_a_rollback_while_streams_plan_gives_no_offset_without_an_identity(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an offset would fit each batch that has its number later."""
    union.plan()
    for second in (4, 8, 12):
        for name in NAMES:
            union.write(name, 1_000 * second)

    def roll_back(*given: Any) -> Any:
        moved = advance(*given)
        take_back(open_storage(union.agents["app"].home), 0, 2)
        return moved

    monkeypatch.setattr(unions, "advance", roll_back)
    with pytest.raises(Refused, match="taken back all after batch 0"):
        union.plan()


def test_a_batch_has_a_bound(union: Union) -> None:
    union.plan()
    for name in NAMES:
        union.write(name, *range(0, 20_000, 100))
    first = union.plan(max_rows=50)
    assert first["app"]["until_ms"] == 4_000
    assert all(end["newest"] == end["batch"] + 1 for end in first.values()), "more is left"
    union.read(first)
    last = union.plan()
    assert last["app"]["until_ms"] == 18_000 and all(end["newest"] == end["batch"] for end in last.values())
    union.read(last)
    union.write("app", 30_000)
    rest = union.plan()
    assert all(end["newest"] == end["batch"] for end in rest.values()), "what no batch can have yet is not left"


def test_an_epoch_does_not_wait_for_an_absent_channel(union: Union) -> None:
    """Its rows count if they are in time, and are not kept aside if they are not."""
    epoch = {"bucket_ms": 1_000, "absent": ["web"], "members": [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]}  # fmt: skip
    for number in range(3):
        union.write("app", 1_500 + 2_000 * number)
    union.write("web", 200)
    assert union.plan()["app"]["until_ms"] == 1, "nothing is stable"
    held = union.plan()
    assert held["web"]["waits_for"] == ["web"] and len(held["web"]["held_ms"]) == 1
    union.run += 1
    union.plan(union=epoch)
    ends = union.plan(union=epoch)
    assert [end["until_ms"] for end in ends.values()] == [4_000, 4_000] and not ends["app"]["waits_for"]
    assert union.read(ends) == {"app": [0, 100], "web": [0]}
    union.write("web", 300, 9_500)
    union.write("app", 8_500)
    end = union.plan(union=epoch)["web"]
    fresh = {"column": "time", "after_ms": 4_000, "until_ms": end["until_ms"], "fresh_from": 1}
    agent = union.agents["web"]
    bounds = {"first": 1, "last": end["batch"], "whole": False, "seen": end["of"], "schema": SCHEMA}
    for split in agent.ask("view_splits", view="output", **bounds, buckets=fresh)["splits"]:
        agent.ask("read_split", split=split, columns=["n"])
    assert not list((Path(agent.home) / "late").rglob("*")), "an epoch keeps no late rows"


@pytest.mark.parametrize("own", [1, 3])
def test_a_fork_reads_an_epoch_that_began_before_its_flows_last_batch(
    own: int, union: Union, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow has read batches of the other flow that the epoch lacks, or has others in place of. Buckets count."""
    for times in ((1_500, 2_500), (3_500, 4_500), (5_500, 6_500)):
        union.write("app", *times)
        union.write("web", *times)
    union.plan()
    union.read(union.plan())
    assert union.offsets["app"]["batch"] == 2 and union.offsets["app"]["until_ms"] == 5_000
    (tmp_path / "epoch").mkdir()
    epoch = Agent(tmp_path / "epoch")
    epoch.calls.close()
    epoch.calls = union.agents["app"].calls
    epoch.begin_run()
    union.agents["app"], union.written["app"] = epoch, 0
    union.write("app", 1_500, 2_500)  # the batch that both have
    left = iter([3_500, 4_400, 5_700, 6_900, 7_800, 9_500])
    for _ in range(own):  # the rows of buckets that the flow has already are in batches of other numbers
        union.write("app", *[next(left) for _ in range(6 // own)])
    union.write("web", 7_200, 9_500)
    members = [
        {"name": name, "path": agent.checkpoint, "time": "time", "delay_ms": 1_000, **begin}
        for (name, agent), begin in zip(union.agents.items(), ({"begins_after": 0}, {}), strict=True)
    ]
    fork = {"union": {"bucket_ms": 1_000, "members": members}, "query": "fork"}
    union.run += 1
    union.plan(**fork)
    ends = union.plan(**fork)
    assert [end["until_ms"] for end in ends.values()] == [8_000, 8_000]
    start, union.offsets["app"] = dict(union.offsets["app"]), {**union.offsets["app"], "first": ends["app"]["since"]}
    found = union.read(ends)
    numbers = {1: [102, 103, 104], 3: [200, 201, 300]}
    assert found == {"app": numbers[own], "web": [200, 201, 300]}
    assert ends["app"]["since"] == {1: 1, 3: 2}[own] and start["batch"] == 2
    union.write("web", 11_500)
    union.write("app", 10_200, 11_500)
    ends = union.plan(**fork)
    assert ends["app"]["since"] is None, "it is its own batch now"
    looks = list[int]()
    monkeypatch.setattr(channel_looks, "has_batch", lambda *of: looks.append(of[-1]))
    assert union.plan(**fork) == ends and not looks, "that is known"
    assert union.read(ends) == {"app": [{1: 105, 3: 301}[own]], "web": [301]}


def test_a_query_that_runs_is_said_for_which_channels_it_must_not_wait(union: Union) -> None:
    """In place of those of its union: another input goes away while an epoch is open, or one is back."""
    union.plan()
    union.write("app", 1_500, 3_500)
    assert union.plan()["app"]["waits_for"] == ["web"]
    ends = union.plan(absent=["web"])
    assert [end["until_ms"] for end in ends.values()] == [2_000, 2_000] and not ends["app"]["waits_for"]
    union.read(ends)
    union.write("app", 5_500)
    assert union.plan(absent=[])["app"]["until_ms"] == 2_000, "it waits again"
    assert union.plan(absent=["web"])["app"]["until_ms"] == 4_000


def test_a_channel_that_is_back_is_named(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone on, and is near. One that is always a little behind must be waited for, or its rows would be late."""
    epoch = {"bucket_ms": 1_000, "absent": ["web"], "most_lag_ms": 3_000, "members": [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]}  # fmt: skip
    union.write("web", 900)
    union.plan(union=epoch)
    union.write("app", 1_500, 9_500)
    assert union.read(union.plan(union=epoch))["app"] == [0]
    assert union.plan(union=epoch)["app"]["back"] == [], "it has not gone on"
    union.write("web", 5_000)
    assert union.plan(union=epoch)["app"]["back"] == [], "it is far behind"
    union.write("web", 7_000)
    assert union.plan(union=epoch)["app"]["back"] == ["web"], "it is near, and behind app and the epoch"
    now = [5_000_000.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    monkeypatch.setattr(handler.__self__._channels, "_clock", lambda: now[0])
    union.run += 1
    delays = {**epoch, "pause_ms": 5_000}
    for _ in range(2):  # the first call makes no plan
        union.plan(union=delays)
    union.write("web", 9_200)
    assert union.plan(union=delays)["app"]["back"] == [], "its rows must wait, too: else others would wait for them"
    now[0] += 5
    assert union.plan(union=delays)["app"]["back"] == ["web"]
    assert union.plan()["app"]["back"] == [], "all are waited for"


@pytest.mark.parametrize("told", [True, False])
def test_a_fork_lets_its_flow_catch_up_when_all_inputs_are_back(
    told: bool, union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while. `told`: the driver has it wait for the input again."""
    fork = {"bucket_ms": 1_000, "absent": ["web"], "most_lag_ms": 3_000, "yields_ms": 5_000, "members": [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]}  # fmt: skip
    now = [5_000_000.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    monkeypatch.setattr(handler.__self__._channels, "_clock", lambda: now[0])

    def step(absent: list[str]) -> int:
        ends = union.plan(union=fork, absent=absent)
        union.read(ends)
        return int(ends["app"]["until_ms"])

    union.write("web", 900)
    step(["web"])
    union.write("app", 1_500, 9_500)
    assert step(["web"]) == 8_000
    union.write("web", 9_600)
    now[0] += 1
    assert step(["web"]) == 8_000, "it is back, and reads no more for now"
    absent = [] if told else ["web"]
    union.write("app", 12_500)
    now[0] += 4.9
    assert step(absent) == 8_000
    now[0] += 0.1
    assert step(absent) == (8_000 if told else 11_000), "5 seconds have passed"
    union.write("web", 12_500)
    assert step(absent) == 11_000
    union.write("app", 14_500)
    assert step(["web"]) == 13_000, "it yields once"
    now[0] += 10
    union.write("app", 34_500)
    assert step(["web"]) == 33_000, "web is away again"
    union.write("web", 34_600)
    union.write("app", 36_500)
    assert step(["web"]) == 33_000, "it is back again"
    now[0] += 5
    assert step(["web"]) == 35_000


FLOW, FORK = {"query": "/flows/totals/sources"}, {"query": "/flows/totals/epochs/3/sources"}


def test_a_fork_goes_on_with_the_waits_of_its_flow(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have waited for a channel before the fork was made. A wait that is over begins anew."""
    now = [5_000.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    union.plan(**FLOW)
    union.write("app", 1_500, 3_500)
    assert union.plan(**FLOW)["app"]["held_ms"] == [0]
    now[0] += 10
    assert union.plan(**FORK)["app"]["held_ms"] == [], "there is no plan yet, and what the flow knew may be old"
    assert union.plan(**FORK)["app"]["held_ms"] == [10_000]
    union.write("web", 3_600)
    union.plan(**FORK)
    union.write("app", 9_500)
    assert union.plan(**FORK)["app"]["held_ms"] == [0], "those rows have not waited yet"
    other = {"query": "/flows/other/epochs/3/sources"}
    union.plan(**other)
    assert union.plan(**other)["app"]["held_ms"] == [0]


def test_a_fork_waits_for_no_channel_that_its_flow_has_given_up(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is back, as in the flow."""
    flow, how = begin_wait(union, monkeypatch)
    union.plan(union=how, **FLOW)
    union.plan(union=how, **FLOW)
    flow[0] += 61
    planned = union.plan(union=how, **FLOW)["app"]
    assert planned["until_ms"] > 1 and planned["given_up"] == ["web"]
    fork = {**how, "most_wait_ms": None}
    union.plan(union=fork, **FORK)
    union.write("app", 19_500)
    planned = union.plan(union=fork, **FORK)["app"]
    assert planned["until_ms"] == 18_000 and planned["given_up"] == ["web"]
    union.write("web", 19_600)
    union.read(union.plan(union=fork, **FORK))
    union.write("app", 30_000)
    planned = union.plan(union=fork, **FORK)["app"]
    assert planned["waits_for"] == ["web"] and not planned["given_up"], "it is back, and waited for again"


def test_in_an_epoch_that_delays_each_row_waits_after_it_came(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock that is never set. The batches' own clock is ahead of this machine's."""
    now = [5_000.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    monkeypatch.setattr(handler.__self__._channels, "_clock", lambda: now[0])
    monkeypatch.setattr("spark_cec.agent.channel_looks.time.time", lambda: 1_700_000_000.0)
    epoch = {"bucket_ms": 1_000, "absent": ["web"], "pause_ms": 5_000, "members": [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]}  # fmt: skip
    union.write("app", 1_500)
    union.write("app", 3_500)
    union.plan(union=epoch)
    assert union.batch(union=epoch) == {"app": [], "web": []}
    now[0] += 4
    union.write("app", 9_500)
    assert union.batch(union=epoch) == {"app": [], "web": []}
    now[0] += 1
    assert union.batch(union=epoch) == {"app": [0], "web": []}
    now[0] += 4
    assert union.batch(union=epoch) == {"app": [100], "web": []}


def test_what_cannot_be_read_by_buckets_is_named(union: Union) -> None:
    union.plan()
    union.write("app", 100, 4_500)
    union.write("web", 200, 5_000)
    union.batch()
    take_back(open_storage(union.agents["web"].home), -1, 5)
    with pytest.raises(Refused, match=r"run 5 of the query .* has taken back all after") as refused:
        union.ask("web")
    assert refused.value.kind == "OutputTakenBack"
    union.write("app", 9_000, truncate=True)
    with pytest.raises(Refused, match=r"batch 1 of app replaces all output, as in complete mode, .*: let that query"):
        union.ask("app")


def test_a_channel_that_is_not_there_yet_holds_all_back(union: Union, tmp_path: Path) -> None:
    union.agents["web"].checkpoint = str(tmp_path / "later")
    union.write("app", 100, 4_500)
    assert union.plan(may_wait=True)["app"]["until_ms"] == 1
    assert union.plan(may_wait=True)["app"]["until_ms"] == 1


def begin_wait(union: Union, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], dict[str, Any]]:
    """Rows of app wait for web, for a minute at most. Answers the clock, in seconds, and the union."""
    now = [0.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    members = [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]
    kept = {"bucket_ms": 1_000, "most_wait_ms": 60_000, "members": members}
    union.write("app", 1_500, 9_000)
    union.write("web", 1_600)
    union.plan(union=kept)
    return now, kept


def late_rows(union: Union, name: str) -> list[int]:
    """The rows of a channel that were kept aside."""
    storage = open_storage(union.agents[name].home)
    return [n for path in list_late(storage, "totals") for n in read_late(storage, path)["n"].to_pylist()]


def test_rows_wait_for_a_channel_no_longer_than_they_are_kept(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they go in without it. What comes of it later is late, until it is back."""
    now, kept = begin_wait(union, monkeypatch)
    for now[0] in (1.0, 60.9):
        assert union.batch(union=kept) == {"app": [], "web": []}
    now[0] = 61.1
    assert union.batch(union=kept) == {"app": [0], "web": [0]}, "all that is stable without web"
    assert union.offsets["web"]["until_ms"] == 8_000
    union.write("app", 14_000)
    assert union.batch(union=kept)["app"] == [1], "it is not waited for again"
    union.write("web", 8_500)
    now[0] = 500.0
    assert union.batch(union=kept) == {"app": [], "web": []}, "late"
    union.write("web", 15_500)
    union.write("app", 19_500)
    ends = union.plan(union=kept)
    assert ends["app"]["until_ms"] == 14_000, "it is back"
    union.read(ends)
    assert late_rows(union, "web") == [100]


def test_a_channel_that_came_back_since_the_last_look_is_not_given_up(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may come late, after a long batch. Then the channel has passed all that waited for it."""
    now, kept = begin_wait(union, monkeypatch)
    for now[0] in (1.0, 60.5):
        union.batch(union=kept)
    union.write("web", 8_900, 15_000)
    union.write("app", 17_000)
    now[0] = 63.0
    ends = union.plan(union=kept)
    assert ends["app"]["until_ms"] == 14_000
    union.read(ends)
    union.write("web", 15_100, 15_300, 17_500)
    union.write("app", 19_000)
    now[0] = 64.0
    assert union.batch(union=kept) == {"app": [], "web": [101, 200, 201]}
    assert not late_rows(union, "web")


@pytest.mark.parametrize("lag_ms", [1_500, 3_500, 20_500])
def test_a_channel_that_is_back_and_always_behind_is_waited_for_again(
    lag_ms: int, union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, kept = begin_wait(union, monkeypatch)
    for now[0] in (1.0, 61.1):
        union.batch(union=kept)
    seconds = range(20, 120)
    for second in seconds:
        now[0] += 1.0
        union.write("app", second * 1_000)
        union.write("web", second * 1_000 - lag_ms)
        union.batch(union=kept)
    union.write("app", 200_000)
    union.write("web", 200_000)
    union.batch(union=kept)
    late = len(late_rows(union, "web"))
    # Those that lay below what had gone in, for the lag, the delay, and the look that finds the channel.
    assert late <= lag_ms / 1_000 + 3, f"{late} of {len(seconds)}"
    assert union.offsets["web"]["until_ms"] == 199_000


def test_a_channel_that_comes_back_with_old_rows_holds_nothing_back(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is more than a minute behind: to wait until it has caught up would take too long."""
    now, kept = begin_wait(union, monkeypatch)
    for now[0] in (1.0, 61.1):
        union.batch(union=kept)
    union.write("app", 120_000)
    union.batch(union=kept)
    union.write("web", 20_000)
    union.write("app", 130_000)
    now[0] = 62.0
    union.batch(union=kept)
    assert union.offsets["app"]["until_ms"] == 129_000
    union.write("web", 125_000)
    union.write("app", 140_000)
    assert union.plan(union=kept)["app"]["waits_for"] == ["web"], "it has caught up"


def bounded(union: Union, size: int | None = None, **more: Any) -> dict[str, Any]:
    """The union with a bound for what waits: what batch 0 of app has, unless it is given, and a byte less."""
    members = [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]
    return {"bucket_ms": 1_000, "members": members, "keep_bytes": size or stored(union, "app", 0) - 1, **more}


def stored(union: Union, name: str, *batches: int) -> int:
    """The stored bytes of batches, as the frames in the segments have them."""
    agent = union.agents[name]
    frames = [each for batch in batches for each in load(open_storage(agent.home), batch).frames]
    splits = agent.ask("view_splits", view="output", first=0, last=max(batches), whole=False, schema=SCHEMA)["splits"]
    sizes = {each: place[2] for split in splits for *place, each in split["frames"]}
    return sum(sizes[each] for each in frames)


def test_what_is_unread_is_measured_if_somebody_asks(union: Union) -> None:
    union.write("app", 1_500, 3_000)
    union.write("app", 4_500, 9_000)
    union.write("app", 30_000)
    union.write("web", 1_600, 3_100)
    assert union.plan()["app"]["unread"] == []
    union.run += 1
    kept = bounded(union)
    union.plan(union=kept)
    answer = union.plan(union=kept)["web"]
    assert answer["unread"] == ["app", "web"]
    read, waiting, own = stored(union, "app", 0), stored(union, "app", 1), stored(union, "web", 0)
    assert answer["due_bytes"] == [0, own] and answer["waiting_bytes"] == [read + waiting, 0]
    union.read(union.plan(union=kept))
    answer = union.plan(union=kept)["app"]
    assert answer["due_bytes"] == [0, 0] and answer["waiting_bytes"] == [read + waiting, 0], "a row of 3.0 s waits"
    union.write("web", 20_000)
    union.batch(union=kept)
    assert union.plan(union=kept)["app"]["waiting_bytes"] == [0, 0], "the newest batch is open"
    assert union.plan()["app"]["until_ms"] == 19_000, "another query does not measure"


def test_more_than_may_wait_goes_in_without_the_channel(union: Union, caplog: pytest.LogCaptureFixture) -> None:
    union.write("app", 1_500, 9_000)
    union.write("web", 1_600)
    kept = bounded(union, goes_on=True)
    assert union.batch(union={**kept, "goes_on": False}) == {"app": [], "web": []}
    assert union.batch(union={**kept, "goes_on": False}) == {"app": [], "web": []}, "it does so if it is told to"
    assert union.batch(union={**kept, "keep_bytes": kept["keep_bytes"] + 1}) == {"app": [], "web": []}
    before, ends = {name: dict(at) for name, at in union.offsets.items()}, union.plan(union=kept)
    assert union.read(ends) == {"app": [0], "web": [0]}
    assert "query query goes on without web, for which " in caplog.text
    union.write("web", 2_500, 1_700)
    union.write("app", 11_500)
    assert union.batch(union=kept) == {"app": [1], "web": []}
    assert late_rows(union, "web") == [100, 101]
    union.run += 1
    for name in NAMES:
        assert union.rows(union.agents[name], before[name], ends[name]) == [0], "a repeat needs no measure"
    union.plan(union=kept)
    union.write("web", 14_500)
    union.write("app", 19_000)
    assert union.plan(union=kept)["app"]["until_ms"] == 13_000, "it is back"
    assert "waits for web again" not in caplog.text, "the new run waits for it in any case"


def test_a_channel_that_was_given_up_for_its_size_is_back_when_it_is_near(
    union: Union, caplog: pytest.LogCaptureFixture
) -> None:
    union.write("app", 1_500, 21_000)
    union.write("web", 1_600)
    kept = bounded(union, goes_on=True)
    union.batch(union=kept)
    union.batch(union=kept)
    assert union.offsets["app"]["until_ms"] == 20_000, "web was given up, 19 s behind"
    union.write("app", 60_000)
    union.write("web", 40_100)
    ends = union.plan(union={**kept, "keep_bytes": 1 << 20})
    assert ends["app"]["until_ms"] == 39_000 and "waits for web again" in caplog.text
    union.read(ends)


def test_a_wait_ends_when_all_that_waited_is_stable() -> None:
    """An input that is slow holds rows back as one that is away."""
    streams = unions._Streams("leader", 0.0)
    streams.note_wait({"app": 10_000}, 90_000, 1.0)
    for now, end_ms in ((2.0, 11_000), (3.0, 50_000), (4.0, 89_000)):
        streams.note_wait({"app": end_ms, "web": 94_000}, 95_000, now)
        assert [each.since for each in streams.held.values()] == [1.0, 2.0], "each has its own wait"
    streams.note_wait({"app": 90_000}, 97_000, 5.0)
    assert [each.since for each in streams.held.values()] == [5.0], "now others wait"
    streams.note_wait({}, 97_000, 6.0)
    assert not streams.held


def test_a_stream_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    """Forks of a flow come and go, and each has streams of its own."""
    channels = channel_looks.ChannelLooks(None, time.monotonic)  # type: ignore[arg-type]
    calls = unions.UnionCalls(None, channels, time.monotonic)  # type: ignore[arg-type]
    for fork in range(3):
        streams = calls._streams[f"fork {fork}"] = unions._Streams("leader", 0.0)
        streams.members["sources/0"] = unions._Stream(None)  # type: ignore[arg-type]
        times = channels._times.setdefault(("home", "id", "time", False), channel_looks._KnownTimes(0))
        times.read[f"fork {fork} sources/0"] = range(fork), Backlog()
    for fork in range(2):
        for _ in range(2):
            calls.leave(BucketLeaveRequest(query=f"fork {fork}", source="sources/0"))
    assert list(calls._streams) == ["fork 2"] and list(times.read) == ["fork 2 sources/0"]


def begin_with_clocks(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Begins a run in which rows wait for a minute at most.

    Answers the clock that is never set and the time since 1970, both in seconds, and the union.
    """
    now, wall = [0.0], [20.0]
    handler: Any = union.agents["app"].calls._by_name["bucket_end"][1]
    monkeypatch.setattr(handler.__self__, "_clock", lambda: now[0])
    monkeypatch.setattr(handler.__self__, "_wall", lambda: wall[0])
    members = [
        {"name": each, "path": union.agents[each].checkpoint, "time": "time", "delay_ms": 1_000} for each in NAMES
    ]
    kept = {"bucket_ms": 1_000, "most_wait_ms": 60_000, "members": members}
    union.plan(union=kept)
    return now, wall, kept


FUTURE_MS = 4_102_444_800_000


@pytest.mark.parametrize("together", [True, False], ids=["with other rows", "alone"])
def test_no_input_is_given_up_that_cannot_come_as_far_as_a_wrong_clock(
    together: bool, union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go on at the pace of the clock, and no row is late. Once web is away, only rows up to now are waited for."""
    now, wall, kept = begin_with_clocks(union, monkeypatch)
    for second in range(20, 220):
        now[0] += 1.0
        wall[0] += 1.0
        if second == 30:
            union.write("app", *([second * 1_000] if together else []), FUTURE_MS)
        union.write("app", second * 1_000)
        union.write("web", second * 1_000 - 300)
        ends = union.plan(union=kept)
        assert not ends["app"]["given_up"]
        union.read(ends)
    assert union.offsets["app"]["until_ms"] == 217_000 and not late_rows(union, "app") + late_rows(union, "web")
    for second in range(220, 320):
        now[0] += 1.0
        wall[0] += 1.0
        union.write("app", second * 1_000)
        union.batch(union=kept)
    assert union.plan(union=kept)["app"]["given_up"] == ["web"], "it is away"
    assert union.offsets["app"]["until_ms"] == 318_000, "and no window of the year 2100 has closed"
    union.write("web", 318_500)
    union.write("app", 320_000)
    union.read(union.plan(union=kept))
    assert not union.plan(union=kept)["app"]["given_up"] and not late_rows(union, "web"), "it is back"


def test_rows_are_given_out_however_far_ahead_if_all_inputs_have_come_so_far(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = begin_with_clocks(union, monkeypatch)[2]
    for name in NAMES:
        union.write(name, 1_000, FUTURE_MS)
    assert union.batch(union=kept) == {"app": [0], "web": [0]}
    assert union.offsets["app"]["until_ms"] == FUTURE_MS - 1_000



def test_no_input_is_given_up_when_the_time_of_a_row_comes_near(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was eleven minutes ahead. Both inputs keep pace with the clock."""
    now, wall, kept = begin_with_clocks(union, monkeypatch)
    for second in range(20, 760, 4):
        now[0] += 4
        wall[0] += 4
        union.write("app", second * 1_000, *([(second + 660) * 1_000] if second == 32 else []))
        union.write("web", second * 1_000 - 300)
        ends = union.plan(union=kept)
        union.read(ends)
        assert not ends["app"]["given_up"] and ends["app"]["until_ms"] <= (second + 1) * 1_000
    assert not late_rows(union, "app") + late_rows(union, "web")


def test_a_clock_that_was_ahead_for_a_moment_gives_no_input_up(
    union: Union, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, wall, kept = begin_with_clocks(union, monkeypatch)
    union.write("app", 4_000_000)
    for second in range(20, 200, 2):
        now[0] += 2
        wall[0] = 7_200 if second == 40 else second
        union.write("app", second * 1_000)
        union.write("web", second * 1_000 - 2_000)
        ends = union.plan(union=kept)
        union.read(ends)
        assert not ends["app"]["given_up"]
    assert not late_rows(union, "web")


def test_rows_beside_one_of_the_future_wait_as_others_do(union: Union, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input for which they wait is away, and the writer says how far the other one is."""
    now, wall, kept = begin_with_clocks(union, monkeypatch)
    wall[0] = 30.0
    union.write("web", 23_000)
    union.write("app", 20_000, 25_000, FUTURE_MS)
    given = union.batch(union=kept)["app"]
    for second in range(31, 131):
        now[0] += 1
        wall[0] += 1
        union.agents["app"].ask("boundary", batch=0, generation=1, quiet_ms=second * 1_000, columns={})
        given += union.batch(union=kept)["app"]
    assert given == [0, 1]
