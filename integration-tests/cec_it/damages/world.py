"""A log of several stores and batches, written by the agent's calls, and beside it the state that it must have."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.ids import StoreId
from spark_cec.log.home import read_log_id
from spark_cec.settings import PREFIX
from tests.agent.support import WITH_STATE, Agent, Refused
from tests.checkpoint.support import Rows, State, Tip

PLAIN = tuple(StoreId(0, partition) for partition in range(3))
GROUPED = tuple(StoreId(1, partition) for partition in range(2))
STORES = PLAIN + GROUPED
_WINDOWS = 12
_WAIT_S = 0.5
"""How long a start waits for the lease of a run that seems to live."""


@dataclass(slots=True)
class World:
    """A checkpoint, and its model: each store's `Tip` at the last batch that Spark has committed."""

    checkpoint: str
    has_ids: bool
    """Whether Spark records the ids of its checkpoints (format 2)."""
    log_id: str = ""
    tips: dict[StoreId, Tip] = field(default_factory=lambda: dict.fromkeys(STORES, Tip()))
    committed: int = -1
    generation: int = 0

    def copy(self) -> World:
        """Another model of the same checkpoint."""
        return World(self.checkpoint, self.has_ids, self.log_id, dict(self.tips), self.committed, self.generation)


class Mismatch(AssertionError):
    """A store was loaded with state that is not the model's."""


def agent_on(world: World, scratch: Path, *, bundles_alone: bool = True) -> Agent:
    """A fresh agent for the checkpoint: it has neither index nor ledgers. `bundles_alone`: no file stays beside them.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    agent = Agent(scratch)
    agent.checkpoint, agent.home = world.checkpoint, f"{world.checkpoint}/cec/log"
    agent.conf[PREFIX + "log.segmentBytes"] = "4KiB"
    agent.conf |= {PREFIX + "log.bundle": "4", PREFIX + "log.bundleAfter": "0ms" if bundles_alone else "1h"}
    return agent


def build(world: World, batches: int, dice: random.Random, scratch: Path) -> None:
    """Runs a query for some batches. Now and then a run ends after it has written a batch, and before Spark commits."""
    lives, bundles_alone = 0, dice.random() < 0.7
    agent = _start(world, scratch / "0", bundles_alone=bundles_alone)
    while world.committed + 1 < batches:
        after = write_batch(world, agent, dice)
        if dice.random() < 0.15:
            agent.calls.close()
            lives += 1
            agent = _start(world, scratch / str(lives), bundles_alone=bundles_alone)
            continue
        commit_batch(world, after)
        if dice.random() < 0.4:
            trim(world, agent)
    agent.calls.close()
    world.log_id = read_log_id(open_storage(f"{world.checkpoint}/cec/log")) or ""


def _start(world: World, scratch: Path, *, bundles_alone: bool) -> Agent:
    agent = agent_on(world, scratch, bundles_alone=bundles_alone)
    start_run(world, agent)
    return agent


def start_run(world: World, agent: Agent) -> None:
    """Begins a run, and takes the lease: attempts of a run without a lease do not count."""
    generation = agent.begin_run(world.committed, decision=WITH_STATE, wait_s=_WAIT_S)
    world.generation = int(agent.ask("hold", generation=generation, wait_s=_WAIT_S)["generation"])
    agent.ask("open_log", log_id=world.log_id or None)


def write_batch(world: World, agent: Agent, dice: random.Random) -> dict[StoreId, Tip]:
    """Writes the next batch of all stores, in one call or in several, and its output; the tips after it."""
    batch = world.committed + 1
    open_storage(world.checkpoint).replace(f"offsets/{batch}", b"v1\n{}\n-")
    after: dict[StoreId, Tip] = {}
    sent: list[dict[str, Any]] = []
    for store, tip in world.tips.items():
        checked = {each for each in tip.state if dice.random() < 0.3}
        after[store], arguments = agent.append_arguments(
            store, tip, _draw_changes(store, tip, dice), checked, grouped=store in GROUPED, inputs=dice.randrange(50),
            generation=world.generation,
        )  # fmt: skip
        sent.append(arguments)
    cut = dice.randrange(len(sent))
    for part in (sent[:cut], sent[cut:]):
        if part:
            agent.write(*part)
    asked = {"batch": batch, "generation": world.generation}
    spool = agent.spool(pa.table({"n": pa.array([batch], pa.int64())}))
    frame = agent.write_output(batch, spool, 1, generation=world.generation)
    agent.ask("publish", frames=[frame], rows=1, schema="{}", truncate=False, sources=[], **asked)
    return after


def commit_batch(world: World, after: Mapping[StoreId, Tip]) -> None:
    """Spark commits the batch."""
    batch = world.committed + 1
    ids = {
        str(operator): [[after[store].checkpoint_id.hex()] for store in stores]
        for operator, stores in ((0, PLAIN), (1, GROUPED))
    }
    text = json.dumps({"nextBatchWatermarkMs": 0, **({"stateUniqueIds": ids} if world.has_ids else {})})
    open_storage(world.checkpoint).replace(f"commits/{batch}", f"v1\n{text}".encode())
    world.tips, world.committed = dict(after), batch


def trim(world: World, agent: Agent) -> None:
    """Trims the log, which makes bundles, too."""
    for _ in range(2):  # the second one deletes the files that the first one has put into bundles
        agent.ask("trim", version=world.committed + 1, generation=world.generation, retained=100)


def _draw_changes(store: StoreId, tip: Tip, dice: random.Random) -> dict[bytes, Rows]:
    changes: dict[bytes, Rows] = {}
    for _ in range(dice.randrange(1, 5)):
        window = b"w%02d" % dice.randrange(_WINDOWS)
        if window in tip.state and dice.random() < 0.25:
            changes[window] = {}
            continue
        keys = [b"k%d" % each for each in range(dice.randrange(1, 4))] if store in GROUPED else [window]
        changes[window] = {key: dice.randbytes(dice.choice((1, 8, 24))) for key in keys}
    return changes


def check_stores(world: World, dice: random.Random, scratch: Path) -> list[Refused]:
    """A fresh agent loads each store at the last version: the refusals. `Mismatch` if a state is not the model's."""
    agent = agent_on(world, scratch)
    refused: list[Refused] = []
    try:
        try:
            if dice.random() < 0.5:  # an executor's agent, whose driver has begun a run
                agent.ask("open_log", log_id=dice.choice([None, world.log_id]))
            else:
                start_run(world, agent)
        except Refused as error:
            return [error]
        for store, tip in world.tips.items():
            try:
                answer = _load(agent, world, store, tip, with_id=world.has_ids and dice.random() < 0.5)
            except Refused as error:
                refused.append(error)
                continue
            _compare(agent, store, tip, answer)
    finally:
        agent.calls.close()
    return refused


def _load(agent: Agent, world: World, store: StoreId, tip: Tip, *, with_id: bool) -> dict[str, Any]:
    return agent.ask(
        "load", store=store, version=tip.version, checkpoint_id=tip.checkpoint_id.hex() if with_id else None,
        committed_batch=world.committed, generation=world.generation, retained=100,
    )  # fmt: skip


def _compare(agent: Agent, store: StoreId, tip: Tip, answer: Mapping[str, Any]) -> None:
    state: State = {}
    footprints: dict[bytes, int] = {}
    for row in agent.rows(dict(answer)):
        key = row["key"] if store in GROUPED else row["window"]
        state.setdefault(row["window"], {})[key] = row["value"]
        footprints[row["window"]] = row["footprint"]
    wanted = (dict(tip.seen), dict(tip.footprints), len(tip.dirty), min(tip.dirty.values(), default=tip.version))
    found = (state, footprints, answer["dirty_windows"], answer["dirty_from"])
    if found != wanted:
        raise Mismatch(f"store {store} version {tip.version}: found {found}, must be {wanted}")
