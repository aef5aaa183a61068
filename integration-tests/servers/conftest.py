"""The servers of these tests: each is started for the first test that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from cec_it.servers.programs import Unavailable
from cec_it.servers.server import Server


@pytest.fixture(scope="session")
def start() -> Callable[[Callable[[], AbstractContextManager[Server]]], AbstractContextManager[Server]]:
    """Runs a server, or skips the test if it cannot be had here."""

    @contextmanager
    def run(how: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
        try:
            running = how()
            server = running.__enter__()
        except Unavailable as why:
            pytest.skip(str(why))
        try:
            yield server
        finally:
            running.__exit__(None, None, None)

    return run
