"""A query with its log, or its whole checkpoint, on an S3 server (moto, on loopback): SIGKILLs, restarts, requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cec_it import local
from cec_it.job_on_s3 import CEC, MANAGER, Job
from cec_it.s3a import SECRET, S3Server, fetch_s3a, plain_environment, run_server

BATCHES = 8
ONE_CONF_LINE = {"spark.sql.streaming.checkpointFileManagerClass": MANAGER}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_server() as running:
        running.client().create_bucket(Bucket="query")
        yield running


def start(job: Job) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cec_it.job_on_s3", job.to_json()]
    with Path(job.root, "stderr").open("ab") as errors:
        return subprocess.Popen(command, env={**plain_environment(), "SPARK_LOCAL_IP": "127.0.0.1"}, stderr=errors)


def rows_of(job: Job) -> dict[str, list[list[object]]]:
    return {path.name: json.loads(path.read_text()) for path in Path(job.root, "rows").glob("[0-9]*")}


def run_disturbed(job: Job, *, probe: bool = False) -> None:
    """Two SIGKILLs, each once some more batches are there, then a run to the end."""
    for upto in (3, 6):
        driver = start(job)
        try:
            local.eventually(lambda upto=upto: True if len(rows_of(job)) >= upto else None, f"batch {upto - 1}", 240)
        finally:
            driver.kill()
            driver.wait(60)
    assert start(replace(job, probe=probe)).wait(240) == 0, Path(job.root, "stderr").read_text()[-3000:]


def make_jobs(tmp_path: Path, checkpoint: str | None, conf: dict[str, str], *, doubles: bool) -> tuple[Job, Job]:
    """An undisturbed job on this machine's disk, and one on the server."""
    roots = [tmp_path / "undisturbed", tmp_path / "killed"]
    for root in roots:
        root.mkdir()
    one, other = (str(root) for root in roots)
    return (
        Job(one, f"{one}/checkpoint", BATCHES, {}, doubles),
        Job(other, checkpoint or f"{other}/checkpoint", BATCHES, conf, doubles),
    )


def secrets_in(job: Job) -> list[Path]:
    return [path for path in Path(job.root).rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def keys_of(server: S3Server, prefix: str) -> list[str]:
    return [each["Key"] for each in server.client().list_objects_v2(Bucket="query", Prefix=prefix).get("Contents", [])]


def test_a_killed_query_with_its_log_on_s3_is_exact_and_its_keys_are_shown_nowhere(
    server: S3Server, tmp_path: Path
) -> None:
    conf = {**server.conf(), CEC + "log.path": "s3a://query/logs of a query"}
    undisturbed, killed = make_jobs(tmp_path, None, conf, doubles=False)
    assert start(undisturbed).wait(240) == 0
    run_disturbed(killed)
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    assert any("/segments/" in key for key in keys_of(server, "logs of a query"))
    assert secrets_in(killed) == [], "the secret is in no file of the query, nor in what its processes print"


@pytest.mark.parametrize("doubles", [False, True], ids=["integers", "doubles"])
def test_a_killed_query_with_its_checkpoint_on_s3_is_exact(doubles: bool, server: S3Server, tmp_path: Path) -> None:
    place = f"doubles-{doubles}"
    conf = {**server.conf(), "spark.jars": fetch_s3a(), **ONE_CONF_LINE}
    undisturbed, killed = make_jobs(tmp_path, f"s3a://query/{place}", conf, doubles=doubles)
    assert start(undisturbed).wait(240) == 0
    before = len(server.proxy.seen())
    run_disturbed(killed, probe=True)
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    probed = json.loads(Path(killed.root, "probe.json").read_text())
    assert probed == {
        "created": {"0": "org.apache.hadoop.fs.FileAlreadyExistsException", "900": "created"},
        "given_up": "created",
        "there": ["0", "900"],
        "left": ["0"],
    }
    assert secrets_in(killed) == []
    seen = [each.request for each in server.proxy.seen()[before:] if each.request.bucket == "query"]
    entry = f"{place}/commits/5"
    of_one_entry = Counter((each.kind.value, each.is_conditional) for each in seen if each.key == entry)
    assert of_one_entry[("PUT", True)] == 1 and of_one_entry[("COPY", False)] == 0, of_one_entry
    assert not [each for each in seen if each.key.startswith(f"{place}/commits/.")], "no temporary file"
