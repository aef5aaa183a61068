"""The agent is killed between the calls of a commit, and in the middle of them: the commit goes through."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_it.history import AMPLE_MS, Bounds, History, LogReader
from store_it.jvm import Refused, Stores
from store_it.operators import CountWindows, Sessions

WITHIN_S = 60.0

_operator_ids = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    return LogReader(str(tmp_path_factory.mktemp("checkpoint") / "log"))


@pytest.fixture(params=["plain", "grouped"])
def history(request: pytest.FixtureRequest, jvm: Stores, log: LogReader) -> Iterator[History]:
    """A store with some batches behind it."""
    grouped = request.param == "grouped"
    operator = Sessions(keys=6, gap=9) if grouped else CountWindows(keys=6, size=9)
    made = History(jvm, log, next(_operator_ids), operator, Bounds(replay=20))
    made.start(0)
    advance(made, random.Random(1), 5)
    yield made
    advance(made, random.Random(2), 2)
    before = made.windows()
    made.recover(made.dirty_from())
    assert made.visible(made.version) == made.truth[-1]
    assert made.windows() == made.written(before)
    assert set(made.verdicts()) == {True}


def advance(history: History, rng: random.Random, batches: int) -> None:
    for _ in range(batches):
        history.commit_next(history.operator.batch(rng, history.version), AMPLE_MS)


def agent(jvm: Stores) -> int:
    pid = jvm.agent_pid()
    assert pid is not None, "no agent runs"
    return pid


def until(what: Callable[[], object], wanted: str) -> None:
    """Spins until `what()` is true."""
    deadline = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < deadline, f"{wanted}: not within {WITHIN_S} s"


def segment_bytes(log: LogReader) -> int:
    return sum(path.stat().st_size for path in Path(log.home, "segments").iterdir())


def test_killed_between_two_commits(jvm: Stores, history: History) -> None:
    rng = random.Random(3)
    for _ in range(4):
        os.kill(agent(jvm), signal.SIGKILL)
        advance(history, rng, 2)


def test_killed_between_the_batch_and_its_commit(jvm: Stores, history: History) -> None:
    """The task has its windows in memory; the first that it needs of the agent is the commit."""
    version = history.version
    batch = history.operator.batch(random.Random(4), version)
    changes = history.operator.changes(history.visible(version), batch)
    history.do(*changes)
    os.kill(agent(jvm), signal.SIGKILL)
    history.do(("commit", len(batch.tuples), AMPLE_MS))
    history.do(("begin", version, None))
    history.commit_next(batch, AMPLE_MS)


@pytest.mark.parametrize("written", [False, True], ids=["before the frame", "after the frame"])
def test_killed_in_the_middle_of_a_commit(jvm: Stores, log: LogReader, history: History, written: bool) -> None:
    """The rows are spooled and the call is made, but nobody answers it: the agent stands still, then it is killed.

    `written`: it is killed when the frame is in the log, or may be: the shim must look before it writes again.
    """
    version = history.version
    batch = history.operator.batch(random.Random(5), version)
    changes = history.operator.changes(history.visible(version), batch)
    pid, size = agent(jvm), segment_bytes(log)
    spool = Path(jvm.ask("spool", conf=jvm.conf())).parent
    if not written:
        os.kill(pid, signal.SIGSTOP)
    ticket = jvm.ask("do", target=history.target, steps=[*changes, ("commit", len(batch.tuples), AMPLE_MS)], later=True)
    if written:
        until(lambda: segment_bytes(log) > size, "the commit's frame")
    else:
        until(lambda: any(spool.glob("*.arrow")), "the commit's spool file")
    os.kill(pid, signal.SIGKILL)
    jvm.ask("join", ticket=ticket)
    history.do(("begin", version, None))
    history.commit_next(batch, AMPLE_MS)


def test_killed_in_the_middle_of_a_load(jvm: Stores, history: History) -> None:
    """The load of a replay is asked again of the successor."""
    before, dirty_from = history.windows(), history.dirty_from()
    history.start(history.version)
    pid = agent(jvm)
    os.kill(pid, signal.SIGSTOP)
    ticket = jvm.ask("do", target=history.target, steps=[("begin", dirty_from, None)], later=True)
    os.kill(pid, signal.SIGKILL)
    jvm.ask("join", ticket=ticket)
    for batch_id in range(dirty_from, history.version):
        history.run_batch(batch_id, history.batches[batch_id])
    history.note_flush()
    assert history.windows() == history.written(before)


def test_no_spool_file_is_left_behind(jvm: Stores, history: History) -> None:
    """By commits and loads, that is; an agent that was killed may have left the answer that nobody came for."""
    spool = Path(jvm.ask("spool", conf=jvm.conf())).parent
    before = set(spool.glob("*.arrow"))
    advance(history, random.Random(6), 3)
    history.recover(history.dirty_from())
    assert set(spool.glob("*.arrow")) == before
    assert spool.stat().st_mode & 0o777 == 0o700


def ruined_by_deletion(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))


def ruined_by_a_file(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))
    home.write_text("no directory")


@pytest.mark.parametrize("ruin", [ruined_by_deletion, ruined_by_a_file], ids=lambda ruin: ruin.__name__)
def test_a_log_that_cannot_be_opened_again_takes_no_other_with_it(
    jvm: Stores, history: History, tmp_path: Path, ruin: Callable[[Path], None]
) -> None:
    ruined = History(jvm, LogReader(str(tmp_path / "log")), next(_operator_ids), CountWindows(keys=6, size=9), Bounds())
    ruined.start(0)
    advance(ruined, random.Random(7), 3)
    ruin(tmp_path / "log")
    os.kill(agent(jvm), signal.SIGKILL)
    advance(history, random.Random(8), 2)
    with pytest.raises(Refused, match=str(tmp_path / "log")):
        ruined.commit_next(ruined.operator.batch(random.Random(9), ruined.version), AMPLE_MS)
    advance(history, random.Random(10), 2)


def test_logs_of_ended_queries_are_closed_and_forgotten(jvm: Stores, history: History, tmp_path: Path) -> None:
    home = str(tmp_path / "log")
    stores = [
        History(jvm, LogReader(home), next(_operator_ids), CountWindows(keys=6, size=9), Bounds()) for _ in range(2)
    ]
    for store in stores:
        store.start(0)
        advance(store, random.Random(11), 2)

    def held() -> bool:
        return any(str(tmp_path) in str(each.readlink()) for each in Path(f"/proc/{agent(jvm)}/fd").iterdir())

    jvm.ask("close_log", home=home)
    assert home in jvm.ask("open_logs"), "the other store still needs it"
    assert held()
    advance(stores[1], random.Random(12), 2)
    jvm.ask("close_log", home=home)
    jvm.ask("close_log", home=home)
    assert home not in jvm.ask("open_logs")
    assert not held()
    advance(history, random.Random(13), 1)
