"""A query with its log on an S3 server (moto, on loopback): keys from Spark's Hadoop settings, SIGKILL, a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cec_it import local

BATCHES = 8


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
    )


def start(root: Path, log: str, endpoint: str) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSSPEC_"))}
    command = [sys.executable, "-m", "cec_it.log_on_s3", str(root), log, endpoint, str(BATCHES)]
    with (root / "stderr").open("ab") as errors:
        return subprocess.Popen(command, env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"}, stderr=errors)


def rows_of(root: Path) -> dict[str, list[list[object]]]:
    return {path.name: json.loads(path.read_text()) for path in (root / "rows").iterdir() if path.name.isdigit()}


def batches_of(root: Path) -> int:
    return len(list((root / "rows").glob("[0-9]*"))) if (root / "rows").exists() else 0


def test_a_killed_query_is_exact_and_its_keys_are_shown_nowhere(endpoint: str, tmp_path: Path) -> None:
    s3 = client(endpoint)
    s3.create_bucket(Bucket="logs")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for root in (undisturbed, killed):
        root.mkdir()
    assert start(undisturbed, f"{undisturbed}/logs", endpoint).wait(240) == 0
    for upto in (3, 6):
        driver = start(killed, "s3a://logs/of a query", endpoint)
        try:
            local.eventually(lambda upto=upto: True if batches_of(killed) >= upto else None, f"batch {upto - 1}", 240)
        finally:
            driver.kill()
            driver.wait(60)
    assert start(killed, "s3a://logs/of a query", endpoint).wait(240) == 0
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket="logs")["Contents"]]
    assert any("/segments/" in key for key in keys)
    shown = [path for path in killed.rglob("*") if path.is_file() and b"the-secret" in path.read_bytes()]
    assert shown == [], "the secret is in no file of the query, nor in what its processes print"
