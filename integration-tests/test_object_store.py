"""A query with its log, or its whole checkpoint, on an S3 server (moto, on loopback): SIGKILLs, restarts, requests."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cec_it.job_on_s3 import CEC, MANAGER, Job
from cec_it.killed_jobs import BATCHES, await_batches, make_jobs, rows_of, run_disturbed, start, stderr_of
from cec_it.s3a import SECRET, S3Server, fetch_s3a, run_server
from testbed.processes import ProcessTree

ONE_CONF_LINE = {"spark.sql.streaming.checkpointFileManagerClass": MANAGER}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_server() as running:
        running.client().create_bucket(Bucket="query")
        yield running


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
    conf = {**server.conf(), "spark.jars": fetch_s3a(), **ONE_CONF_LINE, CEC + "writeAt": "batch"}
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
    batches = sum(each.kind.value == "PUT" and each.key.startswith(f"{place}/commits/") for each in seen)
    segments = {each.key for each in seen if each.kind.value == "PUT" and "/segments/" in each.key}
    # A start may write flushes of its replay, one for each store, and a report of each load.
    assert len(segments) <= batches + 3 * 2 * 2, f"{len(segments)} objects for {batches} batches of two stores"


def write_job(tmp_path: Path, name: str, server: S3Server, checkpoint: str) -> Job:
    root = tmp_path / name
    root.mkdir()
    conf = {**server.conf(), "spark.jars": fetch_s3a(), **ONE_CONF_LINE}
    return Job(str(root), f"s3a://query/{checkpoint}", 100_000, conf)


@pytest.mark.long
def test_of_two_drivers_one_goes_on(server: S3Server, tmp_path: Path) -> None:
    """A second driver is refused while the first one lives. Once that is paused, the second one goes on after it; the
    first one wakes up, and commits no batch.
    """
    first, second, third = (write_job(tmp_path, name, server, "two") for name in ("first", "second", "third"))
    one = start(first)
    family = ProcessTree(one.pid)
    try:
        await_batches(first, 3, one)
        refused = start(second)
        assert refused.wait(240) == 1
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
            assert one.wait(240) == 1
            said = stderr_of(first)
            # By its lease; or what it was about to write is there: Spark looks first, and the write is conditional.
            words = (
                "was away from s3a://query/two/cec for longer than",
                "FileAlreadyExistsException: s3a://query/two/",
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
