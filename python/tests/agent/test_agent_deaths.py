"""An agent that dies between any two calls of a query's life changes nothing: the agent keeps nothing between them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.calls import Calls
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.recovery.attempts import ANY_VERSION
from spark_cec.recovery.query_files import FLUSH
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip

STORES = (StoreId(0, 0), StoreId(0, 1))
BATCHES = 4


class Shim(Agent):
    """What the JVM does around a call: it starts a successor of a dead agent, and opens the log there again.

    The agent dies before call number `dies_before`; -1: never.
    """

    def __init__(self, scratch: Path, dies_before: int) -> None:
        super().__init__(scratch)
        self.made: list[str] = []
        self._dies_before = dies_before
        self._held: dict[str, Any] | None = None

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        if len(self.made) == self._dies_before:
            self._succeed()
        self.made.append(name)
        if name == "release":
            self._held = None
        elif name == "hold":
            self._held = {**arguments, "had_lease": True}
        try:
            return super().ask(name, **arguments)
        except Refused as refused:
            if refused.kind != "UnknownLog":
                raise
            super().ask("open_log", again=True, keep=True, log_id=None)
            return super().ask(name, **arguments)

    def _succeed(self) -> None:
        """Another agent, which wins back the lease of the run."""
        dead = self.calls
        # Death frees the locks of a process, and leaves its spool behind.
        dead._starts.close()
        dead._logs.close()
        for lock in (dead.spool._lock, dead.spool._overflow_lock):
            os.close(lock)
        self.calls = Calls(str(self.scratch / "spool"), [str(dead.spool.directory), str(dead.spool.overflow)])
        if self._held is not None:
            super().ask("hold", **self._held)


def live(agent: Agent) -> None:
    """A query's life: a first run that ends in a crash, and a second one that replays, goes on and is flushed."""
    tips = dict.fromkeys(STORES, Tip())
    committed = -1
    for run in (1, 2):
        seen = agent.ask("check", committed_batch=committed, provider=True, stateful=True)["log_id"]
        begun = agent.begin(committed, decision=WITH_STATE, log_seen=seen)
        generation = begun["generation"]
        agent.ask("hold", generation=generation)
        agent.ask("open_log", log_id=begun["log_id"])
        if run == 2:
            replay(agent, begun, committed)
        for _ in range(BATCHES):
            committed += 1
            plan_batch(agent, committed)
            tips = {store: run_batch(agent, store, tips[store], generation) for store in STORES}
            Path(agent.checkpoint, "commits").mkdir(exist_ok=True)
            Path(agent.checkpoint, "commits", str(committed)).write_text("v1\n{}")
            agent.ask("acknowledge", version=committed + 1)
        agent.ask("trim", version=committed + 1, generation=generation, retained=2)
        agent.ask("release")
    FLUSH.write(open_storage(f"{agent.checkpoint}/cec"), {"request": "r"})
    asked = agent.ask("between_batches", version=committed + 1, sources=None)["request"]
    agent.ask("flushed", request=asked, version=committed + 1, generation=2, failed=["an executor is lost"])


def plan_batch(agent: Agent, batch: int) -> None:
    planned = Path(agent.checkpoint, "offsets")
    planned.mkdir(exist_ok=True)
    (planned / str(batch)).write_text("v1\n{}\n-")


def run_batch(agent: Agent, store: StoreId, before: Tip, generation: int) -> Tip:
    changes = window(b"a", b"%d" % before.version) if store == STORES[0] or not before.version else {}
    return agent.append(store, before, changes, inputs=10, generation=generation)[0]


def replay(agent: Agent, begun: dict[str, Any], committed: int) -> None:
    first, generation = begun["plan"]["rewound_to"] + 1, begun["generation"]
    agent.ask("replay_settings", first=first, last=committed)
    for store in STORES:
        key = [store.operator, store.partition, store.name]
        answer = agent.ask("load", store=key, version=committed + 1, checkpoint_id=None, retained=100)
        assert [row["window"] for row in agent.rows(answer)] == [b"a"]
        loaded = {"version": committed + 1, "generation": generation, "ec_load_ms": 0.5, "digest_ok": True, "held": 0}
        agent.ask("loaded", store=key, unsure=[], **loaded)
    agent.ask("replaying", generation=generation, first=first, last=committed, done=committed)
    assert agent.ask("report", generation=generation, plan=begun["plan"], started_ms=7)["done"]


def outcome(agent: Agent) -> dict[str, Any]:
    """What is durable after a life: the frames, and the notes of the query, without clocks and random names."""
    own, log = Path(agent.checkpoint, "cec"), open_storage(agent.home)
    catalog = Catalog(log, MemoryIndex(str(read_log_id(log))))
    catalog.refresh()
    metas = [entry.meta for store in STORES for entry in catalog.index.commits(store, 0, ANY_VERSION)]
    frames = [(str(m.store), m.version, m.generation, m.dirty_from, m.opened, m.checked) for m in metas]
    report = json.loads((own / "recoveries" / "7.json").read_text())
    query = json.loads((own / "query.json").read_text())
    return {
        "frames": sorted(frames),
        "report": [report[name] for name in ("committed_batch", "rewound_to", "digest_ok")],
        "query": [query[name] for name in ("generation", "mode", "reason")],
        "flushed": json.loads((own / "flushed.json").read_text()),
        "notes": sorted(path.name for path in own.iterdir() if path.is_file()),
    }


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[Shim]:
    (tmp_path / "undisturbed").mkdir()
    shim = Shim(tmp_path / "undisturbed", dies_before=-1)
    live(shim)
    yield shim
    shim.calls.close()


def test_an_agent_that_dies_before_any_call_changes_nothing(undisturbed: Shim, tmp_path: Path) -> None:
    wanted = outcome(undisturbed)
    assert len(wanted["frames"]) == 2 * BATCHES * len(STORES)
    for number, name in enumerate(undisturbed.made):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        shim = Shim(scratch, dies_before=number)
        live(shim)
        assert outcome(shim) == wanted, f"the agent died before call {number}, {name}"
        shim.calls.close()
