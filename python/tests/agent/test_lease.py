"""Leases: who has one, and that whatever goes wrong on the way to one gives it back."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import lease
from spark_cec.agent.lease import CheckpointLeases, is_held
from spark_cec.errors import Fenced, LogLocationError


@pytest.fixture
def leases() -> Iterator[CheckpointLeases]:
    made = CheckpointLeases()
    yield made
    made.close()


def descriptors() -> set[str]:
    """What this process has open."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def failing(number: int) -> object:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_full_disk_costs_the_note_and_not_the_lease(
    call: str, leases: CheckpointLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has the lease is noted for people alone."""
    own = open_storage(str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(os, call, failing(errno.ENOSPC))
        assert leases.hold("q", own)
    assert is_held(own)
    leases.release("q")
    assert is_held(own) is False
    assert CheckpointLeases().hold("q", own)


def test_a_lock_that_another_process_has_got_is_lost(leases: CheckpointLeases, tmp_path: Path) -> None:
    """A server of NFS gives the lock of a client away that was cut off. Its next holder notes itself, here, too."""
    own, log = open_storage(str(tmp_path / "own")), open_storage(str(tmp_path / "log"))
    assert leases.hold("q", own, log=log)
    leases.confirm("q")
    (tmp_path / "log" / lease.LOCK_FILE).write_text("4711 0123456789abcdef")
    with pytest.raises(Fenced, match=r"lost its file lock .*/log/lock to agent process 4711,.* start it again"):
        leases.confirm("q")
    leases.release("q")
    leases.confirm("q")


def test_a_lock_file_that_says_nothing_is_no_alarm(
    leases: CheckpointLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = open_storage(str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", failing(errno.ENOSPC))
        leases.hold("full", own)
    leases.confirm("full")
    leases.release("full")
    leases.hold("q", own)
    with monkeypatch.context() as away:
        away.setattr(os, "open", failing(errno.ESTALE))
        leases.confirm("q")
    (tmp_path / lease.LOCK_FILE).unlink()
    leases.confirm("q")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK, errno.ENOSPC, errno.EMFILE])
def test_a_lease_that_could_not_be_taken_leaves_nothing_behind(
    number: int, leases: CheckpointLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, and at whichever of the two locks."""
    own, log = open_storage(str(tmp_path / "own")), open_storage(str(tmp_path / "log"))
    lock, locks = fcntl.flock, 0

    def fail_at_the_second(descriptor: int, how: int) -> None:
        nonlocal locks
        locks += 1
        if locks == 2:
            raise OSError(number, os.strerror(number))
        lock(descriptor, how)

    before = descriptors()
    with monkeypatch.context() as failing_once:
        failing_once.setattr(fcntl, "flock", fail_at_the_second)
        with pytest.raises((OSError, LogLocationError)):
            leases.hold("q", own, log=log)
    assert descriptors() == before
    assert not leases.has("q") and is_held(own) is False and is_held(log) is False
    assert leases.hold("q", own, log=log)


def test_a_log_outside_of_the_checkpoint_is_locked_too(leases: CheckpointLeases, tmp_path: Path) -> None:
    """A copy of the checkpoint has a lock of its own, and the same log."""
    own, copy, log = (open_storage(str(tmp_path / name)) for name in ("own", "copy", "log"))
    assert leases.hold("own", own, log=log)
    others = CheckpointLeases()
    says = rf"a query with log {log.url} is running already \(agent process {os.getpid()}"
    with pytest.raises(Fenced, match=says):
        others.hold("copy", copy, 0.0, log)
    assert is_held(copy) is False, "the lock that it did get is given back"
    leases.release("own")
    assert others.hold("copy", copy, 0.0, log)
    others.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_with_its_mend(
    number: int, leases: CheckpointLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = open_storage(str(tmp_path))
    (tmp_path / lease.LOCK_FILE).touch()
    monkeypatch.setattr(fcntl, "flock", failing(number))
    says = r"its file system cannot lock files \(.*mount it with file locks"
    with pytest.raises(LogLocationError, match=says) as said:
        leases.hold("q", own)
    assert str(said.value).startswith(f"log location '{tmp_path}'")
    assert is_held(own) is None, "nobody can say"


def test_storage_that_is_not_local_has_no_lease(leases: CheckpointLeases) -> None:
    assert not leases.hold("q", open_storage("memory://no-locks"))
    assert is_held(open_storage("memory://no-locks")) is None
