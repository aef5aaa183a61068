"""The storage contract on an HDFS (Hadoop's `MiniDFSCluster`, on loopback), through hdfs-native."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from cec_it.checkpoints import settings_of
from cec_it.mini_hdfs import MiniHdfs, run_hdfs
from spark_cec.adapters import hdfs_client, hdfs_storage
from spark_cec.adapters.fsspec_storage import is_taken, open_storage, remove_all, same_place
from spark_cec.agent.lease import has_leases, is_held
from spark_cec.agent.object_lease import ObjectLease, Timing
from spark_cec.agent.owner import claim_log, owns, refuse_taken_over_log
from spark_cec.errors import AlreadyExists, Fenced, LogLocationError, NoAnswer
from spark_cec.log.storage import Storage, StoredFile
from tests.log.storage_contract import StorageContract

hdfs_native = pytest.importorskip("hdfs_native", reason="hdfs-native is not installed: pip install 'spark-cec[hdfs]'")

RETRY = "spark.sql.streaming.stateStore.cec.storage.retry"


@pytest.fixture(scope="module")
def server() -> Iterator[MiniHdfs]:
    with run_hdfs() as running:
        yield running


@pytest.fixture
def place(server: MiniHdfs) -> str:
    return f"{server.url}/tests/{uuid.uuid4().hex}/a query with%20signs"


@pytest.fixture
def storage(place: str) -> Storage:
    return open_storage(place)


class TestHdfs(StorageContract):
    @pytest.fixture
    def storage(self, place: str) -> Storage:
        return open_storage(place)


class TestViewFs(StorageContract):
    @pytest.fixture
    def storage(self, server: MiniHdfs) -> Iterator[Storage]:
        table = "fs.viewfs.mounttable.all."
        links = {table + "link./view": f"{server.url}/mounted", table + "linkFallback": f"{server.url}/fallback"}
        with settings_of(links):
            yield open_storage(f"viewfs://all/view/{uuid.uuid4().hex}")


def all_names(place: str) -> list[str]:
    """Every file below a place, the hidden ones too."""
    url, _, path = place.removeprefix("hdfs://").partition("/")
    found = hdfs_native.Client(f"hdfs://{url}").list_status(f"/{path}", True)
    return [each.path.rsplit("/", 1)[-1] for each in found if not each.isdir]


def hidden_names(place: str) -> list[str]:
    return [name for name in all_names(place) if name.startswith(".")]


@pytest.mark.parametrize("creators", [8, 16])
def test_of_many_clients_one_creates_a_file(creators: int, place: str) -> None:
    """Each has a client of its own, as agents of several machines have."""
    rivals = []
    for _ in range(creators):
        hdfs_storage._clients.clear()
        rivals.append(open_storage(place))
    start = threading.Barrier(creators)

    def attempt(number: int) -> bool:
        start.wait()
        with suppress(AlreadyExists):
            rivals[number].create("d/x", b"%04d" % number * 1000)
            return True
        return False

    for _ in range(3):
        with ThreadPoolExecutor(creators) as pool:
            won = [number for number, first in enumerate(pool.map(attempt, range(creators))) if first]
        assert len(won) == 1 and rivals[0].read("d/x") == b"%04d" % won[0] * 1000
        assert all_names(place) == ["x"]
        rivals[0].delete("d/x")


class LosingClient:
    """A client whose answers to a method get lost. `times`: how often; `done`: whether the call was obeyed."""

    def __init__(self, inner: Any, method: str, *, done: bool, times: int = 1) -> None:
        self._inner = inner
        self._method = method
        self._done = done
        self.left = times

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name != self._method:
            return call

        def losing(*given: Any) -> Any:
            if not self.left:
                return call(*given)
            self.left -= 1
            if self._done:
                call(*given)
            raise OSError("Connection reset by peer (os error 104)")

        return losing


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("method", ["rename", "create"])
@pytest.mark.parametrize("call", ["create", "replace"])
def test_a_write_whose_answer_was_lost_has_succeeded_once(
    call: str, method: str, done: bool, storage: Any, place: str
) -> None:
    storage._client._inner = losing = LosingClient(storage._client._inner, method, done=done)
    getattr(storage, call)("d/x", b"mine")
    assert losing.left == 0 and storage.read("d/x") == b"mine" and all_names(place) == ["x"]
    with pytest.raises(AlreadyExists):
        storage.create("d/x", b"mine")
    assert all_names(place) == ["x"]


def test_a_lost_answer_to_a_refused_rename_is_no_success(storage: Any, place: str) -> None:
    """Another writer's bytes may be equal: those of Spark's commit log are."""
    open_storage(place).create("commits/7", b"v1")
    storage._client._inner = LosingClient(storage._client._inner, "rename", done=False)
    with pytest.raises(AlreadyExists):
        storage.create("commits/7", b"v1")
    assert all_names(place) == ["7"]


def test_a_hidden_file_that_could_not_be_deleted_goes_with_the_next_write(storage: Any, place: str) -> None:
    """As in a restart: the name node takes neither the rename nor the deletion after it."""
    renaming = LosingClient(storage._client._inner, "rename", done=False, times=10**6)
    storage._client._inner = deleting = LosingClient(renaming, "delete", done=False)
    with settings_of({RETRY: "10ms"}), pytest.raises(OSError, match="reset"):
        storage.create("d/x", b"1")
    assert deleting.left == 0 and len(hidden_names(place)) == 1
    renaming.left = 0
    storage.create("d/y", b"1")
    assert all_names(place) == ["y"]


def test_a_file_whose_directory_was_removed_meanwhile_is_written_anew(storage: Any, place: str) -> None:
    rename, calls = storage._client.rename, []

    class Removing:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def rename(self, *given: Any) -> None:
            if not calls:
                remove_all(place)
            calls.append(given)
            rename(*given)

    inner, storage._client = storage._client, Removing()
    storage.create("d/x", b"1")
    assert len(calls) == 2 and storage.read("d/x") == b"1"


def test_a_killed_writer_leaves_nothing_that_is_listed(place: str) -> None:
    """Of what it created each file is whole."""
    size = 6 * 200_000
    for _ in range(3):
        command = [sys.executable, "-m", "cec_it.hdfs_writer", place, str(size)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.read(3)
        time.sleep(0.1)
        writer.kill()
        writer.wait()
        storage = open_storage(place)
        files = storage.list("d")
        assert files and all(file.size == size for file in files)
        assert storage.read(f"d/{files[-1].name}") == files[-1].name.encode() * (size // 6)
        storage.delete_all([f"d/{file.name}" for file in files])
    assert hidden_names(place), "the kill came in the middle of a write"


def test_a_start_removes_what_writers_left_a_day_ago(
    storage: Storage, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hdfs_native.Client(place.partition("/tests/")[0])
    directory = "/tests/" + place.partition("/tests/")[2]
    names = (".x.0123456789abcdef", ".5.a-b.tmp", "kept")
    for name in names:
        client.create(f"{directory}/d/{name}").close()
    storage.probe_writable()
    assert sorted(all_names(place)) == sorted(names), "a young file may have a living writer"
    monkeypatch.setattr(hdfs_storage, "_LEFT_AFTER_S", -60.0)
    storage.probe_writable()
    assert sorted(all_names(place)) == [".5.a-b.tmp", "kept"]


def test_readers_see_old_bytes_or_new_ones_and_never_a_part(storage: Storage) -> None:
    over = threading.Event()
    seen: set[int] = set()
    problems: list[str] = []

    def read() -> None:
        while not over.is_set():
            data = storage.read("d/x")
            seen.add(data[0])
            if data != data[:1] * 300_000:
                problems.append(f"{len(data)} bytes, {set(data)}")
            if storage.list("d") != [StoredFile("x", 300_000)]:
                problems.append(str(storage.list("d")))

    storage.create("d/x", b"\x00" * 300_000)
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 12):
        storage.replace("d/x", bytes([number]) * 300_000)
    over.set()
    reader.join(60)
    assert problems == [] and len(seen) > 3


def test_a_file_that_another_client_has_open_is_not_seen(storage: Storage, place: str) -> None:
    """Why nothing is appended: a reader would see 0 bytes of it."""
    client = hdfs_native.Client(place.partition("/tests/")[0])
    path = "/tests/" + place.partition("/tests/")[2] + "/open"
    writer = client.create(path)
    writer.write(b"123")
    assert storage.read("open") == b""
    writer.close()
    assert storage.read("open") == b"123"


@pytest.mark.parametrize(
    ("call", "number"),
    [
        (lambda storage: storage.read("no"), errno.ENOENT),
        (lambda storage: storage.size("no"), errno.ENOENT),
        (lambda storage: storage.sync("no"), errno.ENOENT),
        (lambda storage: storage.size("d"), errno.EISDIR),
        (lambda storage: storage.create("d/x/no", b"1"), errno.ENOTDIR),
        (lambda storage: storage.replace("d", b"1"), errno.EISDIR),
        (lambda storage: storage.create("a:b", b"1"), errno.EINVAL),
        (lambda storage: storage.delete("d"), errno.ENOTEMPTY),
        (lambda storage: storage.append_to_new("s"), errno.ENOTSUP),
    ],
)
def test_errors_name_the_file_and_have_a_number(
    call: Callable[[Storage], object], number: int, storage: Storage, place: str
) -> None:
    storage.create("d/x", b"1")
    with pytest.raises(OSError) as failed:
        call(storage)
    assert failed.value.errno == number, repr(failed.value)
    assert failed.value.filename.startswith(f"{place}/")
    assert "\tat " not in str(failed.value) and "\\n" not in str(failed.value)
    assert all_names(place) == ["x"]


def test_a_user_without_rights_and_a_full_quota(
    server: MiniHdfs, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_storage(place).create("d/x", b"1")
    with monkeypatch.context() as other:
        other.setenv("HADOOP_USER_NAME", "alice")
        other.setattr(hdfs_storage, "_clients", {})
        with pytest.raises(PermissionError, match="user=alice"):
            open_storage(place).create("d/y", b"1")
        with pytest.raises(LogLocationError, match="cannot be written: no permission"):
            open_storage(place).probe_writable()
    path = f"{server.url}/quota"
    open_storage(path).create("x", b"1")
    server.order("quota 3 /quota")
    with pytest.raises(OSError) as failed:
        open_storage(path).create("d/y", b"1")
    assert failed.value.errno == errno.EDQUOT


def test_a_name_node_in_safe_mode_is_waited_for(server: MiniHdfs, storage: Storage) -> None:
    server.order("safe-mode on")
    left = threading.Timer(1.5, lambda: server.order("safe-mode off"))
    left.start()
    began = time.monotonic()
    storage.create("x", b"1")
    assert time.monotonic() - began > 1 and storage.read("x") == b"1"
    left.join()


def test_repeating_ends_in_time(server: MiniHdfs, place: str) -> None:
    server.order("safe-mode on")
    try:
        with settings_of({RETRY: "700ms"}):
            began = time.monotonic()
            with pytest.raises(OSError, match="is in safe mode") as failed:
                open_storage(place).create("x", b"1")
            assert time.monotonic() - began < 5 and failed.value.filename == f"{place}/x"
    finally:
        server.order("safe-mode off")
    with settings_of({RETRY: "700ms"}):
        began = time.monotonic()
        with pytest.raises(OSError, match="refused") as failed:
            open_storage("hdfs://127.0.0.1:1/x").read("y")
        assert time.monotonic() - began < 10 and failed.value.filename == "hdfs://127.0.0.1:1/x/y"


def test_a_name_node_that_answers_after_a_while_is_waited_for(server: MiniHdfs, storage: Storage, place: str) -> None:
    storage.create("x", b"1")
    with ThreadPoolExecutor(2) as pool, server.paused():
        reading, writing = pool.submit(storage.read, "x"), pool.submit(storage.create, "y", b"2")
        time.sleep(2)
        assert not reading.done() and not writing.done()
        os.kill(server.process.pid, signal.SIGCONT)
        assert reading.result(60) == b"1" and writing.result(60) is None
    assert all_names(place) == ["x", "y"]


def test_a_name_node_that_was_silent_for_too_long_is_asked_again_later(
    server: MiniHdfs, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_storage, "LEAST_S", 1.0)
    with settings_of({RETRY: "1s"}):
        storage = open_storage(place)
        storage.create("x", b"1")
        with server.paused():
            began = time.monotonic()
            for call in (lambda: storage.read("x"), lambda: storage.create("y", b"2"), lambda: storage.list("")):
                with pytest.raises(NoAnswer, match="no answer within 1 s"):
                    call()
            assert time.monotonic() - began < 30
    storage.create("y", b"3")
    assert storage.read("x") == b"1" and storage.read("y") == b"3"


def test_a_file_of_several_pieces_is_written_and_read_whole(storage: Storage) -> None:
    piece, content = hdfs_client._PIECE_BYTES, os.urandom(2 * hdfs_client._PIECE_BYTES + 3)
    storage.create("x", content)
    assert storage.read("x") == content and storage.size("x") == len(content)
    assert storage.read("x", piece - 1, piece + 2) == content[piece - 1 : 2 * piece + 1]
    assert storage.read("x", 2 * piece) == content[2 * piece :]


def test_a_restart_of_the_name_node_is_waited_for(server: MiniHdfs, storage: Storage, place: str) -> None:
    storage.create("x", b"1")
    done = threading.Thread(target=server.order, args=("restart",))
    done.start()
    for number in range(10):
        storage.create(f"d/{number}", b"1")
        storage.replace("x", b"%d" % number)
    done.join()
    assert storage.read("x") == b"9" and len(storage.list("d")) == 10 and hidden_names(place) == []


def test_the_default_file_system_is_that_of_the_settings(server: MiniHdfs, place: str) -> None:
    path = "/tests/" + place.partition("/tests/")[2]
    open_storage(place).create("x", b"1")
    with settings_of({"fs.defaultFS": server.url}):
        assert open_storage(f"hdfs://{path}").read("x") == open_storage(f"hdfs:{path}").read("x") == b"1"
        assert same_place(f"hdfs:{path}", place + "/") and not same_place(f"hdfs:{path}", path)
    with settings_of({"fs.defaultFS": "file:///"}), pytest.raises(LogLocationError, match=r"set fs\.defaultFS"):
        open_storage(f"hdfs://{path}")


def test_what_is_at_a_place_is_seen_and_removed_whole(storage: Storage, place: str) -> None:
    assert not is_taken(place)
    remove_all(place)
    storage.create("d/x", b"1")
    assert is_taken(place)
    remove_all(place)
    assert not is_taken(place) and storage.list("d") == []


def test_files_have_the_rights_and_copies_of_the_settings(server: MiniHdfs, place: str) -> None:
    with settings_of({"fs.permissions.umask-mode": "027", "dfs.replication": "2"}):
        open_storage(place).create("x", b"1")
    with settings_of({"fs.permissions.umask-mode": "u=rwx"}), pytest.raises(LogLocationError, match="octal digits"):
        open_storage(place)
    status = hdfs_native.Client(server.url).get_file_info("/tests/" + place.partition("/tests/")[2] + "/x")
    assert (status.permission, status.replication) == (0o640, 2)


def test_leases(storage: Storage) -> None:
    assert has_leases(storage)
    timing = Timing(beat_s=0.5, valid_s=3.0, silent_s=4.0, poll_s=0.2, patience_s=2.0)
    first = ObjectLease(storage, "the query q", timing)
    first.take(time.monotonic() + 5)
    with pytest.raises(Fenced, match="the query q is running already"):
        ObjectLease(storage, "the query q", timing).take(time.monotonic() + 30)
    first.confirm()
    assert is_held(storage)
    first.release()
    began = time.monotonic()
    second = ObjectLease(storage, "the query q", timing)
    second.take(time.monotonic() + 5)
    assert time.monotonic() - began < 4 and [each.name for each in storage.list("lease")] == ["0000000002.json"]
    second.release()


HOLDER = """
import sys, time
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.object_lease import ObjectLease
ObjectLease(open_storage(sys.argv[1]), "the query q").take(time.monotonic() + 60)
print("taken", flush=True)
time.sleep(600)
"""


def test_the_lease_of_a_killed_holder_of_this_machine_is_taken_at_once(storage: Storage, place: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
    holder.kill()
    holder.wait()
    began = time.monotonic()
    lease = ObjectLease(storage, "the query q")
    lease.take(time.monotonic() + 5)
    assert time.monotonic() - began < 5
    lease.release()


def test_a_pair_of_name_nodes_fails_over_during_writes() -> None:
    with run_hdfs(name_nodes=2) as pair, settings_of(pair.settings()):
        storage = open_storage(f"{pair.url}/tests/ha")
        storage.create("x", b"0")
        done = threading.Thread(target=lambda: (pair.order("standby 0"), time.sleep(2), pair.order("activate 1")))
        done.start()
        for number in range(10):
            storage.create(f"d/{number}", b"1")
            storage.replace("x", b"%d" % number)
        done.join()
        assert storage.read("x") == b"9" and len(storage.list("d")) == 10


def test_a_log_belongs_to_its_query_under_all_names_of_the_directory(server: MiniHdfs) -> None:
    place, view, table = f"{server.url}/tests/{uuid.uuid4().hex}", "viewfs://all/view", "fs.viewfs.mounttable.all."
    with settings_of({table + "link./view": place, table + "linkFallback": f"{server.url}/fallback"}):
        for directory in ("log a", "log%20b"):
            open_storage(f"{place}/{directory}").create("x", directory.encode())
            assert open_storage(f"{view}/{directory}").read("x") == directory.encode()
            assert same_place(f"{view}/{directory}", f"{place}/{directory}")
        claim_log(f"{place}/checkpoint", f"{place}/log")
        assert owns(f"{view}/checkpoint", f"{view}/log") and not owns(f"{view}/copy", f"{view}/log")
        refuse_taken_over_log(f"{view}/checkpoint", f"{view}/log")
        with pytest.raises(Fenced, match="belongs to the checkpoint"):
            refuse_taken_over_log(f"{view}/copy", f"{view}/log")
