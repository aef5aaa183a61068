"""The call for the newest epoch of a flow: it answers whatever damage the epoch's files have."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.availability.epochs import Epoch, close_epoch, open_epoch
from tests.agent.support import Agent

NONE = {
    "number": None, "begins_after": -1, "follows": -1, "newest": -1, "has_rows": False, "closed_after": None,
    "has_passed": False,
}  # fmt: skip


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_an_epoch_without_a_log_has_no_rows(agent: Agent) -> None:
    flow, epoch = open_storage(agent.checkpoint), Epoch(3, 7, 5, ("app",), 1)
    assert agent.ask("epoch") == NONE
    open_epoch(flow, epoch)
    found = {**NONE, "number": 3, "begins_after": 7, "follows": 5, "newest": 7}
    assert agent.ask("epoch") == found
    close_epoch(flow, epoch, 9, 2)
    assert agent.ask("epoch") == {**found, "closed_after": 9}


@pytest.mark.parametrize("damaged", ["cec/query.json", "cec/log/log.json", "cec/log/borrowed.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 3, "log_id": "00"}', b'{"format_version": 99}'])
def test_damage_to_an_epochs_files_is_no_error(damaged: str, content: bytes, agent: Agent) -> None:
    """A reader has the stable rows all the same."""
    open_epoch(open_storage(agent.checkpoint), Epoch(1, 7, 5, (), 1))
    place = Path(agent.checkpoint) / "epochs/1"
    (place / "cec/log").mkdir(parents=True)
    log_id = "0" * 32
    (place / "cec/query.json").write_text(f'{{"log_home": "cec/log", "log_id": "{log_id}"}}')
    (place / "cec/log/log.json").write_text(f'{{"format_version": 3, "log_id": "{log_id}"}}')
    (place / damaged).write_bytes(content)
    assert agent.ask("epoch")["newest"] == 7


def test_the_rows_of_an_epoch_with_a_damaged_note_do_not_count(agent: Agent) -> None:
    open_epoch(open_storage(agent.checkpoint), Epoch(1, 7, 5, (), 1))
    note = Path(agent.checkpoint) / "epochs/1.json"
    note.write_bytes(note.read_bytes()[:-5])
    assert agent.ask("epoch") == NONE
