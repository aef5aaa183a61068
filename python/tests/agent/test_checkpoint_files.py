"""The calls of the checkpoint file manager."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cec.adapters.object_storage import ObjectStorage
from spark_cec.agent import checkpoint_files, output
from spark_cec.agent.checkpoint_files import CheckpointFileCalls, NewestEntries
from spark_cec.agent.messages import CreateFileRequest, DeleteFilesRequest
from spark_cec.agent.object_lease import ObjectLease, Timing
from spark_cec.errors import Fenced
from tests.agent.support import Agent, Refused
from tests.log.support import ObjectStore


def create(agent: Agent, path: str, content: bytes, *, overwrites: bool = False, retry: bool = False) -> None:
    encoded = base64.b64encode(content).decode()
    agent.ask("create_file", path=path, content=encoded, overwrites=overwrites, retry=retry)


def test_an_entry_is_created_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    create(agent, "commits/0", b"v1\n{}")
    for content in (b"v1\n{}", b"another"):
        with pytest.raises(Refused) as refused:
            create(agent, "commits/0", content)
        assert refused.value.kind == "AlreadyExists"
    assert Path(agent.checkpoint, "commits/0").read_bytes() == b"v1\n{}"
    create(agent, "commits/0", b"new", overwrites=True)
    assert Path(agent.checkpoint, "commits/0").read_bytes() == b"new"
    agent.calls.close()


def test_a_successor_knows_the_entry_of_a_dead_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    create(agent, "commits/0", b"v1\n{}")
    create(agent, "commits/0", b"v1\n{}", retry=True)
    with pytest.raises(Refused):
        create(agent, "commits/0", b"another", retry=True)
    agent.calls.close()


def test_an_entry_can_be_deleted(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    create(agent, "offsets/7", b"")
    assert agent.ask("read_file", path="offsets/7") == {"content": ""}
    for _ in range(2):
        agent.ask("delete_files", paths=["offsets/6", "offsets/7"])
    assert agent.ask("read_file", path="offsets/7") == {"content": None}
    agent.calls.close()


def test_entries_are_listed_and_read(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    assert agent.ask("list_files", directory="offsets") == {"names": []}
    assert agent.ask("read_file", path="offsets/0") == {"content": None}
    for batch in (0, 1, 10):
        create(agent, f"offsets/{batch}", b"v1\n%d" % batch)
    assert agent.ask("list_files", directory="offsets") == {"names": ["0", "1", "10"]}
    assert base64.b64decode(agent.ask("read_file", path="offsets/10")["content"]) == b"v1\n10"
    agent.calls.close()


def test_a_run_that_lost_its_lease_writes_no_entry(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.calls._logs.fence(agent.checkpoint, None, "a later run has the lease")
    with pytest.raises(Refused) as refused:
        create(agent, "commits/0", b"v1\n{}")
    assert refused.value.kind == "Fenced"
    assert not Path(agent.checkpoint, "commits/0").exists()
    agent.calls.close()


class Away(ObjectStore):
    """Gives no answer to writes for some seconds of a clock, which goes on by a second with each of them."""

    def __init__(self, wait: Callable[[float], object]) -> None:
        super().__init__()
        self.away_s, self._wait = 0.0, wait

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: object) -> None:
        """Writes an object."""
        if self.away_s > 0 and "/lease/" not in path:
            self.away_s -= 1.0
            self._wait(1.0)
            raise ConnectionResetError
        super().pipe_file(path, value, mode, **more)

    def rm_file(self, path: str) -> None:
        """Deletes an object."""
        if self.away_s > 0 and "/lease/" not in path:
            self.away_s -= 1.0
            self._wait(1.0)
            raise ConnectionResetError
        super().rm_file(path)


class Held:
    """A checkpoint on an object store, with a lease that another process takes as soon as it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.store = Away(self._wait)
        timing = Timing(beat_s=100_000.0)
        self._place = ObjectStorage("s3://b/q/cec", self.store, "b/q/cec", exclusive=True)
        self.lease = ObjectLease(self._place, "the query q", timing, lambda: self.now, self._wait)
        self.other = ObjectLease(self._place, "another run", timing, lambda: self.now, self._wait)
        self.lease.take(time.monotonic() + 60)
        monkeypatch.setattr(checkpoint_files, "open_storage", self._open)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        self.files = CheckpointFileCalls(lambda _: self.lease.confirm(), NewestEntries())

    def lose(self) -> None:
        """Another process takes the lease."""
        self._place.create("lease/0000000002.json", b"{}")
        self.now += 40.0

    def request(self, **more: Any) -> CreateFileRequest:
        content = base64.b64encode(b"v1").decode()
        return CreateFileRequest(checkpoint="s3://b/q", path="commits/6", content=content, **more)

    def _wait(self, seconds: float) -> None:
        self.now += seconds

    def _open(self, url: str, **more: Any) -> ObjectStorage:
        return ObjectStorage(url, self.store, "b/q", exclusive=True, **more)


@pytest.mark.parametrize("overwrites", [False, True])
def test_an_entry_is_not_written_again_by_a_run_that_lost_its_lease_meanwhile(
    overwrites: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `cec rollback` could have deleted the entry before, and no start would succeed any more."""
    held = Held(monkeypatch)
    held.store.away_s = 3.0
    monkeypatch.setattr(time, "sleep", lambda _: held.lose() if held.lease.is_sure else None)
    with pytest.raises(Fenced, match="the query q was away"):
        held.files.create(held.request(overwrites=overwrites, retry=False))
    assert held.store.away_s == 2.0 and not held.store.isfile("b/q/commits/6")


def test_an_entry_is_written_again_by_a_run_that_has_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beats were late: before each attempt one is made up for."""
    held = Held(monkeypatch)
    held.store.away_s = 30.0
    held.files.create(held.request(overwrites=False, retry=False))
    assert held.store.cat_file("b/q/commits/6") == b"v1" and held.lease.is_sure


def test_a_run_that_lost_its_lease_deletes_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at first, nor again: a run after a rollback may need what this one needs no more."""
    for away_s in (0.0, 3.0):
        held = Held(monkeypatch)
        held.files.create(held.request(overwrites=False, retry=False))
        held.store.away_s = away_s
        monkeypatch.setattr(time, "sleep", lambda _, held=held: held.lose() if held.lease.is_sure else None)
        if not away_s:
            held.lose()
        with pytest.raises(Fenced, match="the query q was away"):
            held.files.delete(DeleteFilesRequest(checkpoint="s3://b/q", paths=("commits/6",)))
        assert held.store.isfile("b/q/commits/6")


def test_the_newest_entry_of_the_offset_log_is_known_until_the_next_one() -> None:
    newest = NewestEntries()
    newest.note("s3a://b/q/", "offsets/3", b"three")
    newest.note("s3a://b/q", "commits/3", b"v1")
    assert newest.find("s3a://b/q", "offsets/3") == b"three"
    assert newest.find("s3a://b/q", "offsets/2") is None and newest.find("s3a://b/r", "offsets/3") is None
    newest.note("s3a://b/q", "offsets/4", b"four")
    assert newest.find("s3a://b/q", "offsets/3") is None and newest.find("s3a://b/q/", "offsets/4") == b"four"


def test_what_goes_into_a_batch_is_noted_without_a_read_of_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(tmp_path)
    agent.begin_run()
    create(agent, "offsets/0", b'v1\n{"batchWatermarkMs":7,"batchTimestampMs":9}\n{"topic":{"0":5}}')
    monkeypatch.setattr(output, "read_planned", lambda *_: pytest.fail("the entry is known"))
    sent = {"frames": [], "rows": 0, "schema": "{}", "truncate": False, "sources": ["topic"]}
    assert agent.ask("publish", batch=0, generation=1, **sent)["first"]
    (manifest,) = Path(agent.home, "manifests").iterdir()
    assert '"boundary_ms": 7' in manifest.read_text() or '"boundary_ms":7' in manifest.read_text()
    agent.calls.close()


@pytest.mark.parametrize(
    ("appends", "looked_by", "lease", "looks"),
    [
        (True, 3, 3, True),
        (False, None, 3, True),
        (False, 2, 3, True),
        (False, 3, None, True),
        (False, 3, 4, True),
        (False, 3, 3, False),
    ],
)
def test_cuts_are_looked_for_unless_this_run_has_kept_them_out_since_it_looked(
    appends: bool, looked_by: int | None, lease: int | None, looks: bool
) -> None:
    log: Any = SimpleNamespace(cuts_looked_by=looked_by, storage=SimpleNamespace(can_append=appends))
    request: Any = SimpleNamespace(checkpoint="c", generation=3)
    none: Any = None
    calls = output.OutputCalls(none, none, NewestEntries(), lambda _: lease)
    assert calls._must_look(log, request) is looks
