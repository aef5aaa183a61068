"""Hadoop's settings for object stores, as fsspec takes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_cec.adapters.hadoop_settings import find_options, use_settings
from spark_cec.errors import LogLocationError

KEYS = {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    use_settings({})


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"fs.s3a.impl": "other", "fs.s3a.threads.max": "96"}, {}),
        (KEYS, {"key": "k", "secret": "s", "token": None}),
        ({**KEYS, "fs.s3a.session.token": "t"}, {"key": "k", "secret": "s", "token": "t"}),
        ({"fs.s3a.access.key": " ", "fs.s3a.secret.key": ""}, {}),
        ({"fs.s3a.endpoint": "minio:9000"}, {"endpoint_url": "https://minio:9000"}),
        (
            {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"},
            {"endpoint_url": "http://minio:9000"},
        ),
        ({"fs.s3a.endpoint": "http://minio:9000"}, {"endpoint_url": "http://minio:9000"}),
        ({"fs.s3a.endpoint.region": "eu-west-1"}, {"client_kwargs": {"region_name": "eu-west-1"}}),
        ({"fs.s3a.path.style.access": "true"}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}),
        (
            {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
            {"anon": True},
        ),
        ({"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"}, {}),
        (
            {
                "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider, "
                "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
            },
            {},
        ),
        (
            {"fs.s3a.endpoint": "http://all", "fs.s3a.bucket.b.endpoint": "http://mine"},
            {"endpoint_url": "http://mine"},
        ),
        ({"fs.s3a.bucket.other.endpoint": "http://other"}, {}),
    ],
)
def test_s3(settings: dict[str, str], options: dict[str, object]) -> None:
    use_settings(settings)
    assert find_options("s3", "s3a://b/checkpoint") == options


def test_half_a_pair_of_keys_is_named_without_its_value() -> None:
    use_settings({"fs.s3a.access.key": "AKIA-secret-name"})
    with pytest.raises(LogLocationError, match=r"fs\.s3a\.secret\.key is not set") as refused:
        find_options("s3", "s3a://b/checkpoint")
    assert "AKIA" not in str(refused.value)


def test_google_and_azure() -> None:
    use_settings({
        "fs.gs.auth.service.account.json.keyfile": "/etc/key.json", "fs.gs.project.id": "p",
        "fs.azure.account.key.shop.dfs.core.windows.net": "a",
    })
    assert find_options("gs", "gs://b/x") == {"token": "/etc/key.json", "project": "p"}
    azure = {"account_name": "shop", "account_key": "a"}
    assert find_options("abfs", "abfss://c@shop.dfs.core.windows.net/x") == azure
    assert find_options("abfs", "abfss://c@other.dfs.core.windows.net/x") == {}
    assert find_options("memory", "memory://x") == {}
