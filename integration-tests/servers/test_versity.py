"""The storage layer on VersityGateway, a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from cec_it.servers.server import Server
from cec_it.servers.suite import ServerSuite
from cec_it.servers.versity import run_versity

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(start: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'spark-cec[s3]'")
    with start(run_versity) as running:
        yield running


class TestVersityGateway(ServerSuite):
    pass
