"""The calls of the checkpoint file manager."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.agent.support import Agent, Refused


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


def test_an_entry_can_be_looked_for_and_deleted(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    create(agent, "offsets/7", b"")
    assert agent.ask("file_exists", path="offsets/7") == {"exists": True}
    for _ in range(2):
        agent.ask("delete_files", paths=["offsets/6", "offsets/7"])
    assert agent.ask("file_exists", path="offsets/7") == {"exists": False}
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
