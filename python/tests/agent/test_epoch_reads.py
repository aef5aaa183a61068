"""A stream by buckets that reads epochs, too: those of one replica at a time, and each row once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log import manifest
from spark_cec.log.home import read_log_file
from spark_cec.log.storage import Storage
from tests.agent.copies import BUCKET_MS, SCHEMA, WAIT_MS, Copies, Forks, make_copies, read_epoch, write_batch
from tests.agent.support import Agent, Refused


class Reader:
    """What a stream shows: stable rows, and those of the epoch that it has."""

    def __init__(self, copies: Copies, forks: dict[str, Forks]) -> None:
        self.copies, self.forks = copies, forks
        self.stable: list[int] = []
        self.epoch: dict[str, Any] | None = None
        self.tentative: list[int] = []

    def read(self) -> None:
        """Runs a batch, if there is one."""
        copies, before = self.copies, self.epoch
        end = copies.plan()
        asks = {**copies.stream, "until_ms": end["until_ms"], "present": before}
        found = copies.agents["a"].ask("epoch_end", **asks)["reading"]
        self.stable += copies.take(end)
        if found is None or before is None or name(found) != name(before):
            self.tentative = []
        if found is not None and found != before:
            rows = read_epoch(copies, found)
            epoch = self.forks[found["replica"]].rows[found["number"]]
            assert rows == [ms for ms in epoch if found["after_ms"] <= ms < found["until_ms"]], "all of its buckets"
            assert not {ms for ms in rows if ms < copies.at["until_ms"]}, "of buckets that are not stable yet"
            assert not set(rows) & set(self.tentative), "each row of an epoch comes once"
            assert sorted(rows) == sorted(read_epoch(copies, found)), "a repeat"
            self.tentative += rows
        self.epoch = found


def name(reading: dict[str, Any]) -> tuple[str, int]:
    return reading["replica"], reading["number"]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    copies = make_copies(tmp_path)
    made = Reader(copies, {replica: Forks(agent) for replica, agent in copies.agents.items()})
    yield made
    copies.close()


class Life:
    """Replicas stand still and catch up, open epochs and close them, at random."""

    def __init__(self, seed: int, reader: Reader) -> None:
        self.chance, self._copies, self._forks = random.Random(seed), reader.copies, reader.forks
        self._copies.rows = sorted({self.chance.randint(1, 40_000) for _ in range(80)})
        self._of_epochs = [ms for ms in self._copies.rows if ms % 3]
        self._away = ""

    def go_on(self, now_ms: int) -> None:
        """What both replicas do at a moment. `now_ms`: the time of the newest rows."""
        if self.chance.random() < 0.07:
            self._away = self.chance.choice(("", "a", "ab", "ab", "b"))
        if 20_000 <= now_ms < 28_000:
            self._away = "ab"
        for replica, forks in self._forks.items():
            if replica not in self._away and self.chance.random() < 0.7:
                until_ms = min(now_ms, self._copies.passed[replica] + self.chance.randint(0, 2_500))
                self._copies.give_out(replica, until_ms, says=self.chance.random() < 0.8)
            self._fork(forks, now_ms, now_ms - self._copies.passed[replica])

    def _fork(self, forks: Forks, now_ms: int, behind_ms: int) -> None:
        if not forks.is_open and behind_ms > 3_000 and self.chance.random() < 0.5:
            forks.begin()
        elif forks.is_open and self.chance.random() < 0.7:
            forks.give_out(self._of_epochs, now_ms - self.chance.randint(0, 1_500))
        elif forks.is_open and self.chance.random() < 0.1:
            forks.end(deletes=self.chance.random() < 0.3)

    def heal(self, until_ms: int) -> None:
        """All is well again."""
        for forks in self._forks.values():
            if forks.is_open:
                forks.end()
        for replica in "ab":
            self._copies.give_out(replica, until_ms)


@pytest.mark.parametrize("seed", range(12))
def test_stable_rows_come_once_and_tentative_ones_of_one_epoch(seed: int, reader: Reader) -> None:
    """The reader is started again at random, too."""
    life, copies = Life(seed, reader), reader.copies
    copies.plan()
    shown = 0
    for now_ms in range(1_000, 41_000, 500):
        life.go_on(now_ms)
        if life.chance.random() < 0.6:
            reader.read()
            shown += len(reader.tentative)
        if life.chance.random() < 0.1:
            copies.run += 1
            copies.plan()
    life.heal(45_000)
    for _ in range(4):
        reader.read()
    assert reader.stable == sorted(reader.stable) == copies.rows
    assert reader.epoch is None and not reader.tentative, "all of them are replaced"
    assert shown, "there were tentative rows"


def test_an_epoch_that_cannot_be_read_is_none(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    copies, forks = reader.copies, reader.forks["a"]
    copies.rows = [500, 1_500, 2_500]
    copies.plan()
    for replica in "ab":
        copies.give_out(replica, 1_000)
    forks.begin()
    forks.give_out([500, 1_500], 9_000)
    shutil.rmtree(Path(copies.agents["a"].checkpoint) / "epochs/1/cec/log/manifests")
    copies.agents["a"].calls.tidy()
    for _ in range(2):
        reader.read()
    assert reader.stable == [500] and reader.epoch is None


def test_a_storage_that_fails_while_epochs_are_listed_stops_no_stable_row(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = reader.copies
    copies.rows = [500, 1_500]
    copies.plan()
    copies.give_out("a", 2_000)
    copies.give_out("b", 1_000)

    def fail(_: object) -> None:
        raise OSError("503")

    monkeypatch.setattr("spark_cec.agent.epochs.newest_epoch", fail)
    reader.read()
    assert reader.stable == copies.rows and reader.epoch is None


@pytest.mark.parametrize("most_rows", [None, 10])
def test_rows_of_a_backlog_do_not_come_tentatively(most_rows: int | None, reader: Reader) -> None:
    """A sink was down for long, and takes a bounded number of rows in a batch. The epoch has the flow's rows, too."""
    copies = reader.copies
    copies.rows = list(range(100, 40_000, 100))
    copies.max_rows = most_rows
    copies.plan()
    for replica in "ab":
        for until_ms in range(1_000, 39_000, 1_000):
            copies.give_out(replica, until_ms)
    forks = reader.forks["a"]
    forks.begin()
    forks.give_out(copies.rows, 39_000)
    reader.forks["b"].begin()
    forks.give_out(copies.rows, 40_000)
    reader.read()
    while len(reader.stable) < 379:
        assert not reader.tentative
        reader.read()
    reader.read()
    assert reader.tentative == copies.rows[379:]


def test_a_look_at_an_epoch_reads_no_past_of_the_flow(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that outside readers read keeps all of its batches."""
    copies, forks = reader.copies, reader.forks["a"]
    copies.rows = list(range(500, 300_000, 1_000))
    copies.plan()
    for until_ms in range(1_000, 290_000, 1_000):
        for replica in "ab":
            copies.give_out(replica, until_ms)
    for _ in range(3):
        reader.read()
    assert len(reader.stable) == 289
    forks.begin(after=287)
    for until_ms in range(1_000, 289_000, 1_000):
        forks.give_out(copies.rows, until_ms)
    forks.give_out(copies.rows, 295_000)
    reader.forks["b"].begin()
    loaded, load = list[int](), manifest.load

    def count(storage: Storage, batch: int) -> manifest.Manifest:
        loaded.append(batch)
        return load(storage, batch)

    monkeypatch.setattr(manifest, "load", count)
    reader.read()
    assert reader.tentative == copies.rows[289:295] and len(loaded) < 20, loaded
    copies.run += 1
    copies.plan()
    loaded.clear()
    reader.read()
    assert len(loaded) < 3 * 64, "nor does a start, of the replica that is not read"


def test_a_reader_that_comes_back_to_an_epoch_has_all_of_it(reader: Reader) -> None:
    copies, forks = reader.copies, reader.forks
    copies.rows = list(range(500, 40_000, 1_000))
    copies.plan()
    for replica in "ab":
        copies.give_out(replica, 1_000)
        forks[replica].begin(after=0)
        forks[replica].give_out(copies.rows, 1_000)
    for first, until_ms in (("a", 5_000), ("b", 11_000), ("a", 17_000), ("b", 23_000)):
        for then_ms in range(until_ms - 4_000, until_ms + 1, 1_000):
            forks[first].give_out(copies.rows, then_ms)
        reader.read()
        assert reader.epoch is not None and reader.epoch["replica"] == first
        assert reader.tentative == [ms for ms in copies.rows if 1_000 <= ms < until_ms]
        reader.read()


def test_a_replica_in_time_keeps_the_reader_from_the_epoch_of_the_other_one(reader: Reader) -> None:
    copies, forks = reader.copies, reader.forks["b"]
    copies.rows = [500, 1_500, 2_500, 3_500]
    copies.plan()
    copies.give_out("a", 2_000)
    copies.give_out("b", 1_000)
    forks.begin()
    forks.give_out([500, 2_500], 3_000)
    reader.read()
    assert reader.stable == [500, 1_500] and not reader.tentative
    forks.give_out([3_500], 2_000 + 3_000 + BUCKET_MS)
    reader.read()
    assert reader.tentative == [2_500, 3_500], "a has stood still for longer than a flow waits"
    copies.give_out("a", 3_000)
    reader.read()
    assert reader.stable == [500, 1_500, 2_500] and reader.tentative == [2_500, 3_500], "not all is stable"
    copies.give_out("a", 7_000)
    reader.read()
    assert reader.stable == copies.rows and not reader.tentative


def test_rows_of_an_epoch_that_is_closed_are_not_begun(reader: Reader) -> None:
    """Its files are still there. Those that a reader has stay until stable rows replace them."""
    copies, forks = reader.copies, reader.forks["a"]
    copies.rows = [500, 2_500, 3_500]
    copies.plan()
    for replica in "ab":
        copies.give_out(replica, 1_000)
    forks.begin()
    forks.give_out([500, 2_500], 5_000)
    reader.read()
    assert reader.tentative == [2_500]
    forks.end()
    reader.read()
    assert reader.tentative == [2_500]
    copies.give_out("a", 3_000)
    copies.give_out("a", 5_000)
    reader.read()
    assert reader.stable == copies.rows and not reader.tentative
    forks.begin()
    forks.give_out([2_500], 9_000)
    forks.end()
    reader.read()
    assert reader.epoch is None


@pytest.mark.parametrize("last", [1, 3], ids=["both have the number", "the flow alone has it"])
def test_a_fork_reads_again_what_its_flow_has_read_of_the_other_flow(last: int, reader: Reader) -> None:
    """Those batches came after the epoch's begin, so they are in the channel of the other flow alone."""
    flow, fork = reader.copies.agents["a"], reader.forks["a"]
    fork.begin()
    for number in range(4):
        write_batch(flow, number, [1_000 * number + 500], None)
    for until_ms in (1_000, 2_000):
        fork.give_out([700, 1_700], until_ms)
    epoch = f"{flow.checkpoint}/epochs/1"
    theirs, mine = identify(open_storage(flow.home), last), identify(open_storage(f"{epoch}/cec/log"), 1)

    def read(**more: Any) -> list[int]:
        buckets = {"column": "time", "after_ms": 1, "until_ms": 9_000, "fresh_from": 1 << 40}
        bounds = {"first": 0, "whole": False, "schema": SCHEMA, "buckets": buckets, **more}
        splits = flow.ask("view_splits", view="output", path=epoch, **bounds)["splits"]
        found = [flow.ask("read_split", split=each, columns=["n"], path=epoch) for each in splits]
        return sorted(row["n"] for answer in found for row in flow.rows(answer))

    assert read(last=last, seen=theirs, or_flow=True) == [1_000 * number + 500 for number in range(last + 1)]
    with pytest.raises(Refused, match="was begun anew"):
        read(last=last, seen=theirs)
    assert read(last=1, seen=mine, or_flow=True) == [700, 1_700], "what the fork itself has read"


def identify(home: Storage, batch: int) -> str:
    """As the offsets of streams name a batch of a log."""
    log = read_log_file(home)
    assert log is not None
    return f"{log.log_id[:8]}-{manifest.load(home, batch).crc:08x}"


class OneFlow(Copies):
    """A flow without replicas, and a stream that notes how far it is."""

    @property
    def stream(self) -> dict[str, Any]:
        """Which stream asks, and what it reads."""
        member = {"name": "totals", "path": self.agents["a"].checkpoint, "time": "time", "delay_ms": 0, "copies": [],
                  "wait_ms": WAIT_MS, "is_kept": False}  # fmt: skip
        union = {"bucket_ms": BUCKET_MS, "members": [member], "replicated": False, "notes": True}
        return {"union": union, "own": 0, "query": "board", "source": "sources/0"}


def test_an_epoch_that_was_let_go_in_part_is_read_again(tmp_path: Path) -> None:
    """A backlog passes what the stream has of the epoch, which is still ahead when all of the backlog is read."""
    (tmp_path / "a").mkdir()
    agent = Agent(tmp_path / "a")
    agent.begin_run()
    flow, forks, present = OneFlow({"a": agent}, list(range(500, 60_000, 1_000))), Forks(agent), None
    flow.plan()

    def read() -> dict[str, Any] | None:
        end = flow.plan()
        asks = {**flow.stream, "until_ms": end["until_ms"], "present": present}
        if end["until_ms"] != flow.at["until_ms"]:
            flow.at = {key: end[key] for key in ("until_ms", "batch", "first", "of", "replica")}
        found: dict[str, Any] | None = agent.ask("epoch_end", **asks)["reading"]
        return found

    flow.give_out("a", 1_000)
    forks.begin(after=0)
    for until_ms in range(1_000, 11_000, 1_000):
        forks.give_out(flow.rows, until_ms)
        present = read()
    assert present is not None and present["until_ms"] == 10_000
    manifest.retire(open_storage(f"{agent.checkpoint}/epochs/1/cec/log"), present["first"])
    for until_ms in range(11_000, 31_000, 1_000):
        forks.give_out(flow.rows, until_ms)
    flow.max_rows = 5
    for until_ms in range(2_000, 25_000, 1_000):
        flow.give_out("a", until_ms)
    for _ in range(6):
        present = read()
    agent.calls.close()
    assert present is not None and (present["number"], present["after_ms"], present["until_ms"]) == (1, 24_000, 30_000)
