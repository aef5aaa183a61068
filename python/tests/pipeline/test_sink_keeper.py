"""One replica runs the sinks: the one that has their lease, while it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_cec.errors import Fenced
from spark_cec.pipeline import sink_keeper
from spark_cec.pipeline.sink_keeper import STANDBY, SinkKeeper
from spark_cec.pipeline.supervise import Supervisor


class Sink:
    """Stands for the supervisor of a sink. A query that is held needs a moment to end."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.is_over = False

    def hold(self, by: str) -> None:
        self.held.add(by)

    def let_go(self, by: str) -> None:
        self.held.discard(by)

    @property
    def is_at_rest(self) -> bool:
        return bool(self.held) or self.is_over


class Two:
    """The keepers of two replicas, in one process; each has a lease object of its own."""

    def __init__(self, place: Path) -> None:
        self.sinks = {name: Sink() for name in "ab"}
        self.has_executors = dict.fromkeys("ab", True)
        self.news = threading.Event()
        self.keepers = {name: self._make(name, place) for name in "ab"}

    def _make(self, name: str, place: Path) -> SinkKeeper:
        sinks: dict[str, Supervisor] = {"board": self.sinks[name]}  # type: ignore[dict-item]
        return SinkKeeper("shop", f"{place}/sinks", sinks, self.news.set, lambda: self.has_executors[name])

    def running(self) -> str:
        return "".join(name for name, sink in self.sinks.items() if not sink.held)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(sink_keeper, "_LOOK_S", 0.02)
    monkeypatch.setattr(sink_keeper, "IDLE_S", 0.2)
    made = Two(tmp_path)
    yield made
    for each in made.keepers.values():
        each.end()
        if each.is_alive():
            each.join(10)


def wait(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    pause = threading.Event()
    while not look():
        assert time.monotonic() < end
        pause.wait(0.01)


def test_sinks_stand_by_until_the_lease_is_free(two: Two) -> None:
    assert two.running() == "" and two.keepers["a"].stands_by("board")
    two.keepers["a"].start()
    wait(lambda: two.running() == "a")
    assert two.news.is_set() and not two.keepers["a"].stands_by("board")
    two.keepers["b"].start()
    assert two.keepers["b"].stands_by("board") and not two.keepers["b"].stands_by("totals")
    two.keepers["a"].end()
    wait(lambda: two.running() == "b")


def test_a_replica_without_executors_gives_the_sinks_away(two: Two) -> None:
    for each in two.keepers.values():
        each.start()
    wait(lambda: two.running() in ("a", "b"))
    first = two.running()
    other = "b" if first == "a" else "a"
    two.has_executors[first] = False
    wait(lambda: two.running() == other)
    two.has_executors = {first: True, other: False}
    wait(lambda: two.running() == first)


def test_sinks_that_have_failed_for_good_keep_no_lease(two: Two) -> None:
    two.keepers["a"].start()
    wait(lambda: two.running() == "a")
    two.sinks["a"].is_over = True
    wait(lambda: not two.keepers["a"].is_alive())
    two.keepers["b"].start()
    wait(lambda: two.running() == "b")


def test_a_lease_that_is_lost_stops_the_sinks(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause of the driver, with the home on an object store."""
    keeper = two.keepers["a"]
    keeper.start()
    wait(lambda: two.running() == "a")
    lost = threading.Event()
    confirm = keeper._leases.confirm

    def fail_once(place: str) -> None:
        if not lost.is_set():
            lost.set()
            raise Fenced("the lease is lost")
        confirm(place)

    seen: list[str] = []
    hold = two.sinks["a"].hold

    def note(by: str) -> None:
        seen.append(by)
        hold(by)

    monkeypatch.setattr(two.sinks["a"], "hold", note)
    monkeypatch.setattr(keeper._leases, "confirm", fail_once)
    wait(lambda: seen == [STANDBY] and two.running() == "a")


def test_sinks_wait_while_the_storage_does_not_say_whose_lease_it_is(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question takes as long as its requests are repeated, and then another replica may run them already."""
    keeper, asked, answered = two.keepers["a"], threading.Event(), threading.Event()
    keeper.start()
    wait(lambda: two.running() == "a")

    def ask(_: str) -> None:
        asked.set()
        assert answered.wait(20)

    with monkeypatch.context() as away:
        away.setattr(keeper._leases, "confirm", ask)
        away.setattr(keeper._leases, "is_sure", lambda _: answered.is_set())
        assert asked.wait(20)
        assert two.running() == "" and keeper.stands_by("board")
        answered.set()
        wait(lambda: two.running() == "a")
    assert not keeper.stands_by("board")


def test_a_keeper_ends_while_it_waits(two: Two) -> None:
    two.keepers["a"].start()
    wait(lambda: two.running() == "a")
    two.keepers["b"].start()
    two.keepers["b"].end()
    two.keepers["b"].join(10)
    assert not two.keepers["b"].is_alive() and two.running() == "a"
