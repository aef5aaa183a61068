"""The storage layer on Azurite, a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from cec_it.servers.azurite import run_azurite
from cec_it.servers.server import Server
from cec_it.servers.suite import ServerSuite

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(start: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    pytest.importorskip("adlfs", reason="adlfs is not installed: pip install 'spark-cec[azure]'")
    with start(run_azurite) as running:
        yield running


class TestAzurite(ServerSuite):
    pass
