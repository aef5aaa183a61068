"""HDFS without a server: URLs, settings, and which failures of its client may pass."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from spark_cec.adapters import hdfs_client, hdfs_storage
from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.adapters.hadoop_settings import use_settings
from spark_cec.adapters.hdfs_client import HdfsClient
from spark_cec.errors import Fenced, LogLocationError, NoAnswer, mend_of

RETRY = "spark.sql.streaming.stateStore.cec.storage.retry"

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
        self.config = config
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


VIEW = {
    **HA,
    "fs.defaultFS": "hdfs://host:9000",
    "fs.viewfs.mounttable.all.link./a": "hdfs://shop/under/a",
    "fs.viewfs.mounttable.all.link./a/b": "hdfs://host/b",
    "fs.viewfs.mounttable.all.link./root": "hdfs://host:9000/",
    "fs.viewfs.mounttable.all.link./strange": "hdfs://host:9000/a b%20c",
    "fs.viewfs.mounttable.all.link./disk": "file:///a",
    "fs.viewfs.mounttable.all.linkFallback": "hdfs://shop/rest",
}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("hdfs:/a/b", "hdfs://host:9000/a/b/", True),
        ("hdfs:/a/b", "hdfs:/a/c", False),
        ("hdfs://host:9000/a", "/a", False),
        ("hdfs://host/a", "hdfs://host:8020/a", True),
        ("hdfs://host/a", "hdfs://host:9000/a", False),
        ("hdfs://shop/a", "hdfs://one:8020/a", True),
        ("hdfs://shop/a", "hdfs://two/a", True),
        ("hdfs://shop/a", "hdfs://three:8020/a", False),
        ("viewfs://all/a/x", "hdfs://shop/under/a/x", True),
        ("viewfs://all/a", "hdfs://one/under/a/", True),
        ("viewfs://all/a/b/x", "hdfs://host:8020/b/x", True),
        ("viewfs://all/a/b/x", "hdfs://shop/under/a/b/x", False),
        ("viewfs://all/ab", "hdfs://shop/under/ab", False),
        ("viewfs://all/ab", "hdfs://shop/rest/ab", True),
        ("viewfs://all/root/x", "hdfs:/x", True),
        ("viewfs://all/strange/x", "hdfs:/a b%20c/x", False),
        ("viewfs://all/disk/x", "hdfs://shop/disk/x", False),
        ("viewfs://other/a", "hdfs://shop/under/a", False),
    ],
)
def test_a_directory_is_one_place_under_all_its_names(one: str, other: str, same: bool) -> None:
    """A query whose log was recorded under one of them starts under another one."""
    use_settings(VIEW)
    assert same_place(one, other) is same and same_place(other, one) is same


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a name node that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield f"hdfs://127.0.0.1:{server.getsockname()[1]}/log"
        server.shutdown(socket.SHUT_RDWR)
        for each in taken:
            each.close()


@pytest.mark.parametrize("call", ["read", "size", "list", "exists", "delete", "create", "replace"])
def test_a_name_node_that_never_answers_is_not_waited_for_without_end(
    call: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hdfs_native")
    pytest.importorskip("hdfs_native", reason="hdfs-native is not installed: pip install 'spark-cec[hdfs]'")
    monkeypatch.setattr(hdfs_storage, "LEAST_S", 0.5)
    use_settings({RETRY: "500ms"})
    storage = open_storage(silent)
    began = time.monotonic()
    with pytest.raises(NoAnswer, match="no answer within") as failed:
        getattr(storage, call)("x", *([b"1"] if call in ("create", "replace") else []))
    assert time.monotonic() - began < 10 and failed.value.errno == errno.ETIMEDOUT
    assert failed.value.filename == f"{silent}/x"
    assert mend_of(failed.value) == "the storage did not answer in time: see to it, and start the query again"


class Late:
    """Answers only when it is told to."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def get_file_info(self, path: str) -> Any:
        assert self.may_answer.wait(60)
        return SimpleNamespace(isdir=False, length=7)


def test_after_a_call_without_an_answer_the_next_one_has_a_new_connection() -> None:
    made: list[Late] = []

    def make(before: int) -> Late:
        assert before == len(made)
        made.append(Late())
        return made[-1]

    client = HdfsClient(make, lambda: 0.2)
    with pytest.raises(TimeoutError, match="no answer within"):
        client.get_file_info("/x")
    made[1].may_answer.set()
    assert client.get_file_info("/x").length == 7 and len(made) == 2
    made[0].may_answer.set()


def test_after_a_silent_name_node_another_one_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks the first name node of its list, and waits for it without end."""
    over = threading.Event()

    def get_file_info(self: Client, path: str) -> Any:
        if self.config["dfs.ha.namenodes.shop"].startswith("a"):
            over.wait(60)
        return SimpleNamespace(isdir=False, length=7)

    monkeypatch.setattr(Client, "get_file_info", get_file_info, raising=False)
    monkeypatch.setattr(hdfs_storage, "LEAST_S", 0.2)
    use_settings({**HA, RETRY: "200ms"})
    assert open_storage("hdfs://shop/log").size("x") == 7, "the call is repeated, in time"
    assert [config["dfs.ha.namenodes.shop"] for _, config in Client.made] == ["a,b", "b,a"]
    over.set()


def test_an_answer_that_comes_late_and_in_time_is_taken() -> None:
    late = Late()
    client = HdfsClient(lambda _: late, lambda: 30.0)
    threading.Timer(0.3, late.may_answer.set).start()
    assert client.get_file_info("/x").length == 7


def test_calls_that_wait_for_a_silent_name_node_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a thread. The threads end when the name node answers or its connection breaks."""
    monkeypatch.setattr(hdfs_client, "_MOST_LEFT", 3)
    late = Late()
    client = HdfsClient(lambda _: late, lambda: 0.05)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="no answer within"):
            client.get_file_info("/x")
    with pytest.raises(TimeoutError, match="3 calls have no answer yet"):
        client.get_file_info("/x")
    late.may_answer.set()
    until = time.monotonic() + 10
    while client._left and time.monotonic() < until:
        time.sleep(0.01)
    assert client.get_file_info("/x").length == 7


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


def test_a_call_is_repeated_only_if_its_caller_still_may(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        asked.append("the name node")
        raise OSError("Connection refused (os error 111)")

    def confirm() -> None:
        asked.append("the lease")
        if len(asked) > 3:
            raise Fenced("another run has it")

    monkeypatch.setattr(HdfsClient, "read", refuse)
    with pytest.raises(Fenced, match="another run has it"):
        open_storage("hdfs://host:9000/x", confirm=confirm).read("y")
    assert asked == ["the name node", "the lease"] * 2


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
