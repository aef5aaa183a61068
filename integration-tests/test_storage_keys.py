"""Keys of S3 that change while queries run, and those of a role: a Spark driver, its agent, and moto on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.sts.models import sts_backends

from cec_it import local
from cec_it.job_with_keys import KEY_IDS
from cec_it.s3a import S3Server, run_server
from spark_cec_lab.storage.proxy import PASS, Order, Request
from testbed.processes import ProcessTree

ARN = "arn:aws:iam::123456789012:role/shop"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_server() as running:
        for name in ("file", "role"):
            running.client().create_bucket(Bucket=name)
        yield running


def conf_of(server: S3Server) -> dict[str, str]:
    role = {
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider",
        "assumed.role.arn": ARN, "assumed.role.session.name": "of-spark", "assumed.role.sts.endpoint": server.endpoint,
        "assumed.role.sts.endpoint.region": "us-east-1",
    }  # fmt: skip
    keys = ("spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.secret.key")
    plain = {key: value for key, value in server.conf().items() if key not in keys}
    return {**plain, **{f"spark.hadoop.fs.s3a.bucket.role.{name}": value for name, value in role.items()}}


def test_new_keys_in_a_credential_file_and_keys_of_a_role_reach_the_agent(server: S3Server, tmp_path: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSSPEC_"))}
    command = [sys.executable, "-m", "cec_it.job_with_keys", str(tmp_path), json.dumps(conf_of(server))]
    with (tmp_path / "stderr").open("ab") as errors:
        driver = subprocess.Popen(
            command, env={**plain, "SPARK_LOCAL_IP": "127.0.0.1"}, stderr=errors, start_new_session=True
        )
    try:
        local.eventually(lambda: True if (tmp_path / "ready").exists() or driver.poll() else None, "batches", 240)
        assert driver.poll() is None, (tmp_path / "stderr").read_text()[-3000:]

        def refuse_first_key(request: Request) -> Order:
            return Order(status=400, code="ExpiredToken") if request.key_id == KEY_IDS[0] else PASS

        server.proxy.decide = refuse_first_key
        (tmp_path / "refused").touch()
        code = driver.wait(240)
    finally:
        ProcessTree(driver.pid).kill()
    said = (tmp_path / "stderr").read_text()
    assert code == 0, said[-3000:]
    seen = [(each.request.bucket, each.request.key_id, each.order.code) for each in server.proxy.seen()]
    assert ("file", KEY_IDS[0], "ExpiredToken") in seen and ("file", KEY_IDS[1], None) in seen
    lent = {each.access_key_id: each for each in sts_backends["123456789012"]["aws"].assumed_roles}
    of_role = {key for bucket, key, _ in seen if bucket == "role"}
    assert of_role and of_role <= lent.keys(), "the query has the keys of the role, and no others"
    assert {(lent[key].role_arn, lent[key].session_name) for key in of_role} == {(ARN, "of-spark")}
    for secret in ("the secret of", *(lent[key].secret_access_key for key in of_role)):
        assert secret not in said
