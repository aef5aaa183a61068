"""The storage contract on an S3 server (moto, in this process, on loopback), through s3fs."""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Protocol

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_cec.adapters import hadoop_settings
from spark_cec.adapters.fsspec_storage import open_storage, remove_all
from spark_cec.adapters.object_storage import ObjectStorage
from spark_cec.errors import AlreadyExists, LogLocationError, NoAnswer
from spark_cec.log.storage import Storage
from spark_cec_lab.storage import proxy
from spark_cec_lab.storage.emulated_s3 import run_emulated_s3
from spark_cec_lab.storage.proxy import StorageProxy
from tests.log.storage_contract import StorageContract
from tests.log.support import ObjectStore

pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
boto3 = pytest.importorskip("boto3")
pytest.importorskip("s3fs")


@dataclass(frozen=True)
class Server:
    """A running server, and a client of it beside s3fs."""

    endpoint: str

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
        )

    def make_bucket(self) -> str:
        name = f"b-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    known = dict(fsspec.config.conf)
    with run_emulated_s3() as place:
        fsspec.config.conf["s3"] = {
            "endpoint_url": f"http://{place}",
            "key": "k",
            "secret": "s",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        yield Server(f"http://{place}")
        fsspec.config.conf.clear()
        fsspec.config.conf.update(known)


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, server: Server) -> Storage:
        return open_storage(f"s3a://{server.make_bucket()}/a query/with%20signs")


def test_a_path_that_looks_like_a_pattern_is_none(server: Server) -> None:
    """What would match it belongs to another query."""
    bucket = server.make_bucket()
    ours, other = (open_storage(f"s3a://{bucket}/{name}/cp") for name in ("jobs[1]", "jobs1"))
    for storage in (ours, other):
        for number in range(4):
            storage.replace(f"offsets/{number}", b"x")
    ours.delete_all([f"offsets/{number}" for number in range(3)])
    assert [each.name for each in ours.list("offsets")] == ["3"]
    remove_all(ours.url)
    assert ours.list("offsets") == [] and len(other.list("offsets")) == 4


@pytest.fixture
def place(server: Server) -> str:
    return f"s3a://{server.make_bucket()}/log"


def test_a_bucket_that_is_missing_is_named_and_not_made(server: Server) -> None:
    """A typo in a URL must not make a bucket."""
    storage = open_storage("s3a://not-there/log")
    with pytest.raises(LogLocationError, match=r"s3a://not-there/log.*does not exist.*create it, or correct the URL"):
        storage.probe_writable()
    with pytest.raises(FileNotFoundError):
        storage.replace("x", b"1")
    assert "not-there" not in [each["Name"] for each in server.client.list_buckets()["Buckets"]]


class Order(Protocol):
    """Decides what happens to a request at the proxy."""

    def __call__(self, request: proxy.Request) -> proxy.Order: ...


@contextmanager
def behind(server: Server, decide: Order) -> Iterator[tuple[Storage, StorageProxy]]:
    """A storage behind a proxy, in a bucket of its own."""
    bucket = server.make_bucket()
    with StorageProxy(server.endpoint.removeprefix("http://"), decide) as between:
        known = fsspec.config.conf["s3"]
        fsspec.config.conf["s3"] = {**known, "endpoint_url": between.url}
        try:
            yield open_storage(f"s3a://{bucket}/log"), between
        finally:
            fsspec.config.conf["s3"] = known


def kinds(between: StorageProxy) -> list[str]:
    return [each.request.kind.value for each in between.seen()]


def once(order: proxy.Order, kind: proxy.Kind = proxy.Kind.PUT) -> Order:
    """This order for the first request of a kind, and no order for the others."""
    left = [order]
    return lambda request: left.pop() if left and request.kind is kind else proxy.PASS


def test_a_creation_whose_answer_was_lost_has_succeeded(server: Server) -> None:
    """The second attempt is refused by the object of the first one."""
    with behind(server, once(proxy.Order(lost=True))) as (storage, between):
        storage.create("d/x", b"mine")
        assert kinds(between) == ["PUT", "PUT", "HEAD"]
        with pytest.raises(AlreadyExists):
            storage.create("d/x", b"another's")
        assert storage.read("d/x") == b"mine"


def test_of_two_creators_with_equal_bytes_one_succeeds(server: Server) -> None:
    """Spark's commit log has equal bytes for a batch, whichever driver writes them."""
    with behind(server, once(proxy.PASS)) as (storage, between):
        storage.create("commits/7", b"v1")
        with pytest.raises(AlreadyExists):
            storage.create("commits/7", b"v1")
        assert kinds(between) == ["PUT", "PUT", "HEAD"]


def in_parts(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Makes s3fs write objects from 10 MiB on in parts, as it does from 100 MiB on; answers as many bytes."""
    core = pytest.importorskip("s3fs.core")
    put = core.S3FileSystem._pipe_file
    monkeypatch.setattr(core.S3FileSystem, "_pipe_file", partialmethod(put, chunksize=5 << 20))
    return bytes(10 << 20)


def completes(request: proxy.Request) -> bool:
    """Whether the request makes an object of its parts: it is a conditional one, and no PUT."""
    return request.kind is proxy.Kind.OTHER and request.is_conditional


def at_completion(order: proxy.Order) -> Order:
    """This order for the first request that makes an object of its parts."""
    left = [order]
    return lambda request: left.pop() if left and completes(request) else proxy.PASS


def test_a_creation_in_parts_whose_answer_was_lost_has_succeeded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3fs then gives the upload up. Its error hides the first one: the upload does not exist."""
    large = in_parts(monkeypatch)
    with behind(server, at_completion(proxy.Order(lost=True))) as (storage, between):
        storage.create("d/x", large)
        assert kinds(between)[-4:] == ["OTHER", "DELETE", "GET", "HEAD"]
        with pytest.raises(AlreadyExists):
            storage.create("d/x", large)
        assert storage.size("d/x") == len(large)


def test_a_creation_in_parts_whose_upload_is_gone_is_repeated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of the bucket may delete an upload that was begun."""
    large = in_parts(monkeypatch)
    with behind(server, at_completion(proxy.Order(status=404, code="NoSuchUpload"))) as (storage, between):
        storage.create("d/x", large)
        assert storage.size("d/x") == len(large)
        assert [completes(each.request) for each in between.seen()].count(True) == 2


def test_a_creation_in_parts_beside_another_creator_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses the upload, and forgets it. Its refusal is hidden, because there is no such upload then."""
    large = in_parts(monkeypatch)

    def decide(request: proxy.Request) -> proxy.Order:
        if not completes(request):
            return proxy.PASS
        server.client.put_object(Bucket=request.bucket, Key=request.key, Body=b"another's")
        return proxy.Order(status=404, code="NoSuchUpload")

    with behind(server, decide) as (storage, between):
        with pytest.raises(AlreadyExists):
            storage.create("d/x", large)
        assert [completes(each.request) for each in between.seen()].count(True) == 1, "no second attempt"
        assert storage.read("d/x") == b"another's"


def test_a_replacement_in_parts_whose_answer_was_lost_succeeds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, left = in_parts(monkeypatch), [proxy.Order(lost=True)]

    def decide(request: proxy.Request) -> proxy.Order:
        """Loses the answer to the request after all parts; the first request of an upload is of the same kind."""
        is_last = request.kind is proxy.Kind.OTHER and "PUT" in kinds(between)
        return left.pop() if left and is_last else proxy.PASS

    with behind(server, lambda _: proxy.PASS) as (storage, between):
        between.decide = decide
        storage.replace("d/x", large)
        assert not left and storage.size("d/x") == len(large)


def test_a_creation_in_a_bucket_that_is_missing_is_not_repeated(server: Server) -> None:
    with behind(server, lambda _: proxy.PASS) as (storage, between):
        server.client.delete_bucket(Bucket=storage.url.split("/")[2])
        with pytest.raises(FileNotFoundError):
            storage.create("d/x", b"1")
        assert kinds(between).count("PUT") == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_request_that_is_refused_for_now_is_repeated(server: Server, status: int) -> None:
    with behind(server, once(proxy.Order(status=status))) as (storage, between):
        storage.create("x", b"1")
        assert kinds(between) == ["PUT", "PUT"]
    for kind, call in (
        (proxy.Kind.GET, lambda: storage.read("x")),
        (proxy.Kind.LIST, lambda: storage.list("")),
        (proxy.Kind.DELETE, lambda: storage.delete("x")),
    ):
        with behind(server, once(proxy.Order(status=status), kind)) as (storage, between):
            storage.create("x", b"1")
            call()
            assert kinds(between)[1:] == [kind.value, kind.value]


def test_a_reset_connection_and_a_body_cut_short_are_no_answer(server: Server) -> None:
    with behind(server, once(proxy.Order(refused=True))) as (storage, between):
        storage.create("x", b"1" * 1000)
        between.decide = once(proxy.Order(body_bytes=10), proxy.Kind.GET)
        assert storage.read("x") == b"1" * 1000
        assert kinds(between) == ["PUT", "PUT", "GET", "GET"]


def test_repeating_ends_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop_settings, "_settings", {"spark.sql.streaming.stateStore.cec.storage.retry": "700ms"})
    with behind(server, lambda _: proxy.Order(status=503)) as (storage, between):
        began = time.monotonic()
        with pytest.raises(NoAnswer, match="by order of the test") as failed:
            storage.create("x", b"1")
        assert time.monotonic() - began < 30, "the setting is 0.7 s, and each attempt takes a moment"
        assert failed.value.filename.endswith("/x") and len(between.seen()) > 1


def test_a_store_that_ignores_the_condition_is_refused(server: Server) -> None:
    def careless(request: proxy.Request) -> proxy.Order:
        return proxy.Order(unconditional=request.is_conditional)

    with behind(server, careless) as (storage, _), pytest.raises(LogLocationError, match="created twice"):
        storage.probe_writable()


def test_a_server_that_looks_before_it_writes_is_refused(server: Server) -> None:
    """It refuses a second creation in sequence, and lets several creators win at the same moment."""

    def look_first(request: proxy.Request) -> proxy.Order:
        if not request.is_conditional:
            return proxy.PASS
        found = server.client.list_objects_v2(Bucket=request.bucket, Prefix=request.key)["KeyCount"]
        return proxy.Order(status=412) if found else proxy.Order(unconditional=True, delay_s=0.3)

    with (
        behind(server, look_first) as (storage, _),
        pytest.raises(LogLocationError, match=r"s3a://.*it let [2-8] of 8 writers create one object at the same"),
    ):
        storage.probe_writable()


@pytest.mark.parametrize(
    ("call", "requests"),
    [
        (lambda storage: storage.create("y", b"1"), ["PUT"]),
        (lambda storage: storage.replace("x", b"1"), ["PUT"]),
        (lambda storage: storage.read("x"), ["GET"]),
        (lambda storage: storage.read("x", 1, 2), ["GET"]),
        (lambda storage: storage.exists("x"), ["GET"]),
        (lambda storage: storage.exists("y"), ["GET"]),
        (lambda storage: storage.exists("empty"), ["GET"]),
        (lambda storage: storage.delete("x"), ["DELETE"]),
        (
            lambda storage: storage.delete_all(["x", *(f"n{number}" for number in range(900))]),
            ["DELETE", "BULK_DELETE"],
        ),
        (lambda storage: storage.list(""), ["LIST"]),
    ],
)
def test_a_call_is_one_request(server: Server, call: Callable[[Storage], object], requests: list[str]) -> None:
    with behind(server, once(proxy.PASS)) as (storage, between):
        storage.create("x", b"abc")
        storage.create("empty", b"")
        call(storage)
        assert kinds(between)[2:] == requests


class Refusing(ObjectStore):
    """Answers as a store over HTTP, with a status."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: object) -> None:
        if self.statuses:
            error = OSError(errno.EINVAL, "the answer has no body")
            error.__cause__ = Answered(self.statuses.pop(0))
            raise error
        super().pipe_file(path, value, mode, **more)


class Answered(Exception):
    """As botocore's ClientError."""

    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def test_a_refusal_is_known_by_its_status() -> None:
    filesystem = Refusing()
    storage = ObjectStorage("s3://bucket", filesystem, "bucket", exclusive=True)
    storage.create("x", b"1")
    filesystem.statuses = [412]
    with pytest.raises(AlreadyExists):
        storage.create("x", b"2")


def test_a_conflict_of_two_creators_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hadoop_settings, "_settings", {"spark.sql.streaming.stateStore.cec.storage.retry": "1s"})
    storage = ObjectStorage("s3://bucket", Refusing(409, 409), "bucket", exclusive=True)
    storage.create("x", b"1")
    assert storage.read("x") == b"1"
    endless = ObjectStorage("s3://bucket", Refusing(*[409] * 99), "bucket", exclusive=True)
    with pytest.raises(OSError, match="the answer has no body") as failed:
        endless.create("x", b"1")
    assert failed.value.filename == "s3://bucket/x"


class Careless(ObjectStore):
    """Looks before it writes, as some servers do: it refuses a second creation in sequence only."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        if mode == "create" and self.isfile(path):
            raise FileExistsError(path)
        time.sleep(0.05)
        with self._lock:
            MemoryFileSystem.pipe_file(self, path, value)


def test_a_store_that_lets_concurrent_creators_win_is_refused() -> None:
    storage = ObjectStorage("s3://bucket", Careless(), "bucket", exclusive=True)
    with pytest.raises(LogLocationError, match=r"it let [2-8] of 8 writers create one object at the same moment"):
        storage.probe_writable()


class NoCredentialsError(Exception):
    """As botocore's."""


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (NoCredentialsError("Unable to locate credentials"), PermissionError, "no credentials .*give them in the env"),
        (PermissionError("the token has run out"), PermissionError, "the token has run out"),
        (RuntimeError("what nobody has thought of"), OSError, "RuntimeError: what nobody has thought of"),
        (OSError(errno.EBUSY, "Slow down"), OSError, "Slow down"),
    ],
)
@pytest.mark.parametrize("call", ["read", "size", "exists", "delete", "list", "create", "replace"])
def test_an_error_is_a_sentence_that_names_the_object(
    call: str, error: Exception, kind: type[OSError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = ObjectStore()
    storage = ObjectStorage("s3a://bucket/log", filesystem, "bucket/log", exclusive=True)

    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("cat_file", "info", "ls", "rm_file", "pipe_file"):
        monkeypatch.setattr(filesystem, name, fail)
    with pytest.raises(kind, match=says) as failed:
        getattr(storage, call)("query.json", *([b"1"] if call in ("create", "replace") else []))
    assert failed.value.filename == "s3a://bucket/log/query.json" and failed.value.errno
    if call == "create":
        with pytest.raises(LogLocationError) as refused:
            storage.probe_writable()
        assert "\n" not in str(refused.value)
