"""The calls of Spark's user interface: they answer from the log and the checkpoint, and write nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitFlags
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip, record_table

STORE = StoreId(0, 0)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    made.begin_run(decision=WITH_STATE)
    yield made
    made.calls.close()


def run_batches(agent: Agent, batches: int) -> None:
    """Batches of one store; the window of the first one stays dirty."""
    tip = Tip()
    for batch in range(batches):
        tip = agent.append(STORE, tip, window(b"%d" % batch, b"x"), inputs=10)[0]
        for log in ("offsets", "commits"):
            open_storage(agent.checkpoint).replace(f"{log}/{batch}", b"v1\n{}\n-")


def files(agent: Agent) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(agent.checkpoint).rglob("*") if path.is_file()}


def test_before_the_first_batch(agent: Agent) -> None:
    found = agent.ask("look")
    assert (found["batch"], found["operators"], found["reach"]) == (-1, [], None)
    assert (found["wall_ms"], found["recoveries"], found["damages"]) == (None, [], [])


def test_bounds_and_reach_of_a_query(agent: Agent) -> None:
    run_batches(agent, 4)
    before = files(agent)
    found = agent.ask("look")
    assert files(agent) == before
    (operator,) = found["operators"]
    assert found["batch"] == 3 and operator["open_windows"] == 4 and operator["extent"] == 4
    assert operator["replay_bound"] == 1_000_000 and operator["extent_bound"] == 8
    assert found["reach"]["first"] + found["reach"]["batches"] == 4
    assert "recovery now" in found["reach"]["text"]
    assert found["stored_bytes"] > 0 and "Q=" in found["settings"]


def test_a_torn_end_is_no_damage_and_changed_bytes_are(agent: Agent, tmp_path: Path) -> None:
    """As after the end of a machine. Nothing acknowledged is in it, so nobody must mend it."""

    def damages_of(name: str) -> list[str]:
        (tmp_path / name).mkdir()
        later = Agent(tmp_path / name, Path(agent.checkpoint))
        try:
            later.begin_run(2, decision=WITH_STATE)
            return list(later.ask("look")["damages"])
        finally:
            later.calls.close()

    run_batches(agent, 3)
    agent.ask("release")
    (segment,) = Path(agent.home).glob("segments/*")
    whole = segment.read_bytes()
    other = segment.with_name(segment.name.replace(segment.name[:8], "00000000"))
    other.write_bytes(whole[:-9])
    assert damages_of("torn") == []
    other.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    damages = damages_of("corrupt")
    assert damages and all(" at byte " in each and "Corrupt(" not in each for each in damages), damages


def test_the_reach_is_compared_with_what_the_sources_said_last(agent: Agent) -> None:
    tip = Tip()
    for batch in range(3):  # the window of batch 0 is written once, so a recovery needs batches 1 and 2
        tip = agent.append(STORE, tip, window(b"0", b"%d" % batch))[0]
        open_storage(agent.checkpoint).replace(f"commits/{batch}", b"v1\n{}")
        offsets = json.dumps({"t": {"0": 10 * batch + 10}})
        open_storage(agent.checkpoint).replace(f"offsets/{batch}", f"v1\n{{}}\n{offsets}".encode())
    assert agent.ask("look")["reach"]["sources"] == [] and agent.ask("look")["reach"]["asked_ms"] is None
    for first in (2, 4):
        available = json.dumps({"t": {"retention_ms": None, "partitions": {"0": [first, 100]}}})
        sources = [{"name": "K", "available": available}]
        agent.ask("between_batches", version=3, sources=sources)
    agent.ask("between_batches", version=3, sources=None)
    reach = agent.ask("look")["reach"]
    (source,) = reach["sources"]
    assert (reach["first"], reach["batches"]) == (1, 2) and reach["asked_ms"] > 0
    assert (source["source"], source["needed"], source["spare"], source["gone"]) == ("K", 20, 6, False)
    assert source["share"] == 6 / 26


def test_ages_are_of_the_stores_that_this_agent_writes(agent: Agent) -> None:
    assert agent.ask("ages") == {"stores": []}
    run_batches(agent, 4)
    before = files(agent)
    (store,) = agent.ask("ages")["stores"]
    assert files(agent) == before
    assert store["version"] == 4 and store["store"] == {"operator": 0, "partition": 0, "name": "default"}
    # One window is opened in each batch, and none is written again.
    classes = [(each["first"], each["last"], each["windows"]) for each in store["ages"]]
    assert classes == [(0, 0, 1), (1, 1, 1), (2, 4, 2)]
    with pytest.raises(Refused) as refused:
        agent.ask("ages", home=f"{agent.home}-other")
    assert refused.value.kind == "UnknownLog"


def test_recoveries_come_from_their_reports(agent: Agent) -> None:
    run_batches(agent, 1)
    times = {"started_unix_ms": 5, "duration_ms": 800, "predicted_ms": 900.5}
    report: dict[str, Any] = {**times, "digest_ok": True, "replayed_batches": 2}
    own = open_storage(f"{agent.checkpoint}/cec")
    own.replace("recoveries/5.json", json.dumps(report).encode())
    own.replace("recoveries/6.json", b"{")
    (found,) = agent.ask("look")["recoveries"]
    assert found == {
        "started_ms": 5, "duration_ms": 800, "predicted_ms": 900.5, "replayed_batches": 2, "digest_ok": True
    }  # fmt: skip


def test_a_log_that_is_not_open_is_not_opened(agent: Agent) -> None:
    with pytest.raises(Refused) as refused:
        agent.ask("look", home=f"{agent.home}-other")
    assert refused.value.kind == "UnknownLog"


def test_a_batch_that_is_not_written_yet_is_no_damage(agent: Agent) -> None:
    run_batches(agent, 2)
    for log in ("offsets", "commits"):
        open_storage(agent.checkpoint).replace(f"{log}/2", b"v1\n{}\n-")
    found = agent.ask("look")
    assert found["batch"] == 2 and found["reach"] is None and found["damages"] == []


def test_a_flush_counts(agent: Agent) -> None:
    """After `cec flush` the operators have nothing dirty, as `cec inspect` says."""
    tip = Tip()
    for batch in range(3):  # the window of batch 0 is written once
        tip, arguments = agent.append_arguments(STORE, tip, window(b"0", b"%d" % batch))
        agent.write(arguments)
        for log in ("offsets", "commits"):
            open_storage(agent.checkpoint).replace(f"{log}/{batch}", b"v1\n{}\n-")
    (dirty,) = agent.ask("look")["operators"]
    _, records = tip.flushed()
    known = {"dirty_windows": 0, "dirty_from": 3, "checked": 1, "inputs": 0, "live": [(3, 1)], "live_is_whole": True}
    flags = arguments["flags"] | CommitFlags.FLUSH
    agent.write({**arguments, **known, "flags": flags, "spool": agent.spool(record_table(False, records))})
    (clean,) = agent.ask("look")["operators"]
    assert dirty["dirty_windows"] == 1 and dirty["replay"] > 0
    assert (clean["dirty_windows"], clean["replay"]) == (0, 0) and clean["open_windows"] == dirty["open_windows"]


def test_a_query_that_is_no_flow_has_no_pipeline(agent: Agent) -> None:
    assert agent.ask("pipeline_look", home=agent.checkpoint) == {"home": None, "graph": None, "status": None}


def test_the_pipeline_of_a_flow(tmp_path: Path) -> None:
    home = tmp_path / "home"
    agent = Agent(tmp_path, home / "flows" / "a")
    (home / "flows").mkdir(parents=True)
    try:
        assert agent.ask("pipeline_look", home=str(home))["home"] is None
        graph = {"name": "p", "flows": {"a": {"inputs": []}}, "schemas": {"a": "s"}}
        (home / "pipeline.json").write_text(json.dumps(graph))
        assert agent.ask("pipeline_look", home=str(home)) == {"home": str(home), "graph": None, "status": None}
        flow = {"name": "a", "state": "running", "batch": 3, "restarts": 0, "error": None, "starves_for": []}
        status = {"name": "p", "home": str(home), "pid": 1, "wall_ms": 2, "flows": [flow]}
        (home / "status.json").write_text(json.dumps(status))
        found = agent.ask("pipeline_look", home=str(home))
        assert found["graph"] == {"flows": {"a": {"inputs": []}}}
        assert found["status"]["flows"][0]["state"] == "running" and found["status"]["protocol"] == "cec"
        (home / "status.json").write_text(json.dumps({**status, "flows": [{**flow, "state": "unheard"}]}))
        assert agent.ask("pipeline_look", home=str(home))["status"] is None
    finally:
        agent.calls.close()
