"""The calls of the driver: check, plan, record, begin a run, report, acknowledge, trim."""

from __future__ import annotations

import fcntl
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_cec.ids import StoreId
from spark_cec.settings import PREFIX
from tests.agent.support import Agent, Refused, window
from tests.checkpoint.support import Tip

STORES = (StoreId(0, 0), StoreId(0, 1))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    made.begin_run()
    yield made
    made.calls.close()


def check(agent: Agent, **settings: str) -> dict[str, Any]:
    conf = {**agent.conf, **{PREFIX + key.replace("__", "."): value for key, value in settings.items()}}
    return agent.ask("check", conf=conf, sink_path=None)


def run_batches(agent: Agent, batches: int, tips: dict[StoreId, Tip] | None = None, **more: Any) -> dict[StoreId, Tip]:
    """Two stores: the first has a window that is dirty from batch 1 on, the second is clean."""
    tips = tips or dict.fromkeys(STORES, Tip())
    for _ in range(batches):
        for store in STORES:
            before = tips[store]
            changes = window(b"a", b"%d" % before.version) if store == STORES[0] or not before.version else {}
            tips[store] = agent.append(store, before, changes, inputs=10, **more)[0]
    return tips


def test_a_check_writes_nothing_that_stays(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    answer = check(agent, U="7", CI="5ms")
    assert answer["home"] == agent.home
    assert (answer["log_exists"], answer["mode"], answer["replayable_sources"]) == (False, "auto", [])
    assert answer["describe"] == "Q=2x U=7 CI=5ms CP=100ms mode=auto"
    assert [path for path in Path(agent.checkpoint).rglob("*") if path.is_file()] == []
    agent.calls.close()


def test_a_check_passes_warnings_on(agent: Agent) -> None:
    (warning,) = check(agent, Q="0.5x")["warnings"]
    assert "cannot be attained" in warning


def test_the_log_must_stay_where_it_is(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"give back the sink's `path` and cec\.log\.path as they were") as refused:
        check(agent, log__path=str(tmp_path / "elsewhere"))
    assert refused.value.kind == "UnsuitableCheckpoint"
    assert check(agent)["log_exists"] is True


def test_the_log_of_another_query_is_refused(agent: Agent, tmp_path: Path) -> None:
    other = Agent(tmp_path, tmp_path / "other checkpoint")
    with pytest.raises(Refused, match="holds the log of another query") as refused:
        other.ask("check", sink_path=agent.home)
    assert refused.value.kind == "UnsuitableCheckpoint"
    other.calls.close()


def test_a_sinks_path_may_end_in_a_slash_or_not(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.home = str(tmp_path / "out")
    agent.begin_run()
    for path in (f"{agent.home}/", agent.home):
        assert agent.ask("check", sink_path=path)["log_exists"] is True
    agent.calls.close()


def test_every_run_has_a_generation_of_its_own(agent: Agent, tmp_path: Path) -> None:
    other = Agent(tmp_path)
    assert [agent.begin_run(), other.begin_run(), agent.begin_run()] == [2, 3, 4]
    query = json.loads(Path(agent.checkpoint, "cec", "query.json").read_text())
    assert (query["generation"], query["mode"], query["reason"]) == (4, "deferred", "test")
    assert agent.ask("resolve")["home"] == agent.home
    other.calls.close()


def test_an_earlier_run_does_not_give_away_the_lease_of_a_later_one(agent: Agent) -> None:
    latest = agent.begin_run()
    agent.ask("hold", generation=latest)
    with pytest.raises(Refused, match=f"run {latest} of the query .* began while run {latest - 1} had no agent"):
        agent.ask("hold", generation=latest - 1)
    lock = Path(agent.checkpoint, "cec", "lock")
    with lock.open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("batches", "rewound_to"), [(1, 0), (2, 0), (5, 0)])
def test_the_plan_rewinds_to_the_oldest_batch_that_a_window_misses(agent: Agent, batches: int, rewound_to: int) -> None:
    """The first store's window opened in batch 0 and is dirty from batch 1 on."""
    run_batches(agent, batches)
    plan = agent.ask("plan", commits=list(range(batches)), last_offset=batches, offsets={})
    assert (plan["committed_batch"], plan["rewound_to"], plan["recorded"]) == (batches - 1, rewound_to, None)
    assert plan["stores"] == [[0, 0, "default", 1], [0, 1, "default", batches]]


def test_a_batch_that_spark_did_not_commit_does_not_count(agent: Agent) -> None:
    run_batches(agent, 1)
    assert agent.ask("plan", commits=[], last_offset=0, offsets={})["rewound_to"] == -1
    run_batches(agent, 2)
    assert agent.ask("plan", commits=[0, 1], last_offset=2, offsets={})["committed_batch"] == 1


@pytest.mark.parametrize(("batches", "generation", "ahead"), [(5, 1, False), (6, 1, True), (3, 2, True)])
def test_a_log_that_is_ahead_of_the_checkpoint_is_refused(
    agent: Agent, batches: int, generation: int, ahead: bool
) -> None:
    """As after a checkpoint was restored from a copy taken at batch 3 by run 1, and the log was not."""
    run_batches(agent, batches, generation=generation)
    plan = functools.partial(agent.ask, "plan", commits=[0, 1, 2, 3], last_offset=4, offsets={})
    if ahead:
        words = f"the log is ahead of the checkpoint.* by run {generation}, but the checkpoint ends at batch 3 and"
        with pytest.raises(Refused, match=words) as refused:
            plan()
        assert refused.value.kind == "UnsuitableCheckpoint"
    else:
        assert plan()["committed_batch"] == 3


def test_a_store_whose_frame_is_missing_is_damage(agent: Agent) -> None:
    tips = run_batches(agent, 2)
    agent.append(STORES[0], tips[STORES[0]], {})
    with pytest.raises(
        Refused, match="store 0/1/default: no commit frame of version 3; newest at or below it: 2"
    ) as refused:
        agent.ask("plan", commits=[0, 1, 2], last_offset=3, offsets={})
    assert refused.value.kind == "DamagedLog"


def test_a_recording_is_obeyed_until_spark_has_caught_up(agent: Agent) -> None:
    run_batches(agent, 6)
    recorded = {str(batch): [str(10 * batch), None] for batch in range(1, 7)}
    agent.ask("record", committed_batch=5, rewound_to=0, offsets=recorded)
    for last_commit in (0, 3, 4):
        plan = agent.ask(
            "plan", commits=list(range(last_commit + 1)), last_offset=last_commit + 1, offsets={"1": ["10", None]}
        )
        assert (plan["committed_batch"], plan["rewound_to"], plan["recorded"]) == (5, 0, recorded), last_commit
    with pytest.raises(Refused, match="records offsets for batch 2 that differ from Spark's offset log"):
        agent.ask("plan", commits=[0, 1, 2, 3], last_offset=4, offsets={"1": ["10", None], "2": ["21", None]})
    assert agent.ask("plan", commits=[0, 1, 2, 3, 4, 5], last_offset=6, offsets={"2": ["21", None]})["recorded"] is None
    assert not Path(agent.checkpoint, "cec", "replay.json").exists()


def test_output_that_spark_never_committed_is_refused(agent: Agent) -> None:
    run_batches(agent, 1)
    agent.ask("publish", batch=2, frames=[], rows=0, schema="{}", truncate=False, generation=1)
    with pytest.raises(Refused, match="holds output of batch 2, but Spark's commit log ends at batch 0"):
        agent.ask("plan", commits=[0], last_offset=1, offsets={})


def test_the_report_waits_for_every_store(agent: Agent) -> None:
    run_batches(agent, 3)
    agent.ask("plan", commits=[0, 1, 2], last_offset=3, offsets={})
    arguments = {"generation": 2, "committed_batch": 2, "last_commit": 2}
    assert agent.ask("report", **arguments) == {"done": False}
    for partition, ok in ((0, True), (1, False)):
        assert agent.ask("report", **arguments) == {"done": False}
        agent.ask(
            "loaded",
            store=[0, partition, "default"],
            version=3,
            generation=2,
            ec_load_ms=0.5,
            digest_ok=ok,
            held=partition,
        )
    done = agent.ask("report", **arguments)
    report = json.loads(Path(agent.checkpoint, "cec", done["path"]).read_text())
    assert (report["committed_batch"], report["rewound_to"], report["replayed_batches"]) == (2, 0, 2)
    assert report["digest_ok"] is False
    assert [store["digest_ok"] for store in report["stores"]] == [True, False]
    assert [store["replay_inputs"] for store in report["stores"]] == [20, 0]
    assert agent.ask("report", **arguments) == {"done": True}, "once is enough"


def test_a_report_is_done_when_the_recording_is_gone(agent: Agent) -> None:
    """Batch 3 was planned, not committed, at the crash: its offsets stay until Spark has planned it again."""
    run_batches(agent, 3)
    agent.ask("record", committed_batch=2, rewound_to=0, offsets={str(batch): ["1"] for batch in (1, 2, 3)})
    agent.ask("plan", commits=[0, 1], last_offset=2, offsets={})
    for partition in (0, 1):
        agent.ask(
            "loaded", store=[0, partition, "default"], version=3, generation=2, ec_load_ms=0.5, digest_ok=True, held=0
        )
    arguments, recording = {"generation": 2, "committed_batch": 2}, Path(agent.checkpoint, "cec", "replay.json")
    first = agent.ask("report", **arguments, last_commit=2)
    assert (first["done"], Path(agent.checkpoint, "cec", first["path"]).exists()) == (False, True)
    assert recording.exists()
    assert agent.ask("report", **arguments, last_commit=3) == {"done": True}
    assert not recording.exists()


def test_the_word_of_another_run_does_not_end_the_wait(agent: Agent) -> None:
    run_batches(agent, 1)
    agent.ask("plan", commits=[0], last_offset=1, offsets={})
    for partition in (0, 1):
        agent.ask(
            "loaded", store=[0, partition, "default"], version=1, generation=1, ec_load_ms=0.5, digest_ok=True, held=0
        )
    assert agent.ask("report", generation=2, committed_batch=0, last_commit=0) == {"done": False}


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
    replays_from = agent.ask("plan", commits=[0, 1, 2, 3, 4], last_offset=5, offsets={})["rewound_to"] + 1
    assert agent.ask("acknowledge", version=5)["dirty_from"] <= replays_from


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


def test_a_checkpoint_that_was_deleted_begins_anew(agent: Agent, tmp_path: Path) -> None:
    """A user deletes the checkpoint and starts the query again in the same session: the same agent, another log."""
    run_batches(agent, 3)
    shutil.rmtree(agent.checkpoint)
    generation = agent.begin_run()
    assert agent.ask("plan", commits=[], last_offset=0, offsets={})["stores"] == []
    run_batches(agent, 2, generation=generation)
    restarted = Agent(tmp_path)
    plan = restarted.ask("plan", commits=[0, 1], last_offset=2, offsets={})
    assert (plan["committed_batch"], len(plan["stores"])) == (1, 2)
    restarted.calls.close()
