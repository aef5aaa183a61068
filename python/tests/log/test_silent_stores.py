"""A store that takes a connection and never answers is no answer in time. The server is on loopback."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import fsspec
import pytest

from spark_cec.adapters import filesystems, hadoop_settings
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import NoAnswer
from tests.log.support import ObjectStore

LONGEST_S = 30.0
"""Time for some attempts of a second each, on a busy machine."""

RETRY = "spark.sql.streaming.stateStore.cec.storage.retry"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The host and port of a server that takes connections, and says nothing."""
    monkeypatch.setattr(fsspec.config, "conf", {})
    monkeypatch.setattr(hadoop_settings, "_settings", {RETRY: "500ms"})
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def s3_options(place: str, limit_s: float | None) -> dict[str, Any]:
    limits = {} if limit_s is None else {"config_kwargs": {"read_timeout": limit_s}}
    return {"endpoint_url": f"http://{place}", "key": "k", "secret": "s", **limits}


def google_options(place: str, limit_s: float | None) -> dict[str, Any]:
    limits = {} if limit_s is None else {"requests_timeout": limit_s}
    return {"endpoint_url": f"http://{place}", "token": "anon", "project": "p", **limits}


def azure_options(place: str, limit_s: float | None) -> dict[str, Any]:
    limits = {} if limit_s is None else {"read_timeout": limit_s}
    connection = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint=http://{place}/a;"
    return {"connection_string": connection, **limits}


STORES = {
    "s3": ("s3fs", "s3a://bucket/log", s3_options),
    "gs": ("gcsfs", "gs://bucket/log", google_options),
    "abfs": ("adlfs", "abfss://container@a.dfs.core.windows.net/log", azure_options),
}


@pytest.mark.parametrize("protocol", STORES)
def test_a_silent_store_gives_no_answer_in_time(protocol: str, silent: str) -> None:
    """The limit is that of the user, who has given it to fsspec."""
    package, url, options = STORES[protocol]
    pytest.importorskip(package)
    fsspec.config.conf[protocol] = options(silent, 0.5)
    storage, began = open_storage(url), time.monotonic()
    with pytest.raises(NoAnswer) as failed:
        storage.read("x")
    assert time.monotonic() - began < LONGEST_S and failed.value.filename == f"{url}/x"


def test_a_silent_google_store_gives_no_answer_in_time_without_an_option(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs has no limit of its own, and would repeat each request six times."""
    pytest.importorskip("gcsfs")
    monkeypatch.setattr(filesystems, "_GOOGLE_LIMITS", {"sock_connect": 0.5, "sock_read": 0.5})
    fsspec.config.conf["gs"] = google_options(silent, None)
    storage, began = open_storage("gs://bucket/log"), time.monotonic()
    for call in (lambda: storage.read("x"), lambda: storage.create("x", b"1"), lambda: storage.list("")):
        with pytest.raises(NoAnswer):
            call()
    assert time.monotonic() - began < LONGEST_S


class Google(ObjectStore):
    """Notes what gcsfs's class is given, and takes fsspec's own configuration as that one does."""

    protocol = ("gs", "gcs")
    cachable = False

    def __init__(self, *_: object, **options: Any) -> None:
        super().__init__()
        self.options = options


@pytest.mark.parametrize("given", [{}, {"gcs": {"requests_timeout": 7}}, {"gs": {"requests_timeout": None}}])
def test_the_limits_of_google_are_those_of_the_user_or_finite(
    given: Mapping[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    plain = ModuleType("gcsfs.core")
    plain.GCSFileSystem = Google  # type: ignore[attr-defined]
    for name, module in {"gcsfs": ModuleType("gcsfs"), "gcsfs.core": plain}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(fsspec.config, "conf", given)
    options = open_storage("gs://bucket/log")._filesystem.options  # type: ignore[attr-defined]
    if given:
        assert options["requests_timeout"] == next(iter(given.values()))["requests_timeout"]
        return
    limits = options["requests_timeout"]
    assert isinstance(limits, aiohttp.ClientTimeout) and limits.total is None, "a large object may take its time"
    assert 0 < limits.sock_connect <= 60 and 0 < limits.sock_read <= 60
