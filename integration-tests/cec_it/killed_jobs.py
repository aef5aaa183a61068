"""Drivers that run a job (`totals_job`), are killed, stopped and continued, and run it to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cec_it import local
from cec_it.totals_job import CEC, Job
from spark_cec.adapters.fsspec_storage import open_storage
from testbed.processes import ProcessTree

BATCHES = 8
_PATIENCE_S = 600.0
TWO_EXECUTORS = {
    "spark.master": "local-cluster[2,1,768]", "spark.executor.memory": "768m", "spark.sql.shuffle.partitions": "4",
    "spark.locality.wait": "60s", CEC + "writeAt": "batch",
}  # fmt: skip
"""Settings of a job whose stores live in two executors, which write a batch together."""


def start(job: Job) -> subprocess.Popen[bytes]:
    """Starts a driver of its own, without any keys or settings of S3 clients in its environment."""
    command = [sys.executable, "-m", "cec_it.totals_job", job.to_json()]
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSSPEC_"))}
    with Path(job.root, "stderr").open("ab") as errors:
        environment = {**plain, "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)


def finish(job: Job) -> int:
    """Runs a driver to its end; its exit code."""
    driver = start(job)
    family = ProcessTree(driver.pid)
    try:
        return driver.wait(_PATIENCE_S)
    finally:
        family.kill()


def rows_of(job: Job) -> dict[str, list[list[object]]]:
    """The rows of each batch. A batch that ran twice had the same rows.

    The source goes on with empty batches until the driver ends; they do not count.
    """
    found = {}
    for path in Path(job.root, "rows").glob("[0-9]*"):
        calls = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(call == calls[0] for call in calls), path
        found[path.name] = calls[0]
    return {batch: rows for batch, rows in found.items() if int(batch) < job.batches}


def run_disturbed(job: Job, kills: Sequence[int] = (3, 6), *, probe: bool = False) -> None:
    """SIGKILLs, each once so many batches are there, then a run to the end."""
    for upto in kills:
        driver = start(job)
        try:
            await_batches(job, upto, driver)
        finally:
            ProcessTree(driver.pid).kill()
    assert finish(replace(job, probe=probe)) == 0, stderr_of(job)[-3000:]


def run_with_dying_executors(job: Job, batches: Sequence[int] = (3, 5)) -> None:
    """An executor is killed when all tasks of a batch have ended, and nothing of it is written: on each restart.

    None of these batches counts, and each runs again. Then the job runs to its end.
    """
    checkpoint = open_storage(job.checkpoint)
    for batch in batches:
        assert finish(replace(job, kill_at=batch)) == 1
        said = stderr_of(job)
        assert f"batch {batch} does not count, because" in said and "Restart the query" in said, said[-3000:]
        assert not checkpoint.exists(f"commits/{batch}")
    assert finish(job) == 0, stderr_of(job)[-3000:]
    calls = [len(Path(job.root, "rows", str(batch)).read_text().splitlines()) for batch in range(job.batches)]
    assert calls == [2 if batch in batches else 1 for batch in range(job.batches)]


def run_two_drivers(first: Job, second: Job, third: Job) -> None:
    """Three jobs with one checkpoint. The second driver is refused while the first one lives.

    Once the first one is paused, the third one goes on after it. The first one wakes up, and commits no batch.
    """
    one = start(first)
    family = ProcessTree(one.pid)
    try:
        await_batches(first, 3, one)
        assert finish(second) == 1
        assert "is running already (agent process" in stderr_of(second) and rows_of(second) == {}
        await_batches(first, len(rows_of(first)) + 3, one)

        for pid in family.members():
            os.kill(pid, signal.SIGSTOP)
        known = rows_of(first)
        two = start(third)
        try:
            await_batches(third, 3, two)
            for pid in family.members():
                os.kill(pid, signal.SIGCONT)
            assert one.wait(_PATIENCE_S) == 1
            said = stderr_of(first)
            # By its lease; or what it was about to write is there: Spark looks first, and the write is conditional.
            words = (
                f"was away from {first.checkpoint}/cec for longer than",
                f"FileAlreadyExistsException: {first.checkpoint}/",
                "CONCURRENT_STREAM_LOG_UPDATE",
            )
            assert any(each in said for each in words), said[-4000:]
            await_batches(third, len(rows_of(third)) + 3, two)
        finally:
            ProcessTree(two.pid).kill()
    finally:
        family.kill()
    again, woken = rows_of(third), {batch: rows for batch, rows in rows_of(first).items() if batch not in known}
    assert len(woken) <= 1, "foreachBatch may see the batch that was under way, which was not committed"
    for batch in again.keys() & {**known, **woken}.keys():
        assert again[batch] == rows_of(first)[batch]
    first_again = min(int(batch) for batch in again)
    assert first_again <= len(known) and len(again) == max(int(batch) for batch in again) - first_again + 1


def make_jobs(
    tmp_path: Path,
    checkpoint: str | None,
    conf: dict[str, str],
    *,
    doubles: bool = False,
    batches: int = BATCHES,
    both: dict[str, str] | None = None,
) -> tuple[Job, Job]:
    """An undisturbed job on this machine's disk, and one that is killed, elsewhere. `both`: settings of both."""
    roots = [tmp_path / "undisturbed", tmp_path / "killed"]
    for root in roots:
        root.mkdir()
    one, other = (str(root) for root in roots)
    return (
        Job(one, f"{one}/checkpoint", batches, {**(both or {})}, doubles),
        Job(other, checkpoint or f"{other}/checkpoint", batches, {**(both or {}), **conf}, doubles),
    )


def make_drivers(tmp_path: Path, checkpoint: str, conf: dict[str, str]) -> list[Job]:
    """Three jobs without end that share a checkpoint."""
    roots = [tmp_path / name for name in ("first", "second", "third")]
    for root in roots:
        root.mkdir()
    return [Job(str(root), checkpoint, 100_000, conf) for root in roots]


def await_batches(job: Job, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Waits until a running job has so many batches."""

    def look() -> bool | None:
        assert driver.poll() is None, stderr_of(job)[-3000:]
        return True if len(list(Path(job.root, "rows").glob("[0-9]*"))) >= count else None

    local.eventually(look, f"{count} batches of {job.root}", _PATIENCE_S)


def stderr_of(job: Job) -> str:
    """What the drivers of a job have written to standard error."""
    return Path(job.root, "stderr").read_text(errors="replace")
