"""What holds for all unit tests: how many examples and seeds are tried. How long one takes is no matter for a test.

`make test-fast` sets `CEC_TESTS=fast`: few examples of Hypothesis, and the first seeds alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.log.support import clear_memory

FAST = os.environ.get("CEC_TESTS") == "fast"
FAST_SEEDS = 5

settings.register_profile("untimed", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=10, stateful_step_count=10)
settings.load_profile("fast" if FAST else "untimed")


@pytest.fixture(autouse=True)
def _no_files_of_earlier_tests() -> Iterator[None]:
    """The memory file system is one for the process, and each listing goes over all of it."""
    yield
    clear_memory()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the later seeds of a test that has many, where it is to be fast."""
    if not FAST:
        return
    later = [item for item in items if _seed(item) >= FAST_SEEDS]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if _seed(item) < FAST_SEEDS]


def _seed(item: pytest.Item) -> int:
    seed = getattr(getattr(item, "callspec", None), "params", {}).get("seed", 0)
    return seed if isinstance(seed, int) else 0
