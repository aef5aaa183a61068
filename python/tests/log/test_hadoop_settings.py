"""Hadoop's settings for object stores, as fsspec takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cec.adapters import hadoop_settings
from spark_cec.adapters.hadoop_settings import find_options, name_given_keys, use_settings
from spark_cec.errors import LogLocationError

KEYS = {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"}
TOKEN = {**KEYS, "fs.s3a.session.token": "t"}
HADOOP = "org.apache.hadoop.fs.s3a"
SDK1, SDK2 = "com.amazonaws.auth", "software.amazon.awssdk.auth.credentials"
ANONYMOUS = f"{HADOOP}.AnonymousAWSCredentialsProvider"
ASSUMED = f"{HADOOP}.auth.AssumedRoleCredentialProvider"
HADOOPS_DEFAULT = f"""
    {HADOOP}.TemporaryAWSCredentialsProvider,
    {HADOOP}.SimpleAWSCredentialsProvider,
    {SDK2}.EnvironmentVariableCredentialsProvider,
    {HADOOP}.auth.IAMInstanceCredentialsProvider
  """
"""As `core-default.xml` of Hadoop 3.5 has it, which every JVM of Spark has read."""

PROVIDER = "fs.s3a.aws.credentials.provider"
ROLE = {**KEYS, PROVIDER: ASSUMED, "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/r"}


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
        ({"fs.s3a.aws.credentials.provider": f"{HADOOP}.TemporaryAWSCredentialsProvider,{ANONYMOUS}"}, {"anon": True}),
        ({"fs.s3a.aws.credentials.provider": HADOOPS_DEFAULT}, {}),
        ({**TOKEN, "fs.s3a.aws.credentials.provider": HADOOPS_DEFAULT}, {"key": "k", "secret": "s", "token": "t"}),
        (
            {**TOKEN, "fs.s3a.aws.credentials.provider": f"{HADOOP}.SimpleAWSCredentialsProvider"},
            {"key": "k", "secret": "s", "token": None},
        ),
        (
            {**TOKEN, "fs.s3a.aws.credentials.provider": f"{HADOOP}.TemporaryAWSCredentialsProvider"},
            {"key": "k", "secret": "s", "token": "t"},
        ),
        (
            {
                "fs.s3a.aws.credentials.provider": "com.example.Ours",
                "fs.s3a.aws.credentials.provider.mapping": f"com.example.Ours={ANONYMOUS}",
            },
            {"anon": True},
        ),
        ({"fs.s3a.aws.credentials.provider": f"{HADOOP}.Nobody", "fs.s3a.bucket.b.aws.credentials.provider": ANONYMOUS},
         {"anon": True}),
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


@pytest.mark.parametrize(
    ("names", "sources"),
    [
        (f"{SDK1}.EnvironmentVariableCredentialsProvider", ["env"]),
        (f"{SDK2}.EnvironmentVariableCredentialsProvider", ["env"]),
        (f"{HADOOP}.auth.IAMInstanceCredentialsProvider", ["container-role", "iam-role"]),
        (f"{SDK1}.InstanceProfileCredentialsProvider", ["container-role", "iam-role"]),
        (f"{SDK2}.InstanceProfileCredentialsProvider", ["iam-role"]),
        (f"{SDK2}.ContainerCredentialsProvider", ["container-role"]),
        (f"{SDK1}.WebIdentityTokenCredentialsProvider", ["assume-role-with-web-identity"]),
        (f"{SDK2}.WebIdentityTokenFileCredentialsProvider", ["assume-role-with-web-identity"]),
        (f"{SDK2}.EnvironmentVariableCredentialsProvider, {HADOOP}.SimpleAWSCredentialsProvider", ["env"]),
        (ASSUMED, ["assume-role"]),
    ],
)
def test_a_source_that_hadoop_names_is_asked_and_no_other(names: str, sources: list[str]) -> None:
    pytest.importorskip("aiobotocore")
    use_settings({PROVIDER: names, **({} if names != ASSUMED else ROLE)})
    (session,) = find_options("s3", "s3a://b/checkpoint").values()
    assert [each.METHOD for each in session.get_component("credential_provider").providers] == sources
    assert find_options("s3", "s3a://b/other")["session"] is session, "fsspec knows a file system by it"


@pytest.mark.parametrize(
    "name",
    [f"{SDK1}.profile.ProfileCredentialsProvider", f"{SDK2}.ProfileCredentialsProvider",
     f"{HADOOP}.auth.ProfileAWSCredentialsProvider"],
)  # fmt: skip
def test_a_profile_is_that_of_hadoops_settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiobotocore")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    file = tmp_path / "keys"
    file.write_text("[shop]\naws_access_key_id=of-the-file\naws_secret_access_key=s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    use_settings({PROVIDER: name, "fs.s3a.auth.profile.name": "shop", "fs.s3a.auth.profile.file": str(file)})
    session = find_options("s3", "s3a://b/x")["session"]
    assert asyncio.run(session.get_credentials()).access_key == "of-the-file"


def test_a_profile_that_is_not_there_is_named() -> None:
    pytest.importorskip("aiobotocore")
    use_settings({PROVIDER: f"{SDK2}.ProfileCredentialsProvider", "fs.s3a.auth.profile.name": "nobody"})
    with pytest.raises(LogLocationError, match=r"nobody.*could not be found: correct fs\.s3a\.auth\.profile\.name"):
        find_options("s3", "s3a://b/x")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({PROVIDER: "com.example.Ours"}, r"provider names com\.example\.Ours, which the agent cannot ask.*name one of"),
        ({PROVIDER: f"{SDK1}.SystemPropertiesCredentialsProvider"}, "SystemProperties.*cannot ask for keys"),
        ({PROVIDER: f"{HADOOP}.SimpleAWSCredentialsProvider"}, r"Simple.*fs\.s3a\.access\.key.*not set: set them"),
        ({PROVIDER: f"{SDK2}.EnvironmentVariableCredentialsProvider,{ANONYMOUS}"}, "Anonymous.*name it alone"),
        ({PROVIDER: ASSUMED, **KEYS}, r"fs\.s3a\.assumed\.role\.arn is not set"),
        ({**ROLE, "fs.s3a.assumed.role.sts.endpoint": "sts.here"}, r"'sts\.here' has no region: set .*region"),
        ({**ROLE, "fs.s3a.assumed.role.session.duration": "5m"}, "duration='5m' is not a time from 15m to 12h"),
        ({**ROLE, "fs.s3a.assumed.role.credentials.provider": ASSUMED}, r"role\.credentials\.provider names .*Assumed"),
        ({**ROLE, "fs.s3a.access.key": "", "fs.s3a.secret.key": "",
          "fs.s3a.assumed.role.credentials.provider": f"{HADOOP}.SimpleAWSCredentialsProvider"}, "finds no keys"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_asked_is_refused_by_name(settings: dict[str, str], says: str) -> None:
    use_settings(settings)
    with pytest.raises(LogLocationError, match=says) as refused:
        find_options("s3", "s3a://b/checkpoint")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, None),
        (KEYS, "fs.s3a.access.key"),
        (ROLE, "fs.s3a.access.key"),
        ({PROVIDER: f"{SDK2}.EnvironmentVariableCredentialsProvider"}, None),
        ({**KEYS, "hadoop.security.credential.provider.path": "jceks://file/keys"}, None),
        ({**KEYS, "hadoop.security.credential.provider.path": " "}, "fs.s3a.access.key"),
    ],
)
def test_keys_that_nothing_renews_are_known_by_their_setting(settings: dict[str, str], name: str | None) -> None:
    use_settings(settings)
    assert name_given_keys("s3", "s3a://b/x") == name


def test_a_plan_shows_no_secret() -> None:
    use_settings({"fs.s3a.access.key": "the-key", "fs.s3a.secret.key": "the-secret", PROVIDER: ASSUMED,
                  "fs.s3a.assumed.role.arn": "a", "fs.s3a.session.token": "the-token"})  # fmt: skip
    plan = hadoop_settings._plan_s3("s3a://b/x", hadoop_settings._settings)
    assert "the-" not in repr(plan) and "arn='a'" in repr(plan)
