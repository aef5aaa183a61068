"""The life of epochs under kills at each storage call, under storage that fails or lies, and under two drivers.

The keeper, the files of epochs, the agent's answer to readers and the table are the product's. The queries are not
Spark's: they publish batches that are known beforehand. A tentative reader works as `TentativeStream` of the shim does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import cec_directory, home_of
from spark_cec.availability.epochs import list_numbers, newest_epoch, open_epoch
from spark_cec.availability.failure import Progress
from spark_cec.availability.union import EpochReads
from spark_cec.log.borrowed import show_borrowed
from spark_cec.log.home import absolute_home, join_log, read_log_file, relative_home
from spark_cec.log.manifest import Manifest, batches, publish
from spark_cec.log.storage import Storage
from spark_cec.pipeline import epoch_files, epoch_keeper
from spark_cec.pipeline.changes_table import ChangesTable
from spark_cec.pipeline.epoch_files import close_left_epochs
from spark_cec.pipeline.epoch_keeper import KEPT_S, RETRY_S, EpochKeeper
from spark_cec.pipeline.options import Within
from spark_cec.pipeline.query_progress import Wait
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import PREFIX, parse_settings
from testbed.changelog import fold_changes
from tests.agent.support import Agent
from tests.log.support import LOG_ID, WRITES, Crash, FaultyStorage, Trouble
from tests.pipeline.support import EpochQuery

COLUMNS = {"window": "bigint", "n": "bigint"}


@dataclass
class Query(EpochQuery):
    """A query that also writes: `number` and `batch` are of an epoch, `place` is its checkpoint, and `log` its log.

    `at_stop`: what it still does when it is stopped.
    """

    number: int = 0
    batch: int = -1
    place: Storage | None = None
    log: Storage | None = None
    at_stop: Callable[[], None] = lambda: None

    def stop(self) -> None:
        at_stop, self.at_stop = self.at_stop, lambda: None
        at_stop()
        super().stop()


def stable_rows(batch: int) -> dict[int, int]:
    """The rows that the flow gives out in a batch, n by window. Each third batch has none."""
    return {} if batch % 3 == 2 else {batch: 10 * batch}


def tentative_rows(number: int, batch: int) -> dict[int, int]:
    """The rows of an epoch's batch: of the same windows, and of one for which no stable row comes."""
    return {batch: -number, -batch: number}


def until(batch: int) -> int:
    """The end of the buckets of a batch."""
    return 1_000 * (batch + 1)


AHEAD_S = 0.8
"""If rows have waited for so long, a fork works ahead."""


class Sink:
    """A reader of tentative rows with a table. Its offset is (the flow's batch, the epoch's number, begin and batch).

    `planned`: the end of a batch that Spark has planned, and not committed.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._table = ChangesTable(world.database, "board", COLUMNS, ["window"], changes=True)
        self.at: tuple[int, tuple[int, int, int] | None] = -1, None
        self.planned: tuple[int, tuple[int, int, int] | None] | None = None
        self._batch = 0

    def step(self, *, crashes: bool = False) -> None:
        """One batch. `crashes`: after the table has it, and before its commit."""
        if self.planned is None:
            self.planned = self._next()
        changes = list(self._changes(self.at, self.planned))
        self._table.apply(changes, self._batch, "sink")
        self.check(self.planned)
        if not crashes:
            self._batch += 1
            self.at, self.planned = self.planned, None

    def _next(self) -> tuple[int, tuple[int, int, int] | None]:
        """As `TentativeOffset.next`."""
        batch, place = self.at
        newest = self._world.agent.ask("epoch")
        end = max([batch, *batches(self._world.log)])
        number, closed_after = newest["number"], newest["closed_after"]
        if number is None:
            return end, None
        if closed_after is not None:
            return end, place if place is not None and end < closed_after else None
        if place is not None and place[0] == number:
            return end, (number, place[1], max(place[2], newest["newest"]))
        if end >= newest["follows"] and (place is None or newest["has_rows"] or newest["has_passed"]):
            return end, (number, newest["begins_after"], newest["newest"])
        return end, place

    def _changes(self, begin: Any, end: Any) -> Iterator[dict[str, Any]]:
        for batch in range(begin[0] + 1, end[0] + 1):
            for window, n in stable_rows(batch).items():
                yield {"_kind": "stable", "_epoch": None, "window": window, "n": n}
        if end[1] is not None:
            number, after, last = end[1]
            first = begin[1][2] if begin[1] is not None and begin[1][0] == number else after
            for batch in range(first + 1, last + 1):
                for window, n in tentative_rows(number, batch).items():
                    yield {"_kind": "tentative", "_epoch": f"flow/{number}", "window": window, "n": n}
        if begin[1] is not None and (end[1] is None or end[1][0] != begin[1][0]):
            yield {"_kind": "undo", "_epoch": f"flow/{begin[1][0]}", "window": None, "n": None}

    def check(self, at: tuple[int, tuple[int, int, int] | None]) -> None:
        """Stable rows are those of an undisturbed run; tentative ones are of one epoch, or not there."""
        rows = self._world.database.execute("SELECT window, n, _epoch FROM board_rows").fetchall()
        expected = {window: n for batch in range(at[0] + 1) for window, n in stable_rows(batch).items()}
        assert {window: n for window, n, epoch in rows if not epoch} == expected, self._world
        epochs = {epoch for *_, epoch in rows if epoch}
        assert epochs <= ({f"flow/{at[1][0]}"} if at[1] is not None else set()), self._world
        shown = self._world.database.execute("SELECT window, n, tentative FROM board").fetchall()
        assert fold_changes(self._world.database, "board", ["window", "n", "tentative"]) == Counter(shown), self._world

    @property
    def tentative(self) -> int:
        """How many tentative rows the table has."""
        found = self._world.database.execute("SELECT count(*) FROM board_rows WHERE _epoch <> ''").fetchone()
        return int(found[0])


class World:
    """A flow whose batches are known, its sink, and a driver with a keeper of its epochs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, seed: int, trouble: Trouble | None = None) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.trouble = trouble or Trouble(0)
        self.root, self.clock, self.restarts = root, 1_000.0, 0
        self.checkpoint = str(root / "flow")
        conf = {PREFIX + "log.path": str(root / "logs")} if seed % 2 else {}
        self.home = home_of(self.checkpoint, parse_settings(conf), None)
        self.storage, self.log = open_storage(self.checkpoint), open_storage(self.home)
        join_log(self.log, LOG_ID)
        named = relative_home(self.checkpoint, self.home)
        self.query_file = {"log_home": named, "log_id": LOG_ID, "generation": 1, "settings_conf": conf}
        self.batch, self.away, self.own = -1, False, Query()
        self.inputs = frozenset[tuple[str, int]]()
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.forks: list[Query] = []
        self.begins_agent()
        self.sink = Sink(self)
        self._patch(patch)
        self.keeper = self.make_keeper()

    def __str__(self) -> str:
        return f"seed={self.seed} {self.trouble.when} call {self.trouble.call} of {self.trouble.calls}"

    __repr__ = __str__

    def begins_agent(self) -> None:
        """A new process, which has read nothing yet."""
        (self.root / "agent").mkdir(exist_ok=True)
        self.agent = Agent(self.root / "agent", Path(self.checkpoint))

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        def opened(url: str) -> Any:
            return FaultyStorage(open_storage(url), self.trouble)

        def remove_all(url: str) -> None:
            for place, _, names in os.walk(open_storage(url).local_path("") or "", topdown=False):
                for name in names:
                    self.trouble.run("delete", partial(os.unlink, f"{place}/{name}"))
                self.trouble.run("delete", partial(os.rmdir, place))

        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)  # no machine fails here
        patch.setattr(epoch_files, "open_storage", opened)
        patch.setattr(epoch_files, "remove_all", remove_all)
        for module in (epoch_files, epoch_keeper):
            patch.setattr(module, "cec_directory", lambda checkpoint: opened(f"{checkpoint}/cec"))
        patch.setattr("spark_cec.pipeline.epoch_keeper.time.monotonic", lambda: self.clock)
        patch.setattr(epoch_keeper, "read_progress", lambda query: Progress(query.until_ms, query.until_ms))
        patch.setattr(epoch_keeper, "read_wait", lambda query: query.wait)
        patch.setattr(epoch_keeper, "leave_out", lambda query, channels: query.left_out.append(set(channels)))
        patch.setattr(epoch_keeper, "has_run_batch", lambda query: query.until_ms is not None)
        patch.setattr(epoch_keeper, "last_batch", lambda query: None if query.until_ms is None else 1)

    def make_keeper(self) -> EpochKeeper:
        """The keeper of a driver that has just started."""
        own = self.own
        return EpochKeeper(
            "flow", self.checkpoint, Within(2_000, 1_000), lambda: own if own.isActive else None,  # type: ignore[arg-type, return-value]
            lambda: False, lambda: self.inputs, self.start_fork, lambda: None,
        )  # fmt: skip

    def start_fork(self, _: str, place: str, reads: EpochReads) -> Any:
        """Starts the query of an epoch, on what is there of the fork."""
        number = int(place.rpartition("/")[2])
        note, own = newest_epoch(self.storage), cec_directory(place)
        works_ahead = number not in list_numbers(self.storage)
        assert works_ahead or (note is not None and note.number == number and note.is_open), self
        begins_after = committed_batch(self.storage) if works_ahead or note is None else note.begins_after
        query = QUERY.read(own)
        assert (query is None) == (begins_after < 0), self
        if query is None:
            conf = self.query_file["settings_conf"]
            home = home_of(place, parse_settings(conf), None)  # type: ignore[arg-type]
            QUERY.write(own, {**self.query_file, "log_home": relative_home(place, home)})
            join_log(log := open_storage(home))
        else:
            log = show_borrowed(open_storage(absolute_home(place, query["log_home"])), open_storage)
            found = read_log_file(log)
            assert found is not None and found.borrows and found.log_id == LOG_ID, self
            assert committed_batch(open_storage(place)) == begins_after == batches(log)[-1], self
        made = Query(number=number, batch=begins_after, place=open_storage(place), log=log)
        self.forks.append(made)
        return made

    def flow_step(self, held_s: float = 1.5) -> None:
        """The next batch of the flow, if its inputs are there. Else rows have waited for `held_s` then."""
        if self.away:
            self.own.wait = Wait({"app": held_s})
            return
        self.own.wait = Wait()
        self.batch += 1
        if self.batch == 0:
            QUERY.write(cec_directory(self.checkpoint), self.query_file)
        self._plan(self.storage, self.batch)
        self._publish(self.log, self.batch, len(stable_rows(self.batch)))
        self.storage.create(f"commits/{self.batch}", b"v1\n{}")
        self.own.until_ms = until(self.batch)

    def lose_input(self) -> None:
        """An input goes away after a batch, and an epoch is opened."""
        self.flow_step()
        self.away = True
        self.flow_step()
        self.look()

    def fork_step(self, *, reports: bool = True) -> None:
        """The next batch of an epoch that runs. `reports`: Spark reports its progress, as it does unless it is stopped.
        """
        for each in self.forks[-1:]:
            if each.isActive and each.log is not None and each.place is not None:
                each.batch += 1
                self._plan(each.place, each.batch)
                self._publish(each.log, each.batch, 2)
                each.until_ms = until(each.batch) if reports else each.until_ms

    def _plan(self, place: Storage, batch: int) -> None:
        end = json.dumps({"by": "time", "until": until(batch), "batch": batch, "first": batch})
        place.create(f"offsets/{batch}", f"v1\n{{}}\n{end}".encode())

    def _publish(self, log: Storage, batch: int, rows: int) -> None:
        publish(log, Manifest(batch, (), rows, "{}", False, 1, 7))

    def look(self) -> None:
        """A look of the keeper; a driver that is killed here is started again."""
        try:
            self.keeper.look()
        except Crash:
            self.restart()

    def restart(self) -> None:
        """A driver in the place of one that is dead. It may be killed at its start, once for each call."""
        for each in self.forks:
            each.isActive = False
        self.own = Query(None, self.own.wait)
        for second in (self.chance.randrange(1, 20), 0):
            self.trouble = Trouble(second, self.chance.choice(["before", "after"]))
            self.restarts += 1
            try:
                close_left_epochs(self.checkpoint)
            except Crash:
                continue
            break
        self.trouble = Trouble(0)
        self.begins_agent()
        self.keeper = self.make_keeper()

    def stop(self) -> None:
        """An end in good order, and a start."""
        self.keeper.end()
        with contextlib.suppress(Crash):
            self.keeper.run()
        self.restart()

    def move_inputs(self) -> None:
        """An input goes away, or comes back; or one that answers tentatively has another epoch, or none."""
        if self.chance.random() < 0.7:
            self.away = not self.away
        else:
            self.inputs = frozenset({("short", self.chance.randrange(3))} if self.chance.random() < 0.5 else ())

    def live(self, steps: int) -> None:
        """A random life."""
        for _ in range(steps):
            what = self.chance.random()
            if what < 0.1:
                self.move_inputs()
            elif what < 0.3:
                self.flow_step(self.chance.choice([AHEAD_S, 1.5]))
            elif what < 0.55:
                self.look()
            elif what < 0.7:
                self.fork_step()
            elif what < 0.92:
                self.sink.step(crashes=self.chance.random() < 0.2)
            elif what < 0.97:
                self.clock += self.chance.choice([0.3, RETRY_S, KEPT_S])
            elif what < 0.985:
                for each in self.forks[-1:]:
                    each.isActive, each.error = False, "lost"
            else:
                self.stop()

    def heal(self) -> None:
        """All inputs are there, and storage answers: the table has the stable rows alone, and no file stays."""
        self.trouble.lasts = 0
        self.away, self.inputs = False, frozenset()
        for _ in range(12):
            self.flow_step()
            self.look()
            self.sink.step()
            self.clock += KEPT_S / 3
        for _ in range(60):
            if self.keeper.standing.epoch is None and not self.sink.tentative:
                break
            self.flow_step()
            self.look()
            self.sink.step()
        assert self.keeper.standing.epoch is None, self
        assert not self.sink.tentative, self
        for _ in range(3):
            self.clock += KEPT_S
            self.look()
        assert self.leaves() == [], f"{self}: a driver that runs on deletes the files"

    def leaves(self) -> list[str]:
        """The files of epochs that are there beside the newest note."""
        newest = list_numbers(self.storage)[-1:]
        epochs = [path for path in (self.root / "flow/epochs").glob("**/*") if path.is_file()]
        logs = [path for path in (self.root / "logs").glob("*") if str(path) != self.home]
        left = [each for each in [*epochs, *logs] if each.stem not in map(str, newest)]
        return sorted(str(each.relative_to(self.root)) for each in left)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Makes worlds, each in a place of its own."""

    def make(seed: int, trouble: Trouble | None = None) -> World:
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        return World(place, monkeypatch, seed, trouble)

    return make


SEED = int(os.environ.get("SEED", "0"))
LIVES = range(SEED, SEED + int(os.environ.get("CEC_LIVES", "6")))


@pytest.mark.parametrize("seed", LIVES)
def test_lives_without_a_fault(seed: int, made: Callable[..., World]) -> None:
    world = made(seed)
    for _ in range(2):
        world.live(120)
        world.heal()
    world.restart()
    assert world.leaves() == []


def test_the_rows_of_an_epoch_go_though_the_next_one_never_begins(made: Callable[..., World]) -> None:
    """The answer to the next one's note is lost, and its input is back before another try."""
    world = made(0)
    world.lose_input()
    world.fork_step()
    world.sink.step()
    assert world.sink.tentative
    world.forks[-1].isActive, world.forks[-1].error = False, "lost"
    world.look()  # closes it
    world.clock += RETRY_S
    with pytest.MonkeyPatch.context() as storage:

        def fail(*arguments: Any) -> None:
            open_epoch(*arguments)
            raise OSError("503 Slow Down")

        storage.setattr(epoch_files, "open_epoch", fail)
        world.look()
    assert (newest := newest_epoch(world.storage)) is not None and newest.number == 2 and newest.is_open
    world.heal()


def test_rows_of_an_epoch_stay_while_the_next_one_is_made(
    made: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that fails. A fork on an object store takes seconds, and a reader looks ten times a second."""
    world, make, seen, fails = made(0), epoch_files.fork_flow, list[int](), [True, False]

    def slow(checkpoint: str) -> Any:
        world.sink.step()
        seen.append(world.sink.tentative)
        if fails.pop(0):
            raise OSError("503 Slow Down")
        return make(checkpoint)

    world.lose_input()
    world.fork_step()
    world.sink.step()
    monkeypatch.setattr(epoch_keeper, "fork_flow", slow)
    world.inputs = frozenset({("short", 1)})
    world.look()
    assert seen == [2] and world.keeper.standing.epoch == 1 and world.forks[-1].isActive
    world.clock += RETRY_S
    world.look()
    world.sink.step()
    assert seen == [2, 2] and world.keeper.standing.epoch == 2 and world.sink.tentative == 2
    assert [each.isActive for each in world.forks] == [False, True]
    world.fork_step()
    world.sink.step()
    world.heal()


def test_rows_of_a_batch_whose_end_was_cut_off_are_not_taken_back_before_stable_ones(
    made: Callable[..., World],
) -> None:
    """The stop of an epoch's query comes when a batch has given out its rows, and before Spark reports it."""
    world = made(0)
    world.lose_input()
    world.fork_step()
    world.forks[-1].at_stop = partial(world.fork_step, reports=False)
    world.away = False
    world.flow_step()
    for _ in range(3):
        world.look()
        world.sink.step()
    assert not world.forks[-1].isActive and world.keeper.standing.epoch == 1 and world.sink.tentative
    world.flow_step()
    world.look()
    world.sink.step()
    assert world.keeper.standing.epoch is None and not world.sink.tentative
    world.heal()


def test_the_place_of_a_fork_that_worked_ahead_of_a_killed_driver_is_not_used_again(
    made: Callable[..., World],
) -> None:
    """An executor that was paused may write there yet."""
    world = made(0)
    world.flow_step()
    world.look()
    world.away, world.clock = True, world.clock + RETRY_S
    world.flow_step(AHEAD_S)
    world.look()
    world.fork_step()
    world.sink.step()
    assert len(world.forks) == 1 and newest_epoch(world.storage) is None and not world.sink.tentative
    world.restart()
    world.flow_step()
    world.look()
    world.sink.step()
    assert [each.number for each in world.forks] == [1, 2] and world.keeper.standing.epoch == 2
    assert not world.sink.tentative
    world.heal()


@pytest.mark.parametrize("passed", [True, False])
def test_rows_that_the_flow_has_passed_go_though_the_next_epoch_has_none(
    passed: bool, made: Callable[..., World]
) -> None:
    """All inputs may be quiet by then, so that the next epoch never has a row."""
    world = made(0)
    world.lose_input()
    for _ in range(1 if passed else 2):
        world.fork_step()
    world.sink.step()
    assert world.sink.tentative
    world.away = False
    world.flow_step()
    world.look()
    if not passed:
        assert not world.forks[-1].isActive, "the flow is near, so the epoch is suspended"
    world.away = True
    world.flow_step()
    world.look()
    world.sink.step()
    assert world.keeper.standing.epoch == 2 and bool(world.sink.tentative) != passed
    world.heal()


def damage(world: World) -> None:
    """The newest note loses its end, or its content."""
    for number in list_numbers(world.storage)[-1:]:
        note = Path(world.checkpoint) / f"epochs/{number}.json"
        note.write_bytes(note.read_bytes()[: world.chance.choice([0, -5])])


@pytest.mark.parametrize("seed", LIVES)
def test_lives_with_damaged_notes(seed: int, made: Callable[..., World]) -> None:
    world = made(seed)
    for _ in range(8):
        world.live(25)
        damage(world)
    world.heal()
    world.restart()
    assert world.leaves() == []


@pytest.mark.parametrize("seed", LIVES)
def test_lives_with_two_drivers(seed: int, made: Callable[..., World]) -> None:
    """An old driver stands still, and wakes up when another one has its pipeline. Its flow has lost its lease then."""
    world = made(seed)
    for _ in range(2):
        world.live(60)
        old, flow = world.keeper, world.own
        world.restart()
        world.live(world.chance.randrange(40))
        for _ in range(world.chance.randrange(1, 4)):  # it takes its flow for one that runs
            old.look()
            world.live(5)
        flow.isActive = False
        old._is_over = lambda: True
        old.look()
        world.clock += KEPT_S
        old.look()
        world.heal()
    world.restart()
    assert world.leaves() == []


def course(world: World) -> int:
    """Two failures of an input; the second epoch begins while the first one's files are there.

    Answers how many calls of the storage there were before all is healed.
    """
    for _ in range(3):
        world.flow_step()
    world.sink.step()
    for ahead in (False, True):
        world.away = True
        if ahead:
            world.clock += RETRY_S
            world.flow_step(AHEAD_S)
            world.look()
            world.fork_step()
            world.sink.step()
            assert not world.sink.tentative or world.keeper.standing.epoch is not None, world
        world.flow_step()
        for _ in range(3):
            world.look()
            world.fork_step()
            world.sink.step()
            world.clock += RETRY_S / 2
        world.away = False
        for _ in range(5):
            world.flow_step()
            world.look()
            world.sink.step()
    for _ in range(2):
        world.clock += KEPT_S
        world.look()
    calls = world.trouble.calls
    world.heal()
    newest = newest_epoch(world.storage)
    assert newest is None or not newest.is_open, world
    world.restart()
    assert world.leaves() == [], world
    return calls


EACH = int(os.environ.get("CEC_EACH", "60"))
"""Of so many storage calls one fails; 1: each of them, which takes minutes."""

EVER = 1 << 30

KINDS: dict[str, tuple[Callable[[], BaseException], int, Collection[str] | None]] = {
    "kill": (Crash, 1, None),
    "no answer": (lambda: OSError("503 Slow Down"), 1, None),
    "down for a while": (lambda: OSError("503 Slow Down"), 9, None),
    "disk full for a while": (lambda: OSError(errno.ENOSPC, "No space left on device"), 4, WRITES),
    "disk full until all is well": (lambda: OSError(errno.ENOSPC, "No space left on device"), EVER, WRITES),
}
"""Which error, how often, and in which calls; None for all."""


@pytest.mark.parametrize("log", [0, 1], ids=["log inside", "log elsewhere"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_each_storage_call(kind: str, when: str, log: int, made: Callable[..., World]) -> None:
    """`after`: the call took effect, and its answer was lost."""
    error, lasts, only = KINDS[kind]
    calls = course(made(log, Trouble(0, only=only)))
    assert calls > (150 if only is None else 30)
    seed = random.randrange(10**6)
    each = EACH if only is None else max(EACH // 6, 1)  # there are fewer writes
    for call in range(1 + seed % each, calls + 1, each):
        trouble = Trouble(call, when, error=error, lasts=lasts, only=only)
        try:
            course(made(log, trouble))
        except BaseException:
            print(f"seed={seed} {kind} {when} call {call}: {trouble.seen[-3:]}")
            raise
        assert trouble.tripped


@pytest.mark.parametrize("seed", LIVES)
def test_lives_with_a_fault(seed: int, made: Callable[..., World]) -> None:
    chance = random.Random(seed)
    for _ in range(2):
        error, lasts, only = KINDS[chance.choice(sorted(KINDS))]
        when = chance.choice(["before", "after"])
        first = chance.randrange(1, 400 if only is None else 80)
        world = made(seed, Trouble(first, when, error=error, lasts=lasts, only=only))
        world.live(150)
        world.heal()
        world.restart()
        assert world.leaves() == [], world
