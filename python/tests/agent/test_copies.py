"""A stream by buckets that reads the channel of one replica or of the other one: each row once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.late import list_late
from tests.agent.support import Agent

SCHEMA = json.dumps({"type": "struct", "fields": [
    {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    {"name": "time", "type": "timestamp", "nullable": True, "metadata": {}},
]})  # fmt: skip


@dataclass
class Copies:
    """A flow in two replicas. Both give out the same rows, in other batches, and say how far they are."""

    agents: dict[str, Agent]
    rows: list[int] = field(default_factory=list)
    run: int = 0
    moved: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.at: dict[str, Any] = {"until_ms": 1, "batch": -1, "first": 0, "of": None, "replica": ""}
        self.batches, self.passed = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)

    def give_out(self, replica: str, until_ms: int, *, says: bool = True) -> None:
        """A batch with all rows of the replica up to a time. `says`: the boundary is noted, too."""
        agent, batch = self.agents[replica], self.batches[replica]
        due = [ms for ms in self.rows if self.passed[replica] <= ms < until_ms]
        table = pa.table({"n": due, "time": pa.array([ms * 1000 for ms in due], pa.timestamp("us", "UTC"))})
        frames = [agent.write_output(batch, agent.spool(table), len(due))] if due else []
        times = [{"column": "time", "first_ms": min(due), "last_ms": max(due), "nulls": 0}] if due else []
        agent.ask("publish", batch=batch, generation=1, sources=[], frames=frames, rows=len(due), schema=SCHEMA,
                  truncate=False, times=times)  # fmt: skip
        if says:
            agent.ask("boundary", batch=batch, generation=1, quiet_ms=None, columns={"time": until_ms})
        self.batches[replica] += 1
        self.passed[replica] = until_ms

    def plan(self) -> dict[str, Any]:
        """Where the next batch ends, which Spark asks twice: the first call of a run plans nothing."""
        paths = [{"replica": name, "path": agent.checkpoint} for name, agent in self.agents.items()]
        member = {"name": "totals", "path": paths[0]["path"], "time": "time", "delay_ms": 0, "copies": paths}
        at = self.at
        asks = {"own": 0, "query": "board", "source": "sources/0", "leader": f"run {self.run}", "leads": True}
        place = {"until_ms": at["until_ms"], "batch": at["batch"], "first": at["first"], "seen": at["of"]}
        union = {"bucket_ms": 1_000, "members": [member], "replicated": True}
        return self.agents["a"].ask(
            "bucket_end", union=union, replica=at["replica"], may_wait=True, **asks, **place
        )

    def read(self, end: dict[str, Any]) -> list[int]:
        """The rows of the batch that ends there."""
        if end["until_ms"] == self.at["until_ms"]:
            return []
        agent, has_moved = self.agents[end["replica"]], end["since"] is not None
        first, fresh = (end["since"], end["batch"] + 1) if has_moved else (self.at["first"], self.at["batch"] + 1)
        buckets = {"column": "time", "after_ms": self.at["until_ms"], "until_ms": end["until_ms"],
                   "fresh_from": fresh, "reader": "board"}  # fmt: skip
        bounds = {"first": first, "last": end["batch"], "whole": False, "seen": end["of"], "schema": SCHEMA}
        splits = agent.ask("view_splits", view="output", **bounds, buckets=buckets)["splits"]
        found = [agent.ask("read_split", split=each, columns=["n"]) for each in splits]
        return [row["n"] for answer in found for row in agent.rows(answer)]

    def take(self, end: dict[str, Any]) -> list[int]:
        """Runs the batch, and goes on from its end."""
        rows = self.read(end)
        if end["until_ms"] != self.at["until_ms"]:
            self.moved.add(end["replica"])
            self.at = {key: end[key] for key in ("until_ms", "batch", "first", "of", "replica")}
        return rows


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    agents = {}
    for name in "ab":
        (tmp_path / name).mkdir()
        agents[name] = Agent(tmp_path / name)
    agents["b"].calls.close()
    agents["b"].calls = agents["a"].calls  # one process reads both
    for agent in agents.values():
        agent.begin_run()
    yield Copies(agents)
    agents["a"].calls.close()


@pytest.mark.parametrize("seed", range(40))
def test_each_row_comes_once_from_one_replica_or_the_other(seed: int, copies: Copies) -> None:
    """Replicas stand still and catch up, and the reader is started again, at random; a repeat has the same rows."""
    chance = random.Random(seed)
    copies.rows = [*sorted(chance.randint(1, 40_000) for _ in range(60)), 48_000, 58_000]
    given: list[int] = []
    copies.plan()
    for _ in range(120):
        replica = chance.choice("ab" if chance.random() < 0.5 else "a" if (len(given) // 15) % 2 else "b")
        if chance.random() < 0.5 and copies.passed[replica] < 41_000:
            until_ms = copies.passed[replica] + chance.randint(0, 2_000)
            copies.give_out(replica, until_ms, says=chance.random() < 0.7)
        if chance.random() < 0.5:
            before, end = dict(copies.at), copies.plan()
            rows = copies.take(end)
            given += rows
            if end["until_ms"] != before["until_ms"] and chance.random() < 0.3:
                after, copies.at = copies.at, before
                assert sorted(copies.read(end)) == sorted(rows), "a repeat"
                copies.at = after
        if chance.random() < 0.1:
            copies.run += 1
            copies.plan()
    copies.moved.clear()
    for replica, until_ms in (("b", 50_000), ("a", 60_000)):
        copies.give_out(replica, until_ms)
        for _ in range(3):  # a run that begins, what the first replica still has, and the other one
            given += copies.take(copies.plan())
    assert sorted(given) == copies.rows
    assert copies.moved == {"a", "b"}
    assert not any(list_late(open_storage(agent.home), "board") for agent in copies.agents.values()), "no row is late"


def test_the_replica_that_is_not_read_learns_what_is_not_needed(copies: Copies) -> None:
    copies.rows = [500, 1_500, 2_500, 3_500]
    copies.plan()
    copies.give_out("a", 2_000)
    copies.give_out("b", 1_000)
    copies.give_out("b", 4_000)
    end = copies.plan()
    assert (end["replica"], end["until_ms"], end["since"], end["others"]) == ("b", 4_000, 0, {"a": 0})
    assert sorted(copies.take(end)) == copies.rows
    assert copies.at["first"] == 2, "no batch of b is needed"


def test_a_replica_that_cannot_be_read_is_none(copies: Copies, caplog: pytest.LogCaptureFixture) -> None:
    copies.rows = [500, 1_500]
    copies.plan()
    copies.give_out("a", 1_000)
    assert copies.take(copies.plan()) == [500]
    shutil.rmtree(Path(copies.agents["a"].home) / "manifests")
    copies.agents["a"].calls.tidy()
    copies.give_out("b", 2_000)
    copies.run += 1
    copies.plan()
    end = copies.plan()
    assert end["replica"] == "b"
    assert copies.take(end) == [1_500]


def test_what_the_writer_does_not_vouch_for_is_not_given_out(copies: Copies) -> None:
    """By its rows alone a channel would be complete up to the last one."""
    copies.rows = [500, 5_500]
    copies.plan()
    copies.give_out("a", 6_000, says=False)
    assert copies.take(copies.plan()) == []
