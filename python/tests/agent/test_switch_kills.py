"""A reader of replicas is killed at each storage call, while it changes from one replica to the other one.

The agent is the product's. Spark's two logs and the sink are known here, and work as those of `MicroBatchExecution`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import epochs, logs, reader
from spark_cec.agent.calls import Calls
from spark_cec.log import manifest, readers
from spark_cec.settings import PREFIX
from tests.agent.copies import Forks, make_copies, read_epoch
from tests.log.support import Crash, FaultyStorage, Trouble

END_MS = 40_000
KEYS = ("until_ms", "batch", "first", "of", "replica")

Reading = dict[str, Any] | None


@dataclass(frozen=True)
class Batch:
    """What the sink has of a batch: the stable rows below `until_ms`, the epoch then, and that one's new rows."""

    until_ms: int
    replica: str
    stable: list[int]
    epoch: Reading
    tentative: list[int]


class World:
    """Two replicas, and a query that reads them. Its process is killed as `trouble` says, and started again."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, trouble: Trouble, *, tentative: bool = False) -> None:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)  # no machine fails here
        for module in (epochs, logs, reader):
            patch.setattr(module, "open_storage", self._open)
        for name in ("NOTED_EVERY", "IN_FLIGHT"):  # channels let go what they may, as soon as they may
            patch.setattr(readers, name, int(name == "NOTED_EVERY"))
        self._root, self._trouble, self._reads, self._tentative = root, trouble, False, tentative
        self.copies = make_copies(root, {PREFIX + "output.readers": "board"})
        self.copies.rows = list(range(250, END_MS, 500))
        self.forks = {replica: Forks(agent) for replica, agent in self.copies.agents.items()}
        self.has_begun = False
        self.epoch: Reading = None
        self.planned: tuple[dict[str, Any], Reading] | None = None
        self.before: dict[str, Any] | None = None
        self.sink: list[Batch] = []
        self._calls = self._make_calls()

    def _open(self, url: str, **how: Any) -> Any:
        storage = open_storage(url, **how)
        return FaultyStorage(storage, self._trouble) if self._reads else storage

    def _make_calls(self) -> Calls:
        (self._root / "reader").mkdir(exist_ok=True)
        return Calls(str(self._root / "reader"))

    @contextmanager
    def _as_reader(self) -> Iterator[None]:
        """The calls of the block are those of the process that reads."""
        agents = self.copies.agents.values()
        writer, self._reads = self.copies.agents["a"].calls, True
        for agent in agents:
            agent.calls = self._calls
        try:
            yield
        finally:
            self._reads = False
            for agent in agents:
                agent.calls = writer

    def close(self) -> None:
        self._end_reader()
        self.copies.close()

    def _end_reader(self) -> None:
        with suppress(Crash):
            self._calls.close()

    def give_out(self, replica: str, until_ms: int) -> None:
        """Batches of a second each. The channel lets go what its reader needs no more."""
        for each in range(self.copies.passed[replica] + 1_000, until_ms + 1, 1_000):
            self.copies.give_out(replica, each)
            self.copies.agents[replica].ask("trim", version=self.copies.batches[replica], generation=1, retained=1)

    def read(self, batches: int = 3) -> None:
        """The query runs so many batches. It is started again once it was killed."""
        for _ in range(batches):
            try:
                with self._as_reader():
                    self._run_batch()
            except Crash:
                self._end_reader()
                self._trouble = Trouble(0)
                self._calls = self._make_calls()
                self.copies.run += 1

    def _run_batch(self) -> None:
        copies = self.copies
        if not self.has_begun:
            for replica in copies.agents:
                self._note(replica, begins=-1)
            self.has_begun = True
        if self.planned is None:
            end = copies.plan()
            epoch = self._plan_epoch(end)
            if end["until_ms"] == copies.at["until_ms"] and epoch == self.epoch:
                return
            self.planned = end, epoch
            self._acknowledge()
        end, epoch = self.planned
        stable = copies.read(end)
        tentative = read_epoch(copies, epoch) if epoch is not None and epoch != self.epoch else []
        self.sink.append(Batch(end["until_ms"], end["replica"], stable, epoch, tentative))
        if end["until_ms"] != copies.at["until_ms"]:
            copies.at = {key: end[key] for key in KEYS}
        self.before, self.planned, self.epoch = end, None, epoch

    def _plan_epoch(self, end: dict[str, Any]) -> Reading:
        if not self._tentative:
            return None
        asks = {**self.copies.stream, "until_ms": end["until_ms"], "present": self.epoch}
        found: Reading = self.copies.agents["a"].ask("epoch_end", **asks)["reading"]
        return found

    def _acknowledge(self) -> None:
        """As `BucketStream.commit`, of the batch before the one that is planned now."""
        if self.before is not None:
            self._note(self.before["replica"], ends=self.before["first"] - 1)
            for replica, batch in self.before["others"].items():
                self._note(replica, ends=batch)
            self.before = None

    def _note(self, replica: str, **more: int) -> None:
        self.copies.agents[replica].ask("note_reader", reader="board", may_wait=True, retained=1, **more)

    def check(self) -> None:
        """Stable rows come once, by bucket; of an epoch each row once, and none of a bucket that is stable."""
        until_ms, shown = 1, list[int]()
        epoch: Reading = None
        for batch in self.sink:
            assert batch.stable == [ms for ms in self.copies.rows if until_ms <= ms < batch.until_ms]
            until_ms = batch.until_ms
            if name(batch.epoch) != name(epoch):
                shown = []
            assert not set(shown) & set(batch.tentative) and all(ms >= until_ms for ms in batch.tentative)
            shown, epoch = shown + batch.tentative, batch.epoch
            if epoch is not None:
                assert [ms for ms in shown if ms >= until_ms] == [
                    ms for ms in self.copies.rows if until_ms <= ms < epoch["until_ms"]
                ], "the epoch's rows, without a gap"
        assert [row for batch in self.sink for row in batch.stable] == self.copies.rows and epoch is None

    @property
    def order(self) -> str:
        """The replicas whose stable rows were read, one after the other, and those of the epochs."""
        found = [batch.epoch["replica"].upper() if batch.epoch else batch.replica for batch in self.sink]
        return "".join(each for place, each in enumerate(found) if place == 0 or found[place - 1] != each)


def name(reading: Reading) -> tuple[str, int] | None:
    return None if reading is None else (reading["replica"], reading["number"])


def change_twice(world: World) -> None:
    """From a to b, and back to a. Each replica stands still for a while."""
    world.read(1)
    for until_ms in range(2_000, 9_000, 2_000):
        for replica in "ab":
            world.give_out(replica, until_ms)
        world.read(2)
    for until_ms in range(10_000, 21_000, 2_000):
        world.give_out("b", until_ms)
        world.read(2)
    for until_ms in (16_000, 24_000, 26_000, 28_000, 30_000):
        world.give_out("a", until_ms)
        world.read(2)
    heal(world)


def change_epochs(world: World) -> None:
    """Both replicas wait for an input, and the epoch of each gets ahead in turn."""
    world.read(1)
    for until_ms in range(1_000, 7_000, 1_000):
        for replica in "ab":
            world.give_out(replica, until_ms)
        world.read(1)
    for forks in world.forks.values():
        forks.begin(after=5)
        for until_ms in range(1_000, 7_000, 1_000):  # the flow's batches
            forks.give_out(world.copies.rows, until_ms)
    for replica, until_ms in (("a", 10_000), ("b", 16_000), ("a", 22_000)):
        for then_ms in (until_ms - 2_000, until_ms):
            world.forks[replica].give_out(world.copies.rows, then_ms)
            world.read(2)
    for until_ms in (12_000, 15_000):
        world.give_out("b", until_ms)
        world.read()
    for forks in world.forks.values():
        forks.end()
    heal(world)


def heal(world: World) -> None:
    for replica in "ba":
        world.give_out(replica, END_MS)
        world.read()
    world.check()


EACH = int(os.environ.get("CEC_EACH", "400"))
"""Of so many storage calls one fails; 1: each of them, which takes minutes."""

COURSES: dict[str, tuple[Callable[[World], None], str]] = {
    "stable rows": (change_twice, "aba"),
    "epochs": (change_epochs, "aABA"),
}
"""The events, and the replicas that an undisturbed reader reads in turn. Capital letters stand for epochs."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("course", COURSES)
def test_a_kill_at_each_storage_call(
    course: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stable row comes once, in order, as without a kill."""
    (act, order), seed = COURSES[course], random.randrange(10**6)

    def run(trouble: Trouble) -> World:
        place = tmp_path / str(trouble.call)
        place.mkdir()
        world = World(place, monkeypatch, trouble, tentative=act is change_epochs)
        try:
            act(world)
        finally:
            world.close()
        return world

    calm = run(none := Trouble(0))
    assert calm.order.startswith(order), calm.order
    for agent in calm.copies.agents.values():
        assert manifest.retired_before(open_storage(agent.home)) > 2, "the channels let rows go meanwhile"
    for call in range(1 + seed % EACH, none.calls + 1, EACH):
        trouble = Trouble(call, when)
        print(f"seed={seed} killed {when} call {call} of {none.calls}")
        run(trouble)
        assert trouble.tripped
