"""The calls of the state stores: open, append, load, loaded; and what an agent says that cannot."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.agent import loads, reader, spool, stores
from spark_cec.agent.calls import Calls, _encode_failure, _explain_error
from spark_cec.agent.messages import REQUESTS, Message
from spark_cec.checkpoint.eventual import EventualCheckpoint, rebuild
from spark_cec.errors import LostLog, NoAnswer, TransientError
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitFlags
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import PREFIX
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Rows, Tip

STORE = StoreId(0, 3)
KEY = [0, 3, "default"]


def most_at_once(asks: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rebuilds run at once if four threads make twelve calls."""
    inside, most = 0, list[int]()
    changed = threading.Condition()

    def rebuild_slowly(*given: Any) -> EventualCheckpoint:
        nonlocal inside
        with changed:
            inside += 1
            most.append(inside)
            changed.notify_all()
            changed.wait_for(lambda: inside == 4, 0.02)
        made = rebuild(*given)
        with changed:
            inside -= 1
        return made

    for module in (stores, reader):
        monkeypatch.setattr(module, "rebuild", rebuild_slowly)
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(asks) for _ in range(12)]:
            each.result()
    return max(most)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    made.ask("open_log")
    yield made
    made.calls.close()


def four_commits(agent: Agent) -> list[Tip]:
    tips = [Tip()]
    for batch in ({**window(b"a"), **window(b"b")}, window(b"a", b"2"), {**window(b"b", b""), **window(b"c")}, {}):
        tips.append(agent.append(STORE, tips[-1], batch, inputs=5)[0])
    return tips


def test_what_was_appended_is_loaded(agent: Agent) -> None:
    tips = four_commits(agent)
    for tip in tips[1:]:
        answer = agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
        assert {row["window"]: row["footprint"] for row in agent.rows(answer)} == tip.footprints
        assert answer["footer"]["open_windows"] == len(tip.state)
        assert answer["dirty_windows"] == len(tip.dirty)
        assert answer["dirty_from"] == min(tip.dirty.values(), default=tip.version)
        assert answer["footer"]["digest"] == "17"
        assert answer["footer"]["checkpoint_id"] == tip.checkpoint_id.hex()


def test_loads_without_room_for_each_other_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems to have four bytes; each rebuild looks whether another one is under way."""
    monkeypatch.setattr(loads, "machine_memory", lambda: 4)
    agent = Agent(tmp_path)
    agent.ask("open_log")
    tip = four_commits(agent)[-1]
    inside, most = threading.Semaphore(0), list[int]()

    def rebuild_alone(*given: Any) -> EventualCheckpoint:
        inside.release()
        most.append(inside._value)
        made = rebuild(*given)
        inside.acquire()
        return made

    monkeypatch.setattr(stores, "rebuild", rebuild_alone)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(agent.ask, "load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
            for _ in range(12)
        ]
    assert all(each.result()["rows"] == len(tip.state) for each in asked)
    assert most == [1] * 12
    agent.calls.close()


@pytest.mark.parametrize("call", ["load", "read_split"])
@pytest.mark.parametrize(("window_bytes", "at_once"), [(10, 4), (1000, 1)])
def test_loads_of_long_windows_come_one_by_one(
    window_bytes: int, at_once: int, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for 160 bytes of each record in four loads at once, and the frames compress to a small part."""
    number = 1000
    monkeypatch.setattr(loads, "machine_memory", lambda: 4 * 4 * number * 160)
    agent = Agent(tmp_path)
    agent.ask("open_log")
    batch = {key: {key: b"value"} for key in (b"%0*d" % (window_bytes, each) for each in range(number))}
    tip = agent.append(STORE, Tip(), batch)[0]

    view = {"view": "windows", "operator": STORE.operator, "store": STORE.name, "version": tip.version}
    (split,) = agent.ask("view_splits", path=agent.home, **view)["splits"]
    calls: dict[str, dict[str, Any]] = {
        "load": {"store": KEY, "version": tip.version, "checkpoint_id": None, "retained": 100},
        "read_split": {"split": split, "columns": None, "path": agent.home},
    }

    def load() -> None:
        assert agent.ask(call, **calls[call])["rows"] == number

    assert most_at_once(load, monkeypatch) == at_once
    agent.calls.close()


@pytest.mark.parametrize("call", ["load", "read_split"])
def test_the_rows_of_a_load_are_written_in_its_turn(call: str, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one would begin while this one still has its rows."""
    tip, write, marks = four_commits(agent)[-1], spool.Spool.write, list[int]()

    def look(own: spool.Spool, rows: Any) -> str:
        marks.append(len(list(own.directory.glob("*.load"))))
        return write(own, rows)

    monkeypatch.setattr(spool.Spool, "write", look)
    if call == "load":
        agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
    else:
        view = {"view": "windows", "operator": STORE.operator, "store": STORE.name, "version": tip.version}
        for split in agent.ask("view_splits", path=agent.home, **view)["splits"]:
            agent.ask("read_split", split=split, columns=None, path=agent.home)
    assert marks and set(marks) == {1}


@pytest.mark.parametrize(("under_way", "at_once"), [(0, 4), (1, 4), (2, 1)])
def test_after_a_death_among_several_loads_they_come_one_by_one(
    under_way: int, at_once: int, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was alone would be so again."""
    tip, dead = four_commits(agent)[-1], agent.calls.spool
    for _ in range(under_way):
        monkeypatch.setattr(stores, "rebuild", Mock(side_effect=SystemExit))
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(Path, "unlink", Mock())  # the process does not come to it
            agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
    for lock in (dead._lock, dead._overflow_lock):
        fcntl.flock(lock, fcntl.LOCK_UN)
    monkeypatch.setattr(stores, "rebuild", rebuild)
    successor = Agent(agent.scratch)
    successor.calls.close()
    successor.calls = Calls(str(agent.scratch / "spool"), (str(dead.directory), str(dead.overflow)))
    assert successor.calls.spool.directory == dead.directory
    successor.ask("open_log")

    def load() -> None:
        answer = successor.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
        assert len(successor.rows(answer)) == len(tip.state)

    assert most_at_once(load, monkeypatch) == at_once
    assert not list(dead.directory.glob("*.load"))
    successor.calls.close()


def fill_up(patch: pytest.MonkeyPatch, number: int, times: int) -> list[Path]:
    """The next `times` spool files find no more room after their first batch; the places of all that are begun."""
    begun, write, batches = list[Path](), spool.write_rows, spool.record_batches

    def note(path: str, rows: pa.Table) -> None:
        begun.append(Path(path))
        write(path, rows)

    def fail(rows: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from batches(rows)
        if len(begun) <= times:
            raise OSError(number, os.strerror(number))

    patch.setattr(spool, "write_rows", note)
    patch.setattr(spool, "record_batches", fail)
    return begun


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_rows_that_find_no_more_room_go_to_the_overflow(number: int, agent: Agent) -> None:
    """Loads that run at once all saw the room before the others had written."""
    tip = four_commits(agent)[-1]
    (split,) = agent.ask("view_splits", view="log", path=agent.home)["splits"]
    calls = (
        ("load", {"store": KEY, "version": tip.version, "checkpoint_id": None, "retained": 100}),
        ("read_split", {"split": split, "columns": None}),
    )
    for name, arguments in calls:
        wanted = agent.rows(agent.ask(name, **arguments))
        with pytest.MonkeyPatch.context() as patch:
            first = fill_up(patch, number, 1)
            answer = agent.ask(name, **arguments)
        assert [path.parent for path in first] == [agent.calls.spool.directory, agent.calls.spool.overflow]
        assert not first[0].exists(), "a torn file takes room"
        assert agent.rows(answer) == wanted
        with pytest.MonkeyPatch.context() as patch:
            second = fill_up(patch, number, 2)
            with pytest.raises(Refused, match=rf"^{agent.calls.spool.overflow}/.*: no space is left: make room there"):
                agent.ask(name, **arguments)
        assert not any(path.exists() for path in second)


def test_a_load_plans_as_the_append_did(agent: Agent) -> None:
    tip, appended = agent.append(STORE, Tip(), {**window(b"a"), **window(b"b")}, inputs=5)
    for batch in (window(b"a", b"2"), window(b"b", b"2"), {}):
        tip, appended = agent.append(STORE, tip, batch, inputs=5, whole=False)
        loaded = agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
        assert loaded["plan"] == appended["plan"]
    assert appended["extent"] == 2
    assert appended["replay"] == 15


def test_a_load_has_the_numbers_of_the_batches_that_a_replay_can_compare(agent: Agent) -> None:
    """The second commit is of a release that wrote puts for rows, or of a task that had read its shuffle before."""
    tip, _ = agent.append(STORE, Tip(), {**window(b"a"), **window(b"b")}, inputs=5)
    for inputs, flags in ((7, CommitFlags.COUNTED), (2, CommitFlags(0)), (9, CommitFlags.COUNTED)):
        tip, arguments = agent.append_arguments(STORE, tip, window(b"a", b"%d" % inputs), inputs=inputs, whole=False)
        agent.write({**arguments, "flags": arguments["flags"] | flags})
    answer = agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)
    assert (answer["dirty_from"], answer["inputs"]) == (1, {"2": 7, "4": 9})


def test_a_store_without_windows_has_no_spool_file(agent: Agent) -> None:
    tip, _ = agent.append(STORE, Tip(), {})
    answer = agent.ask("load", store=KEY, version=1, checkpoint_id=tip.checkpoint_id.hex(), retained=100)
    assert answer["spool"] is None
    assert (answer["rows"], answer["footer"]["open_windows"]) == (0, 0)


def test_groups_keep_their_rows(agent: Agent) -> None:
    group: Rows = {b"k%d" % i: b"v%d" % i for i in range(5)}
    agent.append(STORE, Tip(), {b"g": group}, grouped=True)
    rows = agent.rows(agent.ask("load", store=KEY, version=1, checkpoint_id=None, retained=100))
    assert {row["key"]: row["value"] for row in rows} == group
    assert {(row["window"], row["footprint"]) for row in rows} == {(b"g", 1)}


def test_a_ledger_that_is_missing_is_asked_for(agent: Agent, tmp_path: Path) -> None:
    tips = four_commits(agent)
    successor = Agent(tmp_path)
    successor.ask("open_log")
    with pytest.raises(Refused, match="send the whole ledger") as refused:
        successor.append(STORE, tips[-1], window(b"d"), whole=False)
    assert refused.value.kind == "LedgerMissing"
    _tip, answer = successor.append(STORE, tips[-1], window(b"d"), whole=True)
    assert answer["extent"] == 5
    successor.calls.close()


def test_a_retry_that_finds_its_frame_answers_as_the_first_time(agent: Agent, tmp_path: Path) -> None:
    """The agent wrote the frame and died before it could answer; its successor is asked again."""
    tip, _ = agent.append(STORE, Tip(), {**window(b"a"), **window(b"b")}, inputs=5)
    tip, _ = agent.append(STORE, tip, window(b"a", b"2"), inputs=7, whole=False)
    tip, arguments = agent.append_arguments(STORE, tip, {**window(b"b", b"2"), **window(b"c")}, inputs=9, whole=False)
    first = agent.write(arguments)
    successor = Agent(tmp_path)
    successor.ask("open_log")
    with pytest.raises(Refused, match="the frame is there; send the whole ledger") as refused:
        successor.write(arguments, retry=True)
    assert refused.value.kind == "LedgerMissing"
    whole = {**arguments, "live": list(Counter(tip.footprints.values()).items()), "live_is_whole": True}
    again = successor.write(whole)
    assert {**again, "agent_us": 0} == {**first, "agent_us": 0}
    log = successor.ask("view_splits", view="log", path=agent.home)["splits"]
    rows = [row for split in log for row in successor.rows(successor.ask("read_split", split=split, columns=None))]
    assert [row["version"] for row in rows] == [1, 1, 3], "and nothing is written twice"
    _, following = successor.append(STORE, tip, window(b"a", b"3"), inputs=1, whole=False)
    assert (following["extent"], following["replay"]) == (3, 17)
    successor.calls.close()


def test_a_frame_that_is_found_is_made_durable_before_it_counts(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent that wrote it may have died between the write and the wait for the disk."""
    tip, arguments = agent.append_arguments(STORE, Tip(), window(b"a"))
    first = agent.write(arguments)
    whole = {**arguments, "live": list(Counter(tip.footprints.values()).items()), "live_is_whole": True}
    successor, synced = Agent(tmp_path), list[str]()
    successor.ask("open_log")
    monkeypatch.setattr(LocalStorage, "sync", lambda _, path: synced.append(path))
    assert {**successor.write(whole), "agent_us": 0} == {**first, "agent_us": 0}
    (segment,) = Path(agent.home, "segments").iterdir()
    assert synced == [f"segments/{segment.name}"]
    successor.calls.close()


OTHER = StoreId(0, 1)


def whole_of(tip: Tip, arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "live": list(Counter(tip.footprints.values()).items()), "live_is_whole": True}


def test_stores_that_write_together_share_a_write(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    append = SegmentWriter._append_once

    def count(writer: SegmentWriter, frames: list[Any]) -> int:
        writes.append(len(frames))
        return append(writer, frames)

    monkeypatch.setattr(SegmentWriter, "_append_once", count)
    first, one = agent.append_arguments(STORE, Tip(), window(b"a"))
    second, other = agent.append_arguments(OTHER, Tip(), {**window(b"b"), **window(b"c")})
    spool = agent.spool(pa.table({"n": pa.array([1, 2], pa.int64())}))
    output = {
        "frame": "0f" * 16, "batch": 0, "partition": 0, "attempt": 0, "generation": 1, "rows": 2, "spool": spool,
    }  # fmt: skip
    answers = agent.ask("append", commits=[one, other], outputs=[output])["commits"]
    assert writes == [3] and [answer["extent"] for answer in answers] == [1, 2]
    loads = [
        agent.ask("load", store=store, version=1, checkpoint_id=tip.checkpoint_id.hex(), retained=100)["rows"]
        for store, tip in ((STORE, first), (OTHER, second))
    ]
    assert loads == [1, 2]
    log = agent.ask("view_splits", view="log", path=agent.home)["splits"]
    assert log, "the log can be read"
    assert agent.calls._logs.get_known(agent.home).catalog.index.output(bytes.fromhex("0f" * 16)) is not None


def test_the_driver_finds_what_an_executor_wrote_as_it_ended(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, one = agent.append_arguments(STORE, Tip(), window(b"a"))
    agent.write(one)
    frame = agent.write_output(0, agent.spool(pa.table({"n": pa.array([1], pa.int64())})), 1)
    driver, synced = Agent(tmp_path), list[str]()
    driver.ask("open_log")
    monkeypatch.setattr(LocalStorage, "sync", lambda _, path: synced.append(path))
    known = {"store": {"operator": 0, "partition": 3, "name": "default"}, "version": 1}
    named = first.checkpoint_id.hex()
    commits = [{**known, "checkpoint_id": each} for each in (named, "0a" * 16)]
    found = driver.ask("find_writes", commits=commits, frames=[frame, "0b" * 16])
    assert found == {"commits": [named], "frames": [frame]}
    (segment,) = Path(agent.home, "segments").iterdir()
    assert synced == [f"segments/{segment.name}"], "its writer may have died before it waited for the disk"
    driver.calls.close()


def test_if_one_ledger_is_missing_nothing_is_written(agent: Agent) -> None:
    first, one = agent.append_arguments(STORE, Tip(), window(b"a"))
    second, other = agent.append_arguments(OTHER, Tip(), window(b"b"))
    with pytest.raises(Refused, match="store 0/1/default version 1: this process has no ledger") as refused:
        agent.ask("append", commits=[one, {**other, "live_is_whole": False}], outputs=[])
    assert refused.value.kind == "LedgerMissing" and not list(Path(agent.home).glob("segments/*"))
    wholes = [whole_of(first, one), whole_of(second, other)]
    assert [each["extent"] for each in agent.ask("append", commits=wholes, outputs=[])["commits"]] == [1, 1]


def test_a_successor_finds_the_commits_that_were_written_and_writes_the_others(agent: Agent, tmp_path: Path) -> None:
    """The agent may have died after some of the objects of one call."""
    first, one = agent.append_arguments(STORE, Tip(), window(b"a"))
    second, other = agent.append_arguments(OTHER, Tip(), {**window(b"b"), **window(b"c")})
    written = agent.write(one)
    successor = Agent(tmp_path)
    successor.ask("open_log")
    wholes = [whole_of(second, other), whole_of(first, one)]
    answers = successor.ask("append", commits=wholes, outputs=[], retry=True)["commits"]
    assert [each["extent"] for each in answers] == [2, 1], "in the order of the request"
    assert {**answers[1], "agent_us": 0} == {**written, "agent_us": 0}
    log = successor.ask("view_splits", view="log", path=agent.home)["splits"]
    rows = [row for split in log for row in successor.rows(successor.ask("read_split", split=split, columns=None))]
    assert sorted(row["partition"] for row in rows) == [1, 1, 3], "and nothing is written twice"
    successor.calls.close()


class Answer(Message, frozen=True, kw_only=True):
    number: float


def test_an_answer_that_json_does_not_have_is_an_error(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM would take it for an agent that has died."""
    decoder, _ = agent.calls._by_name["open_log"]
    monkeypatch.setitem(agent.calls._by_name, "open_log", (decoder, lambda _: Answer(number=math.inf)))
    with pytest.raises(Refused, match="Out of range float values"):
        agent.ask("open_log")


def test_a_retry_that_finds_nothing_writes(agent: Agent) -> None:
    tip, arguments = agent.append_arguments(STORE, Tip(), window(b"a"))
    assert agent.write(arguments, retry=True)["extent"] == 1
    assert agent.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100)["rows"] == 1


def test_the_spool_file_stays_the_shims(agent: Agent) -> None:
    """It may have to be read again by a successor."""
    _, arguments = agent.append_arguments(STORE, Tip(), window(b"a"))
    agent.write(arguments)
    assert Path(arguments["spool"]).exists()


@pytest.mark.parametrize(
    ("name", "change", "kind", "says"),
    [
        ("load", {"version": 9}, "DamagedLog", "no commit frame of version 9"),
        ("load", {"checkpoint_id": "00" * 16}, "DamagedLog", "with checkpoint id 0000"),
        ("load", {"store": [7, 7, "x"]}, "DamagedLog", "store 7/7/x: no commit frame of version 1"),
        ("load", {"conf": {PREFIX + "Q": "none"}}, "SettingsError", "Q='none'"),
        ("append", {"home": "/not/open", "commits": [], "outputs": []}, "UnknownLog", "'/not/open' is not open in th"),
        ("loaded", {"home": "/not/open"}, "UnknownLog", "not open"),
    ],
)
def test_refusals_have_a_kind_and_say_what_is_wrong(
    agent: Agent, name: str, change: dict[str, object], kind: str, says: str
) -> None:
    tip, arguments = agent.append_arguments(STORE, Tip(), window(b"a"))
    agent.write(arguments)
    loaded = {"ec_load_ms": 1.5, "digest_ok": True, "held": 0, "unsure": []}
    known = {**arguments, **loaded, "checkpoint_id": tip.checkpoint_id.hex()}
    fields = REQUESTS[name].__struct_fields__
    with pytest.raises(Refused, match=says) as refused:
        agent.ask(name, **{**{key: value for key, value in known.items() if key in fields}, **change})
    assert refused.value.kind == kind


def test_an_error_says_whether_the_storage_did_not_answer() -> None:
    silence = NoAnswer(5, "reset by peer", "s3://bucket/x")
    assert _explain_error(silence) == (
        "s3://bucket/x: the storage does not answer (reset by peer): see to it, and start the query again"
    )
    behind = TransientError("segment 7 could not be begun")
    behind.__cause__ = silence
    for error, expected in ((silence, ["NoAnswer"]), (behind, ["CecError", "NoAnswer"]), (OSError(5, "no disk"), [])):
        assert json.loads(_encode_failure(error, "why"))["error"]["parents"] == expected


def test_a_call_that_there_is_not_has_an_answer(agent: Agent) -> None:
    answer = json.loads(agent.calls.answer("no such call", "{}"))["error"]
    assert answer["kind"] == "KeyError" and "no such call" in answer["message"]


def test_a_field_that_there_is_not_is_refused(agent: Agent) -> None:
    """A shim and an agent of two releases must not take a field for another one."""
    for call, request in REQUESTS.items():
        answer = json.loads(agent.calls.answer(call, '{"of another release": 1}'))["error"]
        assert answer["kind"] == "ValidationError", call
        assert request.__struct_fields__, call


@pytest.mark.parametrize("arguments", ["", "[]", "{", "null", '"x"', "{}"])
def test_whatever_is_sent_there_is_an_answer(agent: Agent, arguments: str) -> None:
    for name in (
        "open_log",
        "load",
        "append",
        "begin",
        "check",
        "report",
        "trim",
        "publish",
        "view_splits",
        "read_split",
        "",
    ):
        answer = json.loads(agent.calls.answer(name, arguments))
        assert set(answer["error"]) == {"kind", "parents", "message"}


def test_an_error_names_the_classes_that_it_is_of() -> None:
    """The JVM treats a lost log as a damaged one, because it asks for the base class."""
    error = json.loads(_encode_failure(LostLog("there"), "gone"))["error"]
    assert (error["kind"], error["parents"][0]) == ("LostLog", "DamagedLog")


def test_how_a_store_came_back_is_in_the_log(agent: Agent) -> None:
    agent.begin_run()
    agent.append(STORE, Tip(), window(b"a"))
    agent.ask("loaded", store=KEY, version=1, generation=4, ec_load_ms=1.5, digest_ok=None, held=3, unsure=[])
    plan = agent.plan(0, decision=WITH_STATE)
    assert (plan["committed_batch"], plan["rewound_to"]) == (0, 0)
    done = agent.ask("report", generation=4, plan=plan, started_ms=1)
    assert done["done"] is True
    report = json.loads(Path(agent.checkpoint, "cec", done["path"]).read_text())
    assert report["stores"][0]["held"] == 3
    assert report["digest_ok"] is None
