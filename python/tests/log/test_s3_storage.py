"""The storage contract on an S3 server (moto, in this process, on loopback), through s3fs."""

from __future__ import annotations

import errno
import logging
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_cec.adapters.fsspec_storage import ObjectStorage, open_storage
from spark_cec.errors import AlreadyExists, LogLocationError
from spark_cec.log.storage import Storage
from tests.log.storage_contract import StorageContract
from tests.log.support import ObjectStore

moto_server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
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
    running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    known = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = {
        "endpoint_url": endpoint, "key": "k", "secret": "s", "client_kwargs": {"region_name": "us-east-1"},
    }
    yield Server(endpoint)
    fsspec.config.conf.clear()
    fsspec.config.conf.update(known)
    running.stop()


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, server: Server) -> Storage:
        return open_storage(f"s3a://{server.make_bucket()}/a query/with%20signs")


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


def test_a_creation_whose_answer_was_lost_has_succeeded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again, and is refused by what it has written itself."""
    storage = open_storage(place)
    filesystem, _ = storage.place  # type: ignore[attr-defined]
    write = filesystem.pipe_file

    def write_twice(path: str, data: bytes, **how: object) -> None:
        write(path, data, **how)
        write(path, data, **how)

    with monkeypatch.context() as lost:
        lost.setattr(filesystem, "pipe_file", write_twice)
        storage.create("d/x", b"mine")
    with pytest.raises(AlreadyExists):
        storage.create("d/x", b"another's")
    assert storage.read("d/x") == b"mine"


def test_a_write_asks_for_nothing_else(place: str, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    storage = open_storage(place)
    with caplog.at_level(logging.INFO, "werkzeug"):
        storage.create("d/x", b"1")
        storage.replace("d/x", b"2")
    lines = [record.getMessage() for record in caplog.records if record.name == "werkzeug"]
    assert [re.findall(r"(GET|HEAD|PUT|POST) ", line)[0] for line in lines] == ["PUT", "PUT"]


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


def test_a_conflict_of_two_creators_is_tried_again() -> None:
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
