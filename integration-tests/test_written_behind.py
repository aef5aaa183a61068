"""Stores that write while Spark commits (`writeAt=async`): a crash between the two loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cec_it.lagging_driver import Job
from spark_cec.admin.committed import committed, note_unwritten
from spark_cec.admin.find_log import find_log
from spark_cec.admin.state import open_catalog
from testbed.processes import ProcessTree

BATCHES = 8


def run(job: Job) -> int:
    """Runs the query to its end, or to its crash; the driver's exit code."""
    with Path(job.root, "stderr").open("ab") as errors:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, "-m", "cec_it.lagging_driver", job.to_json()]
        driver = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)
    family = ProcessTree(driver.pid)
    try:
        return driver.wait(240)
    finally:
        family.kill()


def rows_of(job: Job) -> dict[str, list[list[object]]]:
    """The calls of the function by batch, each with its rows."""
    files = Path(job.root, "rows").iterdir()
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}


def is_behind(job: Job) -> bool:
    """Whether the log lacks the newest version that Spark has committed."""
    place = find_log(str(Path(job.root, "checkpoint")))
    done, catalog = committed(place), open_catalog(place)
    catalog.refresh()
    found = note_unwritten(place, catalog.index, done)
    return found is not None and found.is_unwritten


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    def make(name: str, **fields: object) -> Job:
        root = tmp_path / name
        root.mkdir()
        return Job(str(root), BATCHES, **fields)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("doubles", "names_state", "agents"),
    [(True, False, 1), (False, False, 2), (False, True, 1)],
    ids=["doubles-one", "integers-both", "named-one"],
)
def test_a_batch_that_the_log_lacks_is_made_again(
    doubles: bool, names_state: bool, agents: int, make_job: Callable[..., Job]
) -> None:
    """In the second batch of all, and in a later one, after a restart; without a second call of the function."""
    whole = make_job("whole", doubles=doubles, names_state=names_state, write_at="batch")
    assert run(whole) == 0, Path(whole.root, "stderr").read_text()[-3000:]
    job = make_job("crashed", doubles=doubles, names_state=names_state, agents=agents)
    for stop_at in (1, 4):
        assert run(replace(job, stop_at=stop_at)) < 0, Path(job.root, "stderr").read_text()[-3000:]
        assert is_behind(job), f"the log has batch {stop_at}"
    assert run(job) == 0, Path(job.root, "stderr").read_text()[-3000:]
    wanted, found = rows_of(whole), rows_of(job)
    assert found == wanted and all(len(calls) == 1 for calls in found.values()) and len(found) == BATCHES
    assert not is_behind(job)


def test_the_first_batch_is_written_before_spark_commits_it(make_job: Callable[..., Job]) -> None:
    """If the log knew the first partition alone, a start would take the others for partitions that no task uses."""
    whole = make_job("whole", doubles=False, write_at="batch")
    assert run(whole) == 0, Path(whole.root, "stderr").read_text()[-3000:]
    job = make_job("crashed", doubles=False, agents=1)
    assert run(replace(job, stop_at=0)) < 0, Path(job.root, "stderr").read_text()[-3000:]
    assert not Path(job.root, "checkpoint", "commits", "0").exists()
    assert run(job) == 0, Path(job.root, "stderr").read_text()[-3000:]
    wanted, found = rows_of(whole), rows_of(job)
    assert {batch: calls[-1] for batch, calls in found.items()} == {batch: calls[-1] for batch, calls in wanted.items()}
    assert len(found["0"]) == 2 and len(found) == BATCHES
