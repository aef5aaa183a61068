"""The calls of the driver: check, plan, record, begin a run, report, acknowledge, trim."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import json
import random
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.agent import queries, starts
from spark_cec.agent.calls import Calls
from spark_cec.agent.messages import AcknowledgeRequest, BetweenBatchesRequest
from spark_cec.agent.queries import _find_output_bound
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log.output_rollbacks import append_cut
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.decide import RecoveryPlan, StartFacts, StartOrders, decide_start
from spark_cec.recovery.generations import begin_generation, next_generation, record_start
from spark_cec.recovery.unfinished_copy import UNFINISHED
from spark_cec.settings import PREFIX, Settings
from tests.agent.support import DECISION, WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip

STORES = (StoreId(0, 0), StoreId(0, 1))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    made.begin_run()
    yield made
    made.calls.close()


def check(agent: Agent, committed: int = 0, **settings: str) -> dict[str, Any]:
    conf = {**agent.conf, **{PREFIX + key.replace("__", "."): value for key, value in settings.items()}}
    return agent.ask("check", conf=conf, sink_path=None, committed_batch=committed)


def places(agent: Agent) -> tuple[Storage, Storage]:
    """The checkpoint, and its `cec` directory."""
    return open_storage(agent.checkpoint), open_storage(f"{agent.checkpoint}/cec")


def run_batches(agent: Agent, batches: int, tips: dict[StoreId, Tip] | None = None, **more: Any) -> dict[StoreId, Tip]:
    """Two stores: the first has a window that is dirty from batch 1 on, the second is clean."""
    tips = tips or dict.fromkeys(STORES, Tip())
    planned = Path(agent.checkpoint, "offsets")
    planned.mkdir(exist_ok=True)
    for batch in range(tips[STORES[0]].version + batches + 1):  # the last one is about to run
        planned.joinpath(str(batch)).write_text("v1\n{}\n-")
    for _ in range(batches):
        for store, before in list(tips.items()):
            changes = window(b"a", b"%d" % before.version) if store == STORES[0] or not before.version else {}
            tips[store] = agent.append(store, before, changes, inputs=10, **more)[0]
    return tips


def test_a_check_writes_nothing_that_stays(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    answer = check(agent, U="7", CI="5ms")
    assert answer["home"] == agent.home
    assert (answer["log_id"], answer["mode"], answer["replayable_sources"]) == (None, "auto", [])
    assert [path for path in Path(agent.checkpoint).rglob("*") if path.is_file()] == []
    agent.calls.close()


def test_a_check_passes_warnings_on(agent: Agent) -> None:
    (said,) = check(agent, Q="0.5x")["said"]
    assert "cannot be attained" in said["line"] and said["warns"]


def test_an_index_path_that_cannot_be_made_is_refused_before_anything_is_written(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    agent.conf[PREFIX + "index.path"] = str(tmp_path / "file" / "index")
    with pytest.raises(Refused, match=r"cec\.index\.path='.*/file/index': the directory cannot be made \(Not a dir"):
        agent.ask("check", committed_batch=-1)


def test_the_log_must_stay_where_it_is(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"give back the sink's `path` and cec\.log\.path as they were") as refused:
        check(agent, log__path=str(tmp_path / "elsewhere"))
    assert refused.value.kind == "UnsuitableCheckpoint"
    assert check(agent)["log_id"] is not None


def test_a_checkpoint_moves_with_its_log(tmp_path: Path) -> None:
    """Under `log.path` a log's directory has its name from the checkpoint's path."""
    before, after = Agent(tmp_path, tmp_path / "old"), Agent(tmp_path, tmp_path / "new")
    for each in (before, after):
        each.conf[PREFIX + "log.path"] = str(tmp_path / "logs")
    before.home = before.ask("check", committed_batch=-1)["home"]
    before.begin_run()
    before.calls.close()
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(Refused, match=r"if this checkpoint was moved .* move the log's directory there too"):
        after.ask("check", committed_batch=0)
    home = str(tmp_path / "logs" / hashlib.sha256(after.checkpoint.encode()).hexdigest()[:16])
    Path(before.home).rename(home)
    after.home = after.ask("check", committed_batch=0)["home"]
    assert (after.home, after.begin_run()) == (home, 2)
    assert json.loads((tmp_path / "new" / "cec" / "query.json").read_text())["log_home"] == home
    after.calls.close()


def test_before_the_first_commit_the_log_may_be_elsewhere(agent: Agent, tmp_path: Path) -> None:
    """As after the refusal of a place that the executors do not share."""
    found = check(agent, committed=-1, log__path=str(tmp_path / "elsewhere"))
    assert (found["log_id"], found["home"].startswith(str(tmp_path / "elsewhere"))) == (None, True)


def test_the_log_of_another_query_is_refused(agent: Agent, tmp_path: Path) -> None:
    other = Agent(tmp_path, tmp_path / "other checkpoint")
    with pytest.raises(Refused, match="holds the log of another query") as refused:
        other.ask("check", sink_path=agent.home, committed_batch=-1)
    assert refused.value.kind == "UnsuitableCheckpoint"
    other.calls.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"log_id": "x"}', b'{"log_id": "00"}'])
def test_a_damaged_query_file_is_named_with_its_mend(agent: Agent, content: bytes) -> None:
    query = Path(agent.checkpoint, "cec", "query.json")
    log_id = json.loads(query.read_text())["log_id"]
    query.write_bytes(content)
    with pytest.raises(Refused, match=r"cec/query\.json cannot be read .*delete it, and the next start") as refused:
        check(agent)
    assert refused.value.kind == "UnsuitableCheckpoint"
    query.unlink()
    assert check(agent)["log_id"] is not None
    agent.begin_run()
    assert json.loads(query.read_text())["log_id"] == log_id


def test_a_log_elsewhere_is_nobodys_where_no_file_says_so(agent: Agent, tmp_path: Path) -> None:
    agent.conf[PREFIX + "log.path"] = str(tmp_path / "logs")
    other = Agent(tmp_path, tmp_path / "other checkpoint")
    other.conf[PREFIX + "log.path"] = str(tmp_path / "logs")
    other.home = other.ask("check", committed_batch=-1)["home"]
    other.begin_run()
    Path(other.checkpoint, "cec", "query.json").unlink()
    with pytest.raises(Refused, match="holds the log of another query"):
        other.ask("check", committed_batch=0)
    other.calls.close()


OURS = "org.apache.spark.sql.cec.CecStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        ({"provider": True, "recorded_provider": HDFS}, "UnsuitableCheckpoint", f"was begun with .*{HDFS}.*cec import"),
        ({"provider": True, "planned": True}, "UnsuitableCheckpoint", "begun by an old release of Spark"),
        ({"provider": False, "recorded_provider": OURS}, "UnsuitableCheckpoint", f"providerClass={OURS}; `cec export`"),
        ({"provider": True, "transform_with_state": True}, "Unsupported", "transformWithState cannot run"),
        ({"provider": True, "recorded_provider": OURS, "planned": True}, "", ""),
        ({"provider": True, "recorded_provider": None}, "", ""),
        ({"provider": False, "stateful": False, "recorded_provider": HDFS}, "", ""),
    ],
)
def test_whether_a_query_may_go_on(agent: Agent, asked: dict[str, Any], kind: str, says: str) -> None:
    if not kind:
        assert agent.ask("check", committed_batch=0, **{"stateful": True, **asked})["log_id"] is not None
        return
    with pytest.raises(Refused, match=says) as refused:
        agent.ask("check", committed_batch=0, **{"stateful": True, **asked})
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "metadata of .* is empty, as after a power loss .*: if .* has committed nothing .*, remove the dir"),
        (f"{UNFINISHED}\n", r"was not finished \(its file metadata says so\): remove the directory"),
        (UNFINISHED, r"was not finished \(its file metadata says so\): remove the directory"),
    ],
)
def test_a_copy_that_was_not_finished_is_called_that(agent: Agent, content: str, why: str) -> None:
    """Whatever else is or is not in it: it was cut short anywhere."""
    Path(agent.checkpoint, "metadata").write_text(content)
    for asked in ({"provider": True, "recorded_provider": HDFS}, {}, {"provider": False, "recorded_provider": OURS}):
        with pytest.raises(Refused, match=why):
            agent.ask("check", committed_batch=0, stateful=True, **asked)
    Path(agent.checkpoint, "metadata").write_text('{"id":"b0b8a1e0-0000-0000-0000-000000000000"}')
    assert check(agent)["log_id"] is not None


def test_a_sinks_path_may_end_in_a_slash_or_not(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.home = str(tmp_path / "out")
    agent.begin_run()
    for path in (f"{agent.home}/", agent.home):
        assert agent.ask("check", sink_path=path, committed_batch=-1)["log_id"] is not None
    agent.calls.close()


def test_every_run_has_a_generation_of_its_own(agent: Agent, tmp_path: Path) -> None:
    other = Agent(tmp_path)
    assert [agent.begin_run(), other.begin_run(), agent.begin_run()] == [2, 3, 4]
    query = json.loads(Path(agent.checkpoint, "cec", "query.json").read_text())
    assert (query["generation"], query["mode"], query["reason"]) == (4, "deferred", "test")
    assert agent.ask("resolve")["home"] == agent.home
    other.calls.close()


def test_a_session_without_the_extension_writes_under_a_number_that_counts_after_a_rollback(agent: Agent) -> None:
    """Under the number of the run before, all its batches would have been taken back."""
    run_batches(agent, 3)
    own = places(agent)[1]
    taken_back = next_generation(own)
    record_start(own, taken_back, 1)
    assert agent.ask("resolve")["generation"] == taken_back
    assert begin_generation(own, lambda: 1) > taken_back
    assert agent.ask("resolve")["generation"] == taken_back, "a start that has no lease has written nothing"
    assert CommittedAttempts(*places(agent), (), 1).least_generation(3) == taken_back


def test_an_earlier_run_does_not_give_away_the_lease_of_a_later_one(agent: Agent) -> None:
    earlier, latest = agent.begin_run(), agent.begin_run()
    for generation in (earlier, latest):
        agent.ask("hold", generation=generation)
    with pytest.raises(Refused, match=f"run {latest} of the query .* began while run {earlier} had no lease"):
        agent.ask("hold", generation=earlier)
    lock = Path(agent.checkpoint, "cec", "lock")
    with lock.open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("batches", "rewound_to"), [(1, 0), (2, 0), (5, 0)])
def test_the_plan_rewinds_to_the_oldest_batch_that_a_window_misses(agent: Agent, batches: int, rewound_to: int) -> None:
    """The first store's window opened in batch 0 and is dirty from batch 1 on."""
    run_batches(agent, batches)
    plan = RecoveryPlan.from_json(agent.plan(batches - 1, decision=WITH_STATE))
    assert (plan.committed_batch, plan.rewound_to, plan.stores) == (batches - 1, rewound_to, STORES)
    assert [(head.store, head.dirty_from) for head in plan.heads] == [(STORES[0], 1), (STORES[1], batches)]


def test_a_batch_that_spark_did_not_commit_does_not_count(agent: Agent) -> None:
    run_batches(agent, 1)
    begun = agent.begin(-1)
    assert begun["plan"]["rewound_to"] == -1
    run_batches(agent, 2, generation=begun["generation"])
    assert agent.plan(1)["committed_batch"] == 1


@pytest.mark.parametrize(("batches", "generation", "ahead"), [(5, 1, False), (6, 1, True), (3, 2, True)])
def test_a_log_that_is_ahead_of_the_checkpoint_is_refused(
    agent: Agent, batches: int, generation: int, ahead: bool
) -> None:
    """As after a checkpoint was restored from a copy taken at batch 3 by run 1, and the log was not.

    Or as after somebody has deleted the newest two batches of run 1, which was the last one.
    """
    run_batches(agent, batches, generation=generation)
    plan = functools.partial(agent.plan, 3)
    if ahead:
        words = (
            r"the log is ahead of the checkpoint.* by run 2, but the checkpoint ends at batch 3 and run 1; restore both"
            if generation == 2
            else r"the log is ahead of the checkpoint.* has version 6, of batch 5, but the checkpoint ends at batch 3: "
            rf".*, run `cec rollback {agent.checkpoint} --to 3`; or restore"
        )
        with pytest.raises(Refused, match=words) as refused:
            plan()
        assert refused.value.kind == "UnsuitableCheckpoint"
    else:
        assert plan()["committed_batch"] == 3


def test_a_store_whose_frame_is_missing_is_damage(agent: Agent) -> None:
    tips = run_batches(agent, 2)
    agent.append(STORES[0], tips[STORES[0]], {})
    Path(agent.checkpoint, "offsets", "3").write_text("v1\n{}\n-")
    with pytest.raises(
        Refused, match="store 0/1/default: no commit frame of version 3; newest at or below it: 2"
    ) as refused:
        agent.begin(2, decision=WITH_STATE)
    assert refused.value.kind == "DamagedLog"


def test_output_that_spark_never_committed_is_refused(agent: Agent) -> None:
    run_batches(agent, 1)
    agent.ask("publish", batch=2, frames=[], rows=0, schema="{}", truncate=False, generation=1, sources=[])
    words = "holds output of batch 2, but the checkpoint ends at batch 0: .* run `cec rollback .* --to 0`; or restore"
    with pytest.raises(Refused, match=words):
        agent.begin(0)


def test_the_report_waits_for_every_store(agent: Agent) -> None:
    run_batches(agent, 3)
    arguments = {"generation": 2, "plan": agent.plan(2, decision=WITH_STATE), "started_ms": 1_000}
    assert agent.ask("report", **arguments) == {"done": False, "path": None}
    for partition, ok in ((0, True), (1, False)):
        assert agent.ask("report", **arguments) == {"done": False, "path": None}
        agent.ask(
            "loaded",
            store=[0, partition, "default"],
            version=3,
            generation=2,
            ec_load_ms=0.5,
            digest_ok=ok,
            held=partition,
            unsure=[] if ok else ["[a]"],
        )
    done = agent.ask("report", **arguments)
    report = json.loads(Path(agent.checkpoint, "cec", done["path"]).read_text())
    assert (report["committed_batch"], report["rewound_to"], report["replayed_batches"]) == (2, 0, 2)
    assert report["digest_ok"] is False
    assert [store["digest_ok"] for store in report["stores"]] == [True, False]
    assert [store.get("accepted_windows") for store in report["stores"]] == [None, ["[a]"]]
    assert [store["replay_inputs"] for store in report["stores"]] == [20, 0]
    assert (report["started_unix_ms"], done["path"]) == (1_000, "recoveries/1000.json")
    assert agent.ask("report", **arguments) == done, "who asks again finds the same"


def test_the_word_of_another_run_does_not_end_the_wait(agent: Agent) -> None:
    run_batches(agent, 1)
    plan = agent.plan(0, decision=WITH_STATE)
    for partition in (0, 1):
        agent.ask(
            "loaded",
            store=[0, partition, "default"],
            version=1,
            generation=1,
            ec_load_ms=0.5,
            digest_ok=True,
            held=0,
            unsure=[],
        )
    assert agent.ask("report", generation=2, plan=plan, started_ms=1) == {"done": False, "path": None}


def test_acknowledged_is_what_no_replay_will_ask_for(agent: Agent) -> None:
    tips = run_batches(agent, 4)
    assert agent.ask("acknowledge", version=4) == {"dirty_from": 1}
    agent.append(STORES[0], tips[STORES[0]], {}, {b"a"})
    assert agent.ask("acknowledge", version=5) == {"dirty_from": None}, "the other store has not committed it"
    agent.append(STORES[1], tips[STORES[1]], {})
    assert agent.ask("acknowledge", version=5) == {"dirty_from": 5}


@pytest.mark.parametrize("checked_first", [True, False])
def test_of_several_attempts_the_one_that_needs_most_is_not_acknowledged_away(
    agent: Agent, checked_first: bool
) -> None:
    """A task that ran again may have checked more, or less, than the first time; a replay may begin from either."""
    tips = run_batches(agent, 4)
    for checks in ({b"a"}, set()) if checked_first else (set(), {b"a"}):
        agent.append(STORES[0], tips[STORES[0]], {}, checks)
    agent.append(STORES[1], tips[STORES[1]], {})
    Path(agent.checkpoint, "offsets", "5").write_text("v1\n{}\n-")
    replays_from = agent.plan(4, decision=WITH_STATE)["rewound_to"] + 1
    assert agent.ask("acknowledge", version=5)["dirty_from"] <= replays_from


def kafka(agent: Agent, first: int) -> list[dict[str, Any]]:
    """The sources as the shim tells of them: one, of which the first offset that is there is `first`."""
    checkpoint = Path(agent.checkpoint)
    (checkpoint / "offsets").mkdir(exist_ok=True)
    for batch in range(3):
        offsets = json.dumps({"t": {"0": 10 * batch + 10}})
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offsets}")
    available = {"t": {"retention_ms": None, "partitions": {"0": [first, 100]}}}
    return [{"name": "KafkaV2[Subscribe[t]]", "available": json.dumps(available)}]


def test_a_start_says_what_it_needs_of_the_sources_or_that_it_is_gone(agent: Agent) -> None:
    run_batches(agent, 3)
    begin = functools.partial(agent.begin, 2, decision=WITH_STATE)
    query = Path(agent.checkpoint, "cec", "query.json").read_text()
    with pytest.raises(Refused, match="t-0 begins at offset 11, and is needed from 10 on") as refused:
        begin(sources=kafka(agent, 11))
    assert refused.value.kind == "InputGone"
    assert Path(agent.checkpoint, "cec", "query.json").read_text() == query, "nothing was changed"
    said, _ = begin(sources=kafka(agent, 0))["said"]
    line = "a recovery now would need input since batch 1 (t-0 from offset 10)"
    assert said == {"line": line, "warns": False}
    accepting = {**agent.conf, PREFIX + "onDivergence": "accept"}
    assert begin(sources=kafka(agent, 11), conf=accepting)["said"][0]["warns"] is True


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


class Successors:
    """An agent that dies before every call: another one is asked each time."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        self._agent.calls.close()
        self._agent.calls = Calls(str(self._agent.scratch / "spool"))
        if name in ("report", "loaded"):  # as the shim does where an agent does not know the log
            self._agent.ask("open_log", again=True)
        return self._agent.ask(name, **arguments)


@pytest.mark.parametrize("gone", [True, False])
def test_an_agent_that_dies_between_two_calls_of_a_start_changes_nothing(agent: Agent, gone: bool) -> None:
    """The start still looks for the input of the replay, its messages say so, and the recovery has its report."""
    run_batches(agent, 3)
    sources, query = kafka(agent, 11 if gone else 0), Path(agent.checkpoint, "cec", "query.json")
    each, before = Successors(agent), query.read_text()
    seen = each.ask("check", committed_batch=2)["log_id"]
    begin = functools.partial(each.ask, "begin", committed_batch=2, log_seen=seen, sources=sources, decision=WITH_STATE)
    if gone:
        with pytest.raises(Refused, match="t-0 begins at offset 11, and is needed from 10 on"):
            begin()
        assert query.read_text() == before
        return
    begun = begin()
    assert (begun["generation"], begun["log_id"]) == (2, seen)
    needs, how = (word["line"] for word in begun["said"])
    assert "would need input since batch 1" in needs and "last committed batch 2, replay from batch 1" in how
    each.ask("hold", generation=2)
    report = functools.partial(each.ask, "report", generation=2, plan=begun["plan"], started_ms=7)
    for store in STORES:
        assert report() == {"done": False, "path": None}
        loaded = {"version": 3, "generation": 2, "ec_load_ms": 0.5, "digest_ok": True, "held": 0, "unsure": []}
        each.ask("loaded", store=[store.operator, store.partition, store.name], **loaded)
    done = report()
    written = json.loads(Path(agent.checkpoint, "cec", done["path"]).read_text())
    assert (written["replayed_batches"], len(written["stores"]), written["digest_ok"]) == (2, 2, True)


def test_a_start_whose_answer_is_lost_begins_again(agent: Agent) -> None:
    """The shim calls a second time after the first agent has begun the run and died before its answer."""
    run_batches(agent, 3)
    each, arguments = Successors(agent), {"committed_batch": 2, "decision": WITH_STATE}
    seen = each.ask("check", committed_batch=2)["log_id"]
    lost, begun = (each.ask("begin", log_seen=seen, **arguments) for _ in range(2))
    assert (lost["generation"], begun["generation"]) == (2, 3)
    assert lost["plan"] == begun["plan"]
    each.ask("hold", generation=3)


def test_a_start_behind_which_another_driver_has_committed_is_refused(agent: Agent) -> None:
    """Another driver had the lease after the caller read V, and has it no more."""
    run_batches(agent, 3)
    Path(agent.checkpoint, "commits").mkdir()
    Path(agent.checkpoint, "commits", "3").touch()
    with pytest.raises(Refused, match=r"batch 3 of the query .* was committed while this start was") as refused:
        agent.begin(2, decision=WITH_STATE)
    assert refused.value.kind == "Fenced"
    Path(agent.checkpoint, "commits", "3").unlink()
    assert agent.begin_run(2, decision=WITH_STATE) == 2, "the refused start has taken no number"


def test_a_start_whose_query_was_taken_back_meanwhile_is_refused(agent: Agent) -> None:
    """A rollback had the lease after the caller read V: the log is sound, and no repair is called for."""
    run_batches(agent, 3)
    Path(agent.checkpoint, "offsets", "3").unlink()
    with pytest.raises(Refused, match=r"was taken back from batch 2 to batch 1 while .*: start it again") as refused:
        agent.begin(2, decision=WITH_STATE)
    assert refused.value.kind == "Fenced"
    Path(agent.checkpoint, "cec", "rollback.json").write_text('{"batch": 1, "generation": 1}')
    with pytest.raises(Refused, match="which was not finished"):
        agent.begin(2, decision=WITH_STATE)


def test_a_start_waits_for_the_lease_or_is_refused(agent: Agent) -> None:
    with (Path(agent.checkpoint) / "cec" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="is running already"):
            agent.begin(decision=WITH_STATE, wait_s=0.0)
        assert agent.begin(wait_s=0.0)["generation"] == 2, "one without state has no lease"


def test_of_starts_that_race_exactly_one_goes_on(agent: Agent) -> None:
    """Drivers begin runs at once, then take the lease in any order; Spark refuses some before they do.

    The run that takes the lease first goes on, and the files of the query are its own.
    """
    tips = run_batches(agent, 1)
    seed = secrets.randbelow(1 << 32)
    dice = random.Random(seed)
    for round_ in range(10):
        drivers = [Agent(agent.scratch) for _ in range(4)]

        def begin(driver: Agent, named: str, batch: int = round_) -> int:
            settings = {"spark.sql.session.timeZone": named}
            return driver.begin_run(batch, decision={**WITH_STATE, "reason": named}, session_settings=settings)

        names = [f"UTC+{number}" for number in range(len(drivers))]
        with ThreadPoolExecutor(4) as pool:
            begun = list(pool.map(begin, drivers, names))
        assert len(set(begun)) == len(drivers), f"seed {seed}: each run has a number of its own"
        dice.shuffle(order := list(zip(drivers, begun, names, strict=True)))
        order = order[: dice.randint(1, 4)]
        holders = []
        for driver, generation, name in order:
            with suppress(Refused):
                driver.ask("hold", generation=generation, wait_s=0.0)
                holders.append((driver, generation, name))
        assert holders == order[:1], f"seed {seed}"
        driver, generation, name = holders[0]
        query = json.loads(Path(agent.checkpoint, "cec", "query.json").read_text())
        assert (query["generation"], query["reason"]) == (generation, name), f"seed {seed}"
        (span,) = agent.ask("replay_settings", first=round_ + 1, last=round_ + 1)["spans"]
        assert span["settings"] == {"spark.sql.session.timeZone": name}, f"seed {seed}"
        tips = run_batches(driver, 1, tips, generation=generation)
        driver.ask("hold", generation=generation)  # as before each commit
        for each in drivers:  # ends the run, and later a start that was paused goes on
            each.calls.close()
        late = Agent(agent.scratch)
        for _, refused, _ in order[1:]:
            with pytest.raises(Refused, match="stop all runs of it, and start one") as why:
                late.ask("hold", generation=refused)
            assert why.value.kind == "Fenced"
        plan = late.plan(round_ + 1)
        assert (plan["committed_batch"], plan["base"]) == (round_ + 1, round_ + 2), f"seed {seed}: nothing is lost"
        late.calls.close()


def test_a_start_that_spark_refuses_does_not_end_the_run_that_it_accepts(agent: Agent) -> None:
    """Two threads of one session start the query at once. One agent serves both."""
    run_batches(agent, 3)
    accepted, refused = (agent.begin_run(2, decision=WITH_STATE) for _ in range(2))
    agent.ask("hold", generation=accepted)
    agent.ask("hold", generation=accepted)
    agent.append(STORES[0], Tip(), window(b"a"))  # the accepted run is not fenced
    with pytest.raises(Refused, match="is running already"):
        agent.begin(2, decision=WITH_STATE, wait_s=0.0)
    agent.ask("release")
    following = agent.begin_run(2, decision=WITH_STATE)
    assert following > refused, "a number that was given up is not given again"
    agent.ask("hold", generation=following)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4), 3)))
def test_a_start_for_which_spark_stops_the_run_goes_on(agent: Agent, order: tuple[int, ...]) -> None:
    """`stopActiveRunOnRestart`: other runs took the lease after this start began, and committed nothing.

    Its number is then the newest, so that those runs are fenced, wherever they go on.
    """
    tips = run_batches(agent, 3)
    begun = [agent.begin_run(2, decision=WITH_STATE) for _ in range(4)]
    held = [agent.ask("hold", generation=begun[at])["generation"] for at in order]
    assert sorted(held) == held and len(set(held)) == 3
    for stopped in held[:-1]:
        with pytest.raises(Refused, match=f"run {held[-1]} of the query .* began while run {stopped} had no lease"):
            agent.ask("hold", generation=stopped)
    assert agent.ask("hold", generation=held[-1]) == {"generation": held[-1]}
    assert agent.ask("resolve")["generation"] == held[-1]
    run_batches(agent, 1, tips, generation=held[-1])
    assert CommittedAttempts(*places(agent), (), 3).least_generation(4) == held[-1]
    (left,) = set(range(4)) - set(order)
    with pytest.raises(Refused, match="began after batch 2, and now batch 3 is the last one: another run has gone on"):
        agent.ask("hold", generation=begun[left])
    agent.ask("release")
    assert agent.plan(3)["base"] == 4, "nothing is lost"


@pytest.mark.parametrize("write", range(3))
def test_a_run_that_dies_as_it_takes_the_lease_leaves_the_query_to_the_next(
    agent: Agent, write: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its files it has written, the files of the query are those of the run that goes on."""
    run_batches(agent, 3)

    def begin(zone: str) -> int:
        return agent.begin_run(2, decision={**WITH_STATE, "reason": zone}, session_settings={"zone": zone})

    first, second = begin("one"), begin("two")
    replace, left = LocalStorage.replace, [write]

    def die(storage: LocalStorage, path: str, data: bytes) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "dies")
        left[0] -= 1
        replace(storage, path, data)

    with monkeypatch.context() as dying:
        dying.setattr(LocalStorage, "replace", die)
        with pytest.raises(Refused, match="dies"):
            agent.ask("hold", generation=first)
    agent.ask("hold", generation=second)
    query = json.loads(Path(agent.checkpoint, "cec", "query.json").read_text())
    assert (query["generation"], query["reason"]) == (second, "two")
    (span,) = agent.ask("replay_settings", first=3, last=3)["spans"]
    assert span["settings"] == {"zone": "two"}


def test_a_run_waits_for_the_lease_of_a_start_and_does_not_share_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start gives the lease back at the end of its call, so a run that shared the lease would run without one."""
    run_batches(agent, 3)
    first = agent.begin_run(2, decision=WITH_STATE)
    planning, may_go_on = threading.Event(), threading.Event()
    decide = decide_start

    def slow(facts: StartFacts) -> StartOrders:
        planning.set()
        assert may_go_on.wait(30)
        return decide(facts)

    monkeypatch.setattr(starts, "decide_start", slow)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(agent.begin_run, 2, decision=WITH_STATE)
        assert planning.wait(30)
        holds = pool.submit(agent.ask, "hold", generation=first)
        with pytest.raises(TimeoutError):
            holds.result(0.2)
        may_go_on.set()
        assert (second.result(30), holds.result(30)) == (first + 1, {"generation": first})
    lock = Path(agent.checkpoint, "cec", "lock")
    with lock.open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_log_that_vanishes_while_a_start_is_prepared_is_not_begun_anew(agent: Agent) -> None:
    """As a mount that goes away between the two calls."""
    run_batches(agent, 3)
    seen = check(agent, 2)["log_id"]
    shutil.rmtree(agent.home)
    with pytest.raises(Refused, match="the log is gone") as refused:
        agent.begin(2, decision=WITH_STATE, log_seen=seen)
    assert refused.value.kind == "LogLocationError"
    assert not Path(agent.home).exists()


def test_a_run_that_has_ended_gives_back_its_own_lease_alone(agent: Agent) -> None:
    """Its last call may come late: a later run, or a start, may have the lease by then."""
    run_batches(agent, 3)
    earlier, later = (agent.begin_run(2, decision=WITH_STATE) for _ in range(2))
    for generation in (earlier, later):
        agent.ask("hold", generation=generation)
    agent.ask("release", generation=earlier)
    lock = Path(agent.checkpoint, "cec", "lock")
    with lock.open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    agent.ask("release", generation=later)
    with lock.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_run_whose_file_is_unreadable_counts_as_one_with_the_lease(agent: Agent) -> None:
    """Such a run may have written. So the next run takes a later number."""
    run_batches(agent, 3)
    first, second = (agent.begin_run(2, decision=WITH_STATE) for _ in range(2))
    Path(agent.checkpoint, "cec", "generations", f"{second:010d}.json").write_text("{")
    assert agent.ask("hold", generation=first) == {"generation": second + 1}


def test_while_it_runs_a_thin_margin_is_a_reason_to_write(agent: Agent) -> None:
    run_batches(agent, 3)
    look = functools.partial(agent.ask, "between_batches")
    assert look(version=3, sources=kafka(agent, 0)) == {"request": None, "thin": None, "deletes": False}
    answer = look(version=3, sources=kafka(agent, 9))
    assert "t-0 is needed from offset 10 on" in answer["thin"] and answer["deletes"]
    assert look(version=4, sources=kafka(agent, 9))["thin"] is None, "no store is there yet"
    assert look(version=3, sources=None)["thin"] is None, "the sources have not answered"


@pytest.mark.parametrize("damaged", [False, True])
def test_a_flush_is_judged_by_the_log(agent: Agent, damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log lacks a store, the answer has the errors of executors, too. Otherwise it leaves them out."""
    tips, own = run_batches(agent, 3), Path(agent.checkpoint, "cec")
    (own / "flush.json").write_text('{"request": "r"}')
    assert agent.ask("between_batches", version=3, sources=None)["request"] == "r"
    tell = functools.partial(agent.ask, "flushed", generation=1, failed=["executor 1 does not answer"])
    if damaged:
        monkeypatch.setattr(queries, "name_dirty_stores", fail_with(DamagedLog("a segment", 7, "torn")))
        words = [f"the log cannot be asked which stores are written: {DamagedLog('a segment', 7, 'torn')}"]
    else:
        words = ["store 0/0/default still needs a replay from batch 1 on"]
    wanted = [*words, "executor 1 does not answer"]
    assert tell(version=3, request="r")["unwritten"] == wanted
    assert json.loads((own / "flushed.json").read_text()) == {"request": "r", "version": 3, "failed": wanted}
    assert not (own / "flush.json").exists()
    if not damaged:
        agent.append(STORES[0], tips[STORES[0]], {}, {b"a"})
        agent.append(STORES[1], tips[STORES[1]], {})
        assert tell(version=4, request=None)["unwritten"] == []


def test_what_a_batch_reads(agent: Agent) -> None:
    kafka(agent, 0)
    words = "batch 1 reads K, where 10 rows are expected (t-0 10 to 19)"
    assert agent.ask("batch_input", first=1, last=1, sources=["K"])["words"] == words


def test_trimming_keeps_what_a_retained_version_may_need(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.conf[PREFIX + "log.segmentBytes"] = "4KiB"
    generation = agent.begin_run()
    tips = run_batches(agent, 30)
    segments = Path(agent.home, "segments")
    before = len(list(segments.iterdir()))
    assert agent.ask("trim", version=30, generation=generation, retained=5) == {"removed": []}, (
        "batch 0 opened what is still open"
    )
    tips = {store: agent.append(store, tip, {}, {b"a"})[0] for store, tip in tips.items()}
    tips = run_batches(agent, 12, tips)
    removed = agent.ask("trim", version=43, generation=generation, retained=5)["removed"]
    assert removed
    assert len(list(segments.iterdir())) < before + 12
    for version in range(38, 44):
        for partition in (0, 1):
            answer = agent.ask("load", store=[0, partition, "default"], version=version, checkpoint_id=None, retained=5)
            assert [row["window"] for row in agent.rows(answer)] == [b"a"]
    agent.calls.close()


@pytest.mark.parametrize(
    ("keep", "kept_from", "before"), [(3, None, 47), (3, 5, 5), (48, 5, 2), (None, 5, None), (None, None, None)]
)
def test_output_that_a_flow_may_go_back_to_is_kept(keep: int | None, kept_from: int | None, before: int | None) -> None:
    """Whatever its readers are through with: a rollback needs it whole."""
    log = SimpleNamespace(settings=Settings(retain_output_batches=keep))
    assert _find_output_bound(log, 50, kept_from) == before  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("takes_part", "asked", "says"),
    [
        (True, {"speculation": True}, r"flow f has state.*Turn spark\.speculation off"),
        (True, {"speculation": True, "stateful": False}, ""),
        (True, {"provider": False}, "flow f has its state with another provider"),
        (True, {}, ""),
        (False, {"speculation": True}, ""),
    ],
)
def test_a_flow_under_a_protocol(takes_part: bool, asked: dict[str, Any], says: str, tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    own = {"protocol.home": str(tmp_path), "protocol.flow": "f", "protocol.run": "1"}
    own |= {"protocol": "uncoordinated"} if takes_part else {}
    conf = {**agent.conf, **{PREFIX + key: value for key, value in own.items()}}
    start = functools.partial(agent.ask, "check", conf=conf, sink_path=None, committed_batch=-1)
    with pytest.raises(Refused, match=says) if says else nullcontext():
        start(**{"provider": True, "stateful": True, "planned": False, **asked})
    agent.calls.close()


def test_state_of_another_provider_is_not_looked_for(agent: Agent) -> None:
    """The log has the output of such a query alone, although Spark names its stores."""
    run_batches(agent, 3)
    without = {**DECISION, "provider": False}
    named = Path(agent.checkpoint, "state/0/_metadata/metadata")
    named.parent.mkdir(parents=True)
    named.write_text('v1\n{"stateStoreInfo": [{"storeName": "other", "numPartitions": 2}]}')
    with pytest.raises(Refused, match="no commit frame of version 3"):
        agent.begin(2, decision=WITH_STATE)
    assert agent.begin(2, decision=without)["plan"]["stores"] == []


def test_a_store_of_an_abandoned_history_is_not_missed(tmp_path: Path) -> None:
    """A flow went back to its beginning, and has fewer partitions since then."""
    agent = Agent(tmp_path)
    agent.conf[PREFIX + "log.segmentBytes"] = "4KiB"
    agent.begin_run()
    run_batches(agent, 3)
    agent.begin_run(2)
    append_cut(open_storage(agent.home), -1, 2, 0)
    tips = run_batches(agent, 40, {STORES[0]: Tip()}, generation=2)
    tips = {STORES[0]: agent.append(STORES[0], tips[STORES[0]], {}, {b"a"}, generation=2)[0]}
    run_batches(agent, 9, tips, generation=2)
    assert [each[1] for each in agent.begin(49, decision=WITH_STATE)["plan"]["stores"]] == [0]
    assert agent.ask("trim", version=50, generation=3, retained=2)["removed"]
    agent.calls.close()


def test_a_checkpoint_that_was_deleted_begins_anew(agent: Agent, tmp_path: Path) -> None:
    """A user deletes the checkpoint and starts the query again in the same session: the same agent, another log."""
    run_batches(agent, 3)
    shutil.rmtree(agent.checkpoint)
    begun = agent.begin()
    assert begun["plan"]["stores"] == []
    run_batches(agent, 2, generation=begun["generation"])
    restarted = Agent(tmp_path)
    plan = restarted.plan(1, decision=WITH_STATE)
    assert (plan["committed_batch"], len(plan["stores"])) == (1, 2)
    restarted.calls.close()


def test_an_object_store_is_asked_now_and_then_only(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a request that costs money. Acknowledgements may wait, and so may `cec flush`."""
    run_batches(agent, 3)
    now = [100.0]
    calls = queries.QueryCalls(agent.calls._logs, agent.calls._starts._protocols, lambda: now[0])
    Path(agent.checkpoint, "cec", "flush.json").write_text('{"request": "r"}')
    asked = BetweenBatchesRequest(checkpoint=agent.checkpoint, home=agent.home, version=3, sources=None)
    acknowledged = AcknowledgeRequest(home=agent.home, version=3)

    def ask() -> tuple[str | None, int | None]:
        return calls.between_batches(asked).request, calls.acknowledge(acknowledged).dirty_from

    assert ask() == ask() == ("r", 1), "a disk is asked at each call"
    monkeypatch.setattr(LocalStorage, "can_append", False)
    answers = []
    for _ in range(12):
        answers.append(ask())
        now[0] += 1.0
    assert [each[0] for each in answers] == ["r", *[None] * 4, "r", *[None] * 4, "r", None]
    assert [each[1] for each in answers] == [1, *[None] * 9, 1, None]
