"""Small segments of an object store that were read lately."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_cec.log import recent_objects
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.recent_objects import KEPT_S, LARGEST_BYTES, RecentObjects
from tests.log.support import memory_storage

SMALL, LARGE = "segments/small", "segments/large"


class Counting(DelegatingStorage):
    """Counts the reads of each path; calls `before` before one."""

    def __init__(self) -> None:
        super().__init__(memory_storage())
        self.reads = Counter[str]()
        self.before: Callable[[], None] = lambda: None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads[path] += 1
        self.before()
        return super().read(path, offset, length)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def inner() -> Counting:
    storage = Counting()
    storage.create(SMALL, b"0123456789")
    storage.create(LARGE, bytes(LARGEST_BYTES + 1))
    storage.create("log.json", b"{}")
    return storage


def test_the_parts_of_a_small_segment_cost_one_read(inner: Counting) -> None:
    storage = RecentObjects(inner)
    assert storage.read(SMALL, 2, 3) == b"234" and inner.reads[SMALL] == 1, "no listing has shown it yet"
    storage.list("segments")
    assert [storage.read(SMALL, at, 4) for at in (0, 4, 8, 12)] == [b"0123", b"4567", b"89", b""]
    assert (storage.read(SMALL), storage.read(SMALL, 7)) == (b"0123456789", b"789")
    assert inner.reads[SMALL] == 2
    for path, content in ((LARGE, bytes(4)), ("log.json", b"{}")):
        for _ in range(2):
            assert storage.read(path, 0, 4) == content
        assert inner.reads[path] == 2


def test_it_is_forgotten_when_it_is_old_and_when_it_is_another_one(inner: Counting) -> None:
    clock = Clock()
    storage = RecentObjects(inner, clock)
    storage.list("segments")
    storage.read(SMALL, 0, 1)
    clock.now = KEPT_S + 1
    storage.list("segments")
    assert storage.read(SMALL, 0, 1) == b"0" and inner.reads[SMALL] == 2
    inner.replace(SMALL, b"repaired")
    storage.list("segments")
    assert storage.read(SMALL, 0, 8) == b"repaired" and inner.reads[SMALL] == 3
    inner.delete(SMALL)
    storage.list("segments")
    with pytest.raises(FileNotFoundError):
        storage.read(SMALL, 0, 8)


def test_what_is_kept_has_a_bound(inner: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_objects, "MOST_BYTES", 25)
    paths = [f"segments/{number}" for number in range(3)]
    for path in paths:
        inner.create(path, bytes(10))
    storage = RecentObjects(inner)
    storage.list("segments")
    for path in (*paths, *reversed(paths)):
        storage.read(path, 0, 10)
    assert [inner.reads[path] for path in paths] == [2, 1, 1], "the oldest went when the third one came"


def test_readers_at_the_same_time_wait_for_one_read(inner: Counting) -> None:
    storage, begun, go_on = RecentObjects(inner), threading.Event(), threading.Event()
    storage.list("segments")

    def wait() -> None:
        begun.set()
        assert go_on.wait(30)

    inner.before = wait
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(storage.read, SMALL, 0, 5)
        assert begun.wait(30)
        others = [pool.submit(storage.read, SMALL, 5, 5) for _ in range(3)]
        go_on.set()
        assert first.result() == b"01234" and {each.result() for each in others} == {b"56789"}
    assert inner.reads[SMALL] == 1


def test_a_failure_is_not_kept(inner: Counting) -> None:
    storage = RecentObjects(inner)
    storage.list("segments")

    def fail() -> None:
        raise TimeoutError(SMALL)

    inner.before = fail
    with pytest.raises(TimeoutError):
        storage.read(SMALL, 0, 1)
    inner.before = lambda: None
    assert storage.read(SMALL, 0, 1) == b"0"
