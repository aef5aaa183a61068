"""The storage layer on FakeGcs, a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from cec_it.servers.fake_gcs import run_fake_gcs
from cec_it.servers.server import Server
from cec_it.servers.suite import ServerSuite, behind
from spark_cec.errors import LogLocationError
from spark_cec_lab.storage.proxy import Order, Request

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(start: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    pytest.importorskip("gcsfs", reason="gcsfs is not installed: pip install 'spark-cec[gs]'")
    with start(run_fake_gcs) as running:
        yield running


class TestFakeGcs(ServerSuite):
    def test_a_server_that_ignores_the_condition_is_refused(self, server: Server) -> None:
        """Here the proxy can take a condition away, because the server checks no signature."""

        def careless(request: Request) -> Order:
            return Order(unconditional=request.is_conditional)

        with behind(server, careless) as (storage, _), pytest.raises(LogLocationError, match=r"gs://.*created twice"):
            storage.probe_writable()
