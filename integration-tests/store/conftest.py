"""Fixtures of the tests of the stores: a JVM, compiled once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [path for path in (str(HERE), str(HERE.parents[1] / "python")) if path not in sys.path]

from store_it.jvm import Stores, compiled  # noqa: E402


@pytest.fixture(scope="session")
def driver_class_path(request: pytest.FixtureRequest) -> str:
    """The driver, compiled; kept in pytest's cache until it or the shim changes."""
    cache = request.config.cache
    assert cache is not None
    return compiled(Path(cache.mkdir("store-driver")))


@pytest.fixture(scope="session")
def jvm(driver_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """A JVM for the stores of all tests."""
    stores = Stores(driver_class_path, tmp_path_factory.mktemp("jvm"))
    yield stores
    stores.close()
