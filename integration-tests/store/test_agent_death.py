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
from store_it.jvm import Stores
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
    assert made.windows() == before
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
    assert history.windows() == before


def test_no_spool_file_is_left_behind(jvm: Stores, history: History) -> None:
    """By commits and loads, that is; an agent that was killed may have left the answer that nobody came for."""
    spool = Path(jvm.ask("spool", conf=jvm.conf())).parent
    before = set(spool.glob("*.arrow"))
    advance(history, random.Random(6), 3)
    history.recover(history.dirty_from())
    assert set(spool.glob("*.arrow")) == before
    assert spool.stat().st_mode & 0o777 == 0o700
