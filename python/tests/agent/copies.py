"""A flow in two replicas, and a stream by buckets that reads either of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.availability.epochs import Epoch, close_epoch, newest_epoch, open_epoch
from spark_cec.log import manifest
from spark_cec.log.home import read_log_id
from spark_cec.log.readers import slowest_reader
from tests.agent.support import Agent

BUCKET_MS, WAIT_MS = 1_000, 3_000

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
    max_rows: int | None = None
    notes: bool = True
    kept: bool = False
    planned_in: int = -1
    trims: bool = False

    def __post_init__(self) -> None:
        self.at: dict[str, Any] = {"until_ms": 1, "batch": -1, "first": 0, "of": None, "replica": ""}
        self.batches, self.passed = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)

    def give_out(self, replica: str, until_ms: int, *, says: bool = True) -> None:
        """A batch with all rows of the replica up to a time. `says`: the boundary is noted, too."""
        due = [ms for ms in self.rows if self.passed[replica] <= ms < until_ms]
        write_batch(self.agents[replica], self.batches[replica], due, until_ms if says else None)
        self.batches[replica] += 1
        self.passed[replica] = until_ms
        if self.trims:
            self.trim(replica)

    @property
    def stream(self) -> dict[str, Any]:
        """Which stream asks, and what it reads."""
        paths = [{"replica": name, "path": agent.checkpoint} for name, agent in self.agents.items()]
        member = {"name": "totals", "path": paths[0]["path"], "time": "time", "delay_ms": 0, "copies": paths,
                  "wait_ms": WAIT_MS, "is_kept": self.kept}  # fmt: skip
        union = {"bucket_ms": BUCKET_MS, "members": [member], "replicated": True, "notes": self.notes}
        return {"union": union, "own": 0, "query": "board", "source": "sources/0"}

    def plan(self) -> dict[str, Any]:
        """Where the next batch ends, which Spark asks twice: the first call of a run plans nothing."""
        at, checked, self.planned_in = self.at, self.planned_in == self.run, self.run
        run = {"leader": f"run {self.run}", "leads": True, "may_wait": True, "checked": checked}
        place = {"until_ms": at["until_ms"], "batch": at["batch"], "first": at["first"], "seen": at["of"]}
        return self.agents["a"].ask(
            "bucket_end", replica=at["replica"], max_rows=self.max_rows, **self.stream, **run, **place
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
            self.note(end["replica"], end["first"] - 1)
            for replica, batch in end["others"].items():
                self.note(replica, batch)
        return rows

    def note(self, replica: str, batch: int | None) -> None:
        """Notes that the stream needs no batch up to this one; None when it stops."""
        path = self.agents[replica].checkpoint
        self.agents["a"].ask("note_reader", path=path, reader="board", may_wait=True, ends=batch, retained=0)

    def stop(self) -> None:
        """Ends a run of the query in good order."""
        for replica in self.agents:
            self.note(replica, None)
        self.run += 1

    def trim(self, replica: str) -> None:
        """Lets go what the stream does not need."""
        log = open_storage(self.agents[replica].home)
        published = manifest.batches(log)
        if published:
            manifest.retire(log, min(slowest_reader(log, read_log_id(log) or "", ["board"]), published[-1]))

    def close(self) -> None:
        """Ends the agent."""
        self.agents["a"].calls.close()


def write_batch(agent: Agent, batch: int, times_ms: list[int], said_ms: int | None) -> None:
    """A batch with a row for each time, which is its number, too. `said_ms`: the boundary; None to note none."""
    times = pa.array([ms * 1000 for ms in times_ms], pa.timestamp("us", "UTC"))
    table = pa.table({"n": times_ms, "time": times})
    frames = [agent.write_output(batch, agent.spool(table), len(times_ms))] if times_ms else []
    known = {"column": "time", "first_ms": min(times_ms, default=0), "last_ms": max(times_ms, default=0), "nulls": 0}
    agent.ask("publish", batch=batch, generation=1, sources=[], frames=frames, rows=len(times_ms),
              schema=SCHEMA, truncate=False, times=[known] if times_ms else [])  # fmt: skip
    if said_ms is not None:
        agent.ask("boundary", batch=batch, generation=1, quiet_ms=None, columns={"time": said_ms})


def make_copies(root: Path, conf: Mapping[str, str] | None = None) -> Copies:
    """Two replicas whose flow has begun; one process reads both. `conf`: settings of the flow."""
    agents = {}
    for name in "ab":
        (root / name).mkdir()
        agents[name] = Agent(root / name)
        agents[name].conf |= conf or {}
    agents["b"].calls.close()
    agents["b"].calls = agents["a"].calls
    for agent in agents.values():
        agent.begin_run()
    return Copies(agents)


class Forks:
    """The epochs of a flow in one replica. A channel of an epoch has the flow's rows up to the fork, and its own."""

    def __init__(self, flow: Agent) -> None:
        self._flow = flow
        self._number, self._batches, self._passed = 0, 0, 0
        self.rows: dict[int, list[int]] = {}
        self._agent: Agent | None = None

    @property
    def is_open(self) -> bool:
        return self._agent is not None

    def begin(self, after: int = -1) -> None:
        """Opens the next one. `after`: the flow's last batch that its channel has."""
        self._number += 1
        place = Path(self._flow.checkpoint) / "epochs" / str(self._number)
        place.mkdir(parents=True)
        self._agent = Agent(self._flow.scratch, place)
        self._agent.calls.close()
        self._agent.calls = self._flow.calls
        self._agent.begin_run()
        self._batches, self._passed, self.rows[self._number] = 0, 0, []
        open_epoch(open_storage(self._flow.checkpoint), Epoch(self._number, after, after, ("app",), 1))

    def give_out(self, rows: list[int], until_ms: int) -> None:
        """A batch with those of the rows that are below a time, and not below that of the batch before."""
        assert self._agent is not None
        due = [ms for ms in rows if self._passed <= ms < until_ms]
        self.rows[self._number] += due
        write_batch(self._agent, self._batches, due, until_ms)
        self._batches, self._passed = self._batches + 1, max(until_ms, self._passed)

    def end(self, *, deletes: bool = False) -> None:
        """Closes the open one. `deletes`: its files go at once."""
        flow = open_storage(self._flow.checkpoint)
        epoch = newest_epoch(flow)
        assert epoch is not None
        close_epoch(flow, epoch, 0, 2)
        if deletes:
            shutil.rmtree(Path(self._flow.checkpoint) / "epochs" / str(self._number))
        self._agent = None


def read_epoch(copies: Copies, reading: dict[str, Any]) -> list[int]:
    """The rows that a batch reads of an epoch."""
    flow = copies.agents[reading["replica"]]
    buckets = {"column": "time", "after_ms": reading["after_ms"], "until_ms": reading["until_ms"],
               "fresh_from": 1 << 40}  # fmt: skip
    bounds = {"first": reading["since"], "last": reading["batch"], "whole": False, "seen": reading["of"],
              "schema": SCHEMA}  # fmt: skip
    path = f"{flow.checkpoint}/epochs/{reading['number']}"
    splits = flow.ask("view_splits", view="output", path=path, **bounds, buckets=buckets)["splits"]
    found = [flow.ask("read_split", split=each, columns=["n"], path=path) for each in splits]
    return sorted(row["n"] for answer in found for row in flow.rows(answer))
