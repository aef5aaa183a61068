"""An agent that is short of descriptors or room says so in a sentence, holds nothing, and goes on when it has some."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_cec.ids import StoreId
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip

STORE = StoreId(0, 0)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.calls.close()


def open_files() -> list[str]:
    found = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sorted(path for path in found if path.startswith("/") and "/proc/" not in path)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(soft) if not is_open(number))
    limit = next(number for at, number in enumerate(free) if at == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start(agent: Agent) -> int:
    """What the shim asks at a start, up to the first commit."""
    agent.ask("check", committed_batch=-1)
    generation = agent.begin_run(decision=WITH_STATE)
    agent.ask("hold", generation=generation)
    agent.ask("open_log")
    agent.append(STORE, Tip(), window(b"a"), generation=generation)
    return generation


@pytest.mark.parametrize("left", range(8))
def test_too_few_descriptors_are_named_with_the_remedy(agent: Agent, left: int) -> None:
    before = open_files()
    refused: Refused | None = None
    with descriptors_left(left):
        try:
            start(agent)
        except Refused as error:
            refused = error
    if refused is not None:
        said = str(refused)
        assert "too many open files: raise `ulimit -n`" in said and "\n" not in said, said
        agent.ask("release")
        agent.ask("close_log")
        assert open_files() == before, "nothing is kept of what failed"
    else:
        assert left > 1
        agent.ask("release")
    assert start(agent) > 0


def test_with_few_descriptors_the_start_does_fail() -> None:
    """Else the test before would tell of nothing."""
    with descriptors_left(0), pytest.raises(OSError, match="Too many open files"):
        os.open("/", os.O_RDONLY)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "no space is left: make room there"),
        (errno.EDQUOT, "no space is left: make room there"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "no permission: give the user"),
    ],
)
def test_other_wants_are_told_in_a_sentence(
    agent: Agent, number: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.begin_run()

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))  # a write to an open file names none

    with monkeypatch.context() as short:
        short.setattr(os, "writev", fail)
        with pytest.raises(Refused) as refused:
            agent.begin_run()
    assert str(refused.value).startswith(f"{agent.checkpoint}/cec/") and "\n" not in str(refused.value)
    assert says in str(refused.value)
    with monkeypatch.context() as short:
        short.setattr(os, "writev", fail)
        agent.ask("open_log")
        with pytest.raises(Refused, match=says) as refused:
            agent.append(STORE, Tip(), window(b"a"))
    assert refused.value.kind == "CommitOutcomeUnknown", "it says what to do, too"
    agent.append(STORE, Tip(), window(b"a"))


def test_what_nobody_has_thought_of_comes_with_its_place(agent: Agent) -> None:
    with pytest.raises(Refused, match=r"(?s)Traceback.*ValidationError: Object contains unknown field `other`"):
        agent.ask("release", other={})
