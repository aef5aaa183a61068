"""HDFS without a server: URLs, settings, and which failures of its client may pass."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from spark_cec.adapters import hdfs_storage
from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.adapters.hadoop_settings import use_settings
from spark_cec.errors import LogLocationError

HA = {
    "dfs.nameservices": "shop",
    "dfs.ha.namenodes.shop": "a,b",
    "dfs.namenode.rpc-address.shop.a": "one:8020",
    "dfs.namenode.rpc-address.shop.b": "two:8020",
    "dfs.client.failover.proxy.provider.shop": "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider",
}


class Client:
    """Takes URLs as hdfs-native does; asks nothing."""

    made: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def __init__(self, url: str, config: dict[str, str]) -> None:
        name = url.removesuffix("/").rpartition("/")[2]
        if not name or (url.startswith("hdfs") and ":" not in name and f"dfs.ha.namenodes.{name}" not in config):
            raise RuntimeError('InvalidArgument("No NameNode hosts found")')
        Client.made.append((url, config))


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "hdfs_native", SimpleNamespace(Client=Client))
    monkeypatch.setattr(hdfs_storage, "_clients", {})
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.delenv("SPARK_USER", raising=False)
    Client.made.clear()
    yield
    use_settings({})


@pytest.mark.parametrize(
    ("url", "settings", "made"),
    [
        ("hdfs://host:9000/x", {}, "hdfs://host:9000/"),
        ("hdfs://host/x", {}, "hdfs://host:8020/"),
        ("hdfs://shop/x", HA, "hdfs://shop/"),
        ("hdfs://alone/x", {"dfs.namenode.rpc-address.alone": "host:9000"}, "hdfs://host:9000/"),
        ("hdfs:/x", {"fs.defaultFS": "hdfs://host:9000/"}, "hdfs://host:9000/"),
        ("hdfs:///x", {**HA, "fs.defaultFS": "hdfs://shop"}, "hdfs://shop/"),
        ("viewfs:///x", {"fs.defaultFS": "viewfs://all"}, "viewfs://all/"),
    ],
)
def test_a_url_leads_to_a_cluster(url: str, settings: dict[str, str], made: str) -> None:
    use_settings(settings)
    open_storage(url)
    open_storage(f"{url}/deeper")
    assert [each for each, _ in Client.made] == [made], "storages share a client"


def test_observers_and_pauses_of_the_client_are_turned_off() -> None:
    """An observer may not know yet of a file that another client has created."""
    use_settings({**HA, "dfs.client.failover.max.attempts": "15", "dfs.data.transfer.protection": " "})
    open_storage("hdfs://shop/x")
    ((_, config),) = Client.made
    assert config["dfs.client.failover.proxy.provider.shop"].endswith(".ConfiguredFailoverProxyProvider")
    assert config["dfs.client.failover.max.attempts"] == "1"
    assert "dfs.data.transfer.protection" not in config, "the client would take an empty value for a setting"


def test_links_to_hosts_without_a_port_get_it() -> None:
    link = "fs.viewfs.mounttable.all.link"
    use_settings({**HA, f"{link}./a": "hdfs://host/a", f"{link}./b": "hdfs://shop/b", f"{link}Fallback": "hdfs://h:1/"})
    open_storage("viewfs://all/x")
    ((_, config),) = Client.made
    assert [config[f"{link}{end}"] for end in ("./a", "./b", "Fallback")] == [
        *("hdfs://host:8020/a", "hdfs://shop/b", "hdfs://h:1/"),
    ]  # fmt: skip


@pytest.mark.parametrize("url", ["hdfs:/x", "hdfs:///x", "viewfs:///x"])
def test_a_url_without_a_cluster_says_what_to_set(url: str) -> None:
    use_settings({"fs.defaultFS": "file:///"})
    with pytest.raises(LogLocationError, match=r"No NameNode hosts found; set fs\..*HADOOP_CONF_DIR"):
        open_storage(url)


def test_one_place_in_several_spellings() -> None:
    use_settings({"fs.defaultFS": "hdfs://host:9000"})
    assert same_place("hdfs:/a/b", "hdfs://host:9000/a/b/") and not same_place("hdfs:/a/b", "hdfs:/a/c")
    assert not same_place("hdfs://host:9000/a", "/a")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(LogLocationError, match=r"pip install 'spark-cec\[hdfs\]'"):
        open_storage("hdfs://host:9000/x")


@pytest.mark.parametrize(
    ("authentication", "known", "user"),
    [("simple", None, "shop"), ("simple", "other", "other"), ("kerberos", None, None)],
)
def test_without_kerberos_the_agent_acts_for_the_user_of_spark(
    authentication: str, known: str | None, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_USER", "shop")
    monkeypatch.setenv("HADOOP_USER_NAME", "")  # so that it is put back
    monkeypatch.delenv("HADOOP_USER_NAME")
    if known is not None:
        monkeypatch.setenv("HADOOP_USER_NAME", known)
    use_settings({"hadoop.security.authentication": authentication})
    open_storage("hdfs://host:9000/x")
    assert os.environ.get("HADOOP_USER_NAME") == user


def rpc(exception: str, said: str) -> RuntimeError:
    return RuntimeError(f'RPCError("{exception}", "{said}\\n\\tat org.apache.hadoop.X.y(X.java:1)")')


@pytest.mark.parametrize(
    ("error", "number", "said", "passes"),
    [
        (OSError("Connection refused (os error 111)"), errno.ECONNREFUSED, "Connection refused (os error 111)", True),
        (FileNotFoundError("/x"), errno.ENOENT, "/x", False),
        (
            rpc("org.apache.hadoop.security.AccessControlException", 'Permission denied: inode=\\"/b\\"'),
            *(errno.EACCES, 'AccessControlException: Permission denied: inode="/b"', False),
        ),
        (
            rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create file/x."),
            *(errno.EAGAIN, "SafeModeException: Cannot create file/x.", True),
        ),
        (
            rpc("java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes."),
            *(errno.EIO, "IOException: File /x could only be written to 0 of the 1 minReplication nodes.", True),
        ),
        (rpc("java.io.IOException", "another"), errno.EIO, "IOException: another", False),
        (RuntimeError('DataTransferError("gone")'), errno.EIO, "DataTransferError: gone", True),
        (RuntimeError("NoSASLMechanism"), errno.EACCES, "NoSASLMechanism: NoSASLMechanism", False),
        (RuntimeError("GSSAPIError(Failure, 7, \"no ticket\")"), errno.EACCES, None, False),
        (NotImplementedError("File encryption"), errno.ENOTSUP, "File encryption", False),
    ],
)  # fmt: skip
def test_failures(error: Any, number: int, said: str | None, passes: bool) -> None:
    assert (hdfs_storage._number_of(error), hdfs_storage._may_pass(error)) == (number, passes)
    assert said is None or hdfs_storage._explain(error) == said
