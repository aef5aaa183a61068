"""Versity's S3 gateway: an S3 server whose objects are files of this machine."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import boto3

from cec_it.servers.process import running
from cec_it.servers.programs import go_program
from cec_it.servers.server import Server

_MODULE, _VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
_KEY, _SECRET, _REGION = "the-access-key", "the-secret-of-the-test", "us-east-1"


class VersityGateway(Server):
    """The gateway. It checks signatures."""

    name: ClassVar[str] = "versitygw"
    version: ClassVar[str] = _VERSION
    secret: ClassVar[str] = _SECRET
    has_marks: ClassVar[bool] = True

    @property
    def _client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=f"http://{self.endpoint}", aws_access_key_id=_KEY, aws_secret_access_key=_SECRET,
            region_name=_REGION,
        )  # fmt: skip

    def make_bucket(self) -> str:
        name = f"b-{uuid.uuid4().hex[:12]}"
        self._client.create_bucket(Bucket=name)
        return f"s3a://{name}"

    def bucket_names(self) -> list[str]:
        return [str(each["Name"]) for each in self._client.list_buckets()["Buckets"]]

    def missing_bucket(self) -> tuple[str, str]:
        return "s3a://not-there", "not-there"

    def settings(self, endpoint: str, *, wrong_key: bool = False) -> Mapping[str, str]:
        own = {
            "access.key": _KEY, "secret.key": _SECRET[::-1] if wrong_key else _SECRET, "endpoint": endpoint,
            "connection.ssl.enabled": "false", "endpoint.region": _REGION, "path.style.access": "true",
        }  # fmt: skip
        return {f"fs.s3a.{key}": value for key, value in own.items()}


@contextmanager
def run_versity() -> Iterator[VersityGateway]:
    """Runs the gateway on a directory of its own. Raises `Unavailable` if it cannot be built."""
    program = go_program(_MODULE, _VERSION)
    with tempfile.TemporaryDirectory(prefix="versitygw-") as root:
        data = Path(root, "data")
        data.mkdir()
        keys = {"ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
        with running(
            lambda port: [str(program), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", "posix", str(data)],
            Path(root, "log"), keys,
        ) as port:  # fmt: skip
            yield VersityGateway(port)
