"""An S3 server on loopback (moto), behind a proxy that counts, and Hadoop's S3A for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from cec_it.maven import FetchError, fetch, read_pins
from spark_cec.toolchain import spark_jars
from spark_cec_lab.storage.emulated_s3 import run_emulated_s3
from spark_cec_lab.storage.proxy import StorageProxy

PINS = Path(__file__).with_name("s3a.toml")
KEY, SECRET = "the-key", "the-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server, and the proxy before it."""

    endpoint: str
    proxy: StorageProxy

    def client(self) -> Any:
        """A client of the server that passes the proxy by."""
        return boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id="k", aws_secret_access_key="s",
            region_name="us-east-1",
        )  # fmt: skip

    def conf(self) -> dict[str, str]:
        """Spark's settings for the proxy."""
        settings = {
            "endpoint": self.proxy.url, "access.key": KEY, "secret.key": SECRET, "endpoint.region": "us-east-1",
            "path.style.access": "true",
        }  # fmt: skip
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in settings.items()}


@contextmanager
def run_server() -> Iterator[S3Server]:
    """Runs a server and a proxy before it."""
    with run_emulated_s3() as place, StorageProxy(place) as proxy:
        yield S3Server(f"http://{place}", proxy)


def fetch_s3a() -> str:
    """The jars of S3A, as `spark.jars` takes them. Skips the test for another Hadoop, or without a registry."""
    hadoop = [path.name for path in Path(spark_jars().directory).glob("hadoop-client-api-*.jar")]
    if hadoop != ["hadoop-client-api-3.5.0.jar"]:
        pytest.skip(f"the pinned S3A is for Hadoop 3.5.0, and this Spark brings {hadoop}")
    try:
        return ",".join(str(path) for path in fetch(read_pins(PINS)))
    except FetchError as error:
        pytest.skip(f"S3A cannot be fetched: {error}")
