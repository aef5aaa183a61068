"""Hadoop's settings for object stores and HDFS, as fsspec's file systems and the client of HDFS take them.

Spark keeps credentials and endpoints in its Hadoop configuration (`spark.hadoop.fs.s3a.…`). The shim sends the settings
of `KEYS` to the agent when it starts it, over the agent's standard input, because they may be secrets. A store whose
settings say nothing of credentials uses the default chain of its own client: environment, files, the machine's role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from spark_cec.adapters.retries import DEFAULT_RETRY_S
from spark_cec.adapters.s3_keys import NAMES, S3A, Get, Plan, options_of, plan_keys
from spark_cec.errors import LogLocationError
from spark_cec.settings import PREFIX, duration_ms

_CREDENTIAL_FILES = ("hadoop.security.credential.provider.path", S3A + "security.credential.provider.path")
"""Where Hadoop's credential files are: the shim sends their keys again when they change."""

KEYS = (
    *(S3A + each for each in NAMES),
    *(S3A + each for each in ("endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled")),
    *_CREDENTIAL_FILES,
    "fs.gs.auth.service.account.json.keyfile",
    "fs.gs.project.id",
    "fs.gs.storage.root.url",
)
"""The settings that have a meaning here.

Those of S3 may be given for one bucket: `fs.s3a.bucket.NAME.endpoint`. That of Azure names an account:
`fs.azure.account.key.ACCOUNT.dfs.core.windows.net`.
"""

_HDFS = (
    *("fs.defaultFS", "fs.permissions.umask-mode", "hadoop.security.authentication", "dfs.nameservices"),
    *("dfs.client.use.datanode.hostname", "dfs.client.socket-timeout", "dfs.data.transfer.protection"),
    *("dfs.replication", "dfs.user.home.dir.prefix"),
)
_HDFS_PREFIXES = (
    *("fs.viewfs.mounttable.", "dfs.ha.namenodes.", "dfs.namenode.rpc-address.", "dfs.client.failover."),
    "dfs.client.block.write.replace-datanode-on-failure.",
)
"""The settings of HDFS that the agent's client of it knows, whole or by their beginnings."""

_PREFIXES = (S3A + "bucket.", "fs.azure.account.key.", PREFIX + "storage.", *_HDFS_PREFIXES)

_RETRY = "storage.retry"

_settings: dict[str, str] = {}


def use_settings(settings: Mapping[str, str]) -> None:
    """Makes these settings those of this process; only those of `KEYS`, of buckets, accounts and HDFS count."""
    global _settings  # a thread that reads meanwhile has the old ones or the new ones
    known = {*KEYS, *_HDFS}
    _settings = {key: value for key, value in settings.items() if key in known or key.startswith(_PREFIXES)}


def read_hadoop_files(directory: Path) -> dict[str, str]:
    """The settings of `core-site.xml` and `hdfs-site.xml` of a directory (`HADOOP_CONF_DIR`), as Hadoop reads them.

    A value with a reference (`${…}`) is left out. Raises `LogLocationError` for a file that is no XML.
    """
    found: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml"):
        path = directory / name
        try:
            root = ElementTree.parse(path).getroot()
        except FileNotFoundError:
            continue
        except ElementTree.ParseError as error:
            mend = "correct it, or unset HADOOP_CONF_DIR"
            raise LogLocationError(str(path), f"it is no XML ({error}): {mend}") from error
        for each in root.iter("property"):
            key, value = each.findtext("name"), each.findtext("value")
            if key and value and "${" not in value:
                found[key.strip()] = value.strip()
    return found


def find_retry_s() -> float:
    """How long a request to an object store or HDFS is repeated, in seconds: the setting `cec.storage.retry`."""
    given = _settings.get(PREFIX + _RETRY)
    return DEFAULT_RETRY_S if given is None else duration_ms(_RETRY, given) / 1000.0


def find_hdfs() -> dict[str, str]:
    """The settings of HDFS. Hadoop's defaults have empty values, which the client would take for settings."""
    known = {key: value.strip() for key, value in _settings.items() if key in _HDFS or key.startswith(_HDFS_PREFIXES)}
    return {key: value for key, value in known.items() if value}


def find_options(protocol: str, url: str) -> dict[str, Any]:
    """The options for the file system of a URL (fsspec's protocol `s3`, `gs` or `abfs`); empty without settings."""
    find = _FINDERS.get(protocol)
    return {} if find is None or not _settings else find(url, _settings)


def name_given_keys(protocol: str, url: str) -> str | None:
    """The setting that has the keys for a URL, if they are there and nothing renews them; None otherwise."""
    if protocol == "abfs":
        host = _azure_host(url)
        return f"fs.azure.account.key.{host}" if f"fs.azure.account.key.{host}" in _settings else None
    if protocol != "s3" or any(_settings.get(each, "").strip() for each in _CREDENTIAL_FILES):
        return None
    plan = _plan_s3(url, _settings)
    return S3A + "access.key" if plan is not None and plan.is_given else None


def _getter(url: str, settings: Mapping[str, str]) -> Get:
    bucket = url.partition("://")[2].partition("/")[0]

    def get(name: str) -> str | None:
        value = settings.get(f"{S3A}bucket.{bucket}.{name}", settings.get(S3A + name, ""))
        return value.strip() or None

    return get


def _plan_s3(url: str, settings: Mapping[str, str]) -> Plan | None:
    return plan_keys(url, _getter(url, settings))


def _find_s3(url: str, settings: Mapping[str, str]) -> dict[str, Any]:
    get, options = _getter(url, settings), options_of(_plan_s3(url, settings), url)
    if (endpoint := get("endpoint")) is not None:
        scheme = "http" if (get("connection.ssl.enabled") or "true").lower() == "false" else "https"
        options["endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if (region := get("endpoint.region")) is not None:
        options["client_kwargs"] = {"region_name": region}
    if (get("path.style.access") or "").lower() == "true":
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options


def _find_gs(url: str, settings: Mapping[str, str]) -> dict[str, Any]:
    known = {
        "token": settings.get("fs.gs.auth.service.account.json.keyfile"),
        "project": settings.get("fs.gs.project.id"),
        "endpoint_url": settings.get("fs.gs.storage.root.url"),
    }
    return {name: value for name, value in known.items() if value}


def _find_azure(url: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """`abfss://container@account.dfs.core.windows.net/path`, the only form in which Hadoop names an account."""
    host = _azure_host(url)
    key = settings.get(f"fs.azure.account.key.{host}")
    return {"account_name": host.partition(".")[0], "account_key": key} if key else {}


def _azure_host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


_FINDERS: dict[str, Callable[[str, Mapping[str, str]], dict[str, Any]]] = {
    "s3": _find_s3, "gs": _find_gs, "gcs": _find_gs, "abfs": _find_azure,
}  # fmt: skip
