"""Drivers that run a job (`job_on_s3`), are killed, and run it to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cec_it import local
from cec_it.job_on_s3 import Job
from testbed.processes import ProcessTree

BATCHES = 8


def start(job: Job) -> subprocess.Popen[bytes]:
    """Starts a driver of its own, without any keys or settings of S3 clients in its environment."""
    command = [sys.executable, "-m", "cec_it.job_on_s3", job.to_json()]
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSSPEC_"))}
    with Path(job.root, "stderr").open("ab") as errors:
        environment = {**plain, "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)


def rows_of(job: Job) -> dict[str, list[list[object]]]:
    """The rows of each batch. The source goes on with empty batches until the driver ends; they do not count."""
    paths = [path for path in Path(job.root, "rows").glob("[0-9]*") if int(path.name) < job.batches]
    return {path.name: json.loads(path.read_text()) for path in paths}


def run_disturbed(job: Job, *, probe: bool = False) -> None:
    """Two SIGKILLs, each once some more batches are there, then a run to the end."""
    for upto in (3, 6):
        driver = start(job)
        try:
            local.eventually(lambda upto=upto: True if len(rows_of(job)) >= upto else None, f"batch {upto - 1}", 240)
        finally:
            ProcessTree(driver.pid).kill()
    assert start(replace(job, probe=probe)).wait(240) == 0, Path(job.root, "stderr").read_text()[-3000:]


def make_jobs(tmp_path: Path, checkpoint: str | None, conf: dict[str, str], *, doubles: bool) -> tuple[Job, Job]:
    """An undisturbed job on this machine's disk, and one that is killed, elsewhere."""
    roots = [tmp_path / "undisturbed", tmp_path / "killed"]
    for root in roots:
        root.mkdir()
    one, other = (str(root) for root in roots)
    return (
        Job(one, f"{one}/checkpoint", BATCHES, {}, doubles),
        Job(other, checkpoint or f"{other}/checkpoint", BATCHES, conf, doubles),
    )


def await_batches(job: Job, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Waits until a running job has so many batches."""

    def look() -> bool | None:
        assert driver.poll() is None, stderr_of(job)[-3000:]
        return True if len(rows_of(job)) >= count else None

    local.eventually(look, f"{count} batches of {job.root}", 300)


def stderr_of(job: Job) -> str:
    """What the drivers of a job have written to standard error."""
    return Path(job.root, "stderr").read_text(errors="replace")
