"""A store opens the log that its run writes, wherever its executor is: another one, or none, is refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cec.ids import StoreId
from tests.agent.support import Agent, Refused, window
from tests.checkpoint.support import Tip

STORE = StoreId(0, 0)
KEY = [0, 0, "default"]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Agent]:
    """The driver's agent, on a machine of its own."""
    (tmp_path / "driver").mkdir()
    made = Agent(tmp_path / "driver")
    yield made
    made.calls.close()


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Agent]:
    """An executor's agent, for which the log's home is another directory: its machine's own disk."""
    (tmp_path / "executor").mkdir()
    made = Agent(tmp_path / "executor")
    yield made
    made.calls.close()


def begun(driver: Agent) -> str:
    return str(driver.begin()["log_id"])


def refusal(agent: Agent, name: str, **arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        agent.ask(name, **arguments)
    assert refused.value.kind == "LogLocationError"
    return str(refused.value)


def test_the_runs_own_log_is_opened(driver: Agent) -> None:
    log_id = begun(driver)
    assert driver.ask("open_log", log_id=log_id) == {"log_id": log_id}
    tip, _ = driver.append(STORE, Tip(), window(b"a"))
    answer = driver.ask("load", store=KEY, version=tip.version, checkpoint_id=None, retained=100, log_id=log_id)
    assert answer["footer"]["open_windows"] == 1


def test_a_machine_without_the_log_begins_none(driver: Agent, executor: Agent) -> None:
    log_id = begun(driver)
    said = refusal(executor, "open_log", log_id=log_id)
    assert executor.home in said and log_id in said and "no log" in said
    assert "cec.log.path" in said and "share" in said
    assert not Path(executor.home).exists()
    with pytest.raises(Refused, match="is not open in this agent"):
        executor.append(STORE, Tip(), window(b"a"))


def test_a_machine_with_another_log_names_both(driver: Agent, executor: Agent) -> None:
    wanted, found = begun(driver), begun(executor)
    said = refusal(executor, "open_log", log_id=wanted)
    assert executor.home in said and wanted in said and found in said


def test_a_log_that_was_open_before_is_refused_to_another_run(driver: Agent, executor: Agent) -> None:
    wanted, found = begun(driver), begun(executor)
    assert executor.ask("open_log", log_id=found) == {"log_id": found}
    assert found in refusal(executor, "open_log", log_id=wanted)


def test_a_load_reads_no_other_log(driver: Agent, executor: Agent) -> None:
    wanted, found = begun(driver), begun(executor)
    tip, _ = executor.append(STORE, Tip(), window(b"a"))
    arguments = {"store": KEY, "version": tip.version, "checkpoint_id": None, "retained": 100}
    assert executor.ask("load", **arguments, log_id=found)["footer"]["open_windows"] == 1
    said = refusal(executor, "load", **arguments, log_id=wanted)
    assert wanted in said and found in said


def test_a_log_that_was_removed_is_not_begun_again(driver: Agent) -> None:
    log_id = begun(driver)
    driver.ask("open_log", log_id=log_id)
    shutil.rmtree(driver.home)
    assert "no log" in refusal(driver, "load", store=KEY, version=1, checkpoint_id=None, retained=100, log_id=log_id)
    assert not Path(driver.home, "log.json").exists()


def test_a_store_that_no_run_has_spoken_to_begins_its_log(executor: Agent) -> None:
    log_id = executor.ask("open_log")["log_id"]
    assert executor.ask("open_log") == {"log_id": log_id}
