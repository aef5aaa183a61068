"""Leases on an object store, where objects with heartbeats stand in for locks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spark_cec.adapters.object_storage import ObjectStorage
from spark_cec.agent.object_lease import Beat, ObjectLease, Process, Timing, is_taken, newest_number
from spark_cec.errors import Fenced, KeysRefused, LogLocationError
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Listing, Storage
from tests.log.support import Crash, Fault, FaultyStorage, ObjectStore, Trouble

TIMING = Timing(beat_s=100_000.0)
"""No beat comes by itself."""


class World:
    """A store, and a clock that goes on only while somebody waits. `meanwhile` runs in each pause."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self.place: Storage = ObjectStorage("s3://b/cec", ObjectStore(), "b/cec", exclusive=True)
        self.timing, self.now = timing, 1000.0
        self.meanwhile: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def lease(self, place: Storage | None = None) -> ObjectLease:
        return ObjectLease(place or self.place, "the query q", self.timing, lambda: self.now, self.pause)

    def take(self) -> ObjectLease:
        lease = self.lease()
        lease.take(time.monotonic() + 3600)
        return lease

    def move_holder_away(self) -> None:
        """The newest holder is a process of another machine, of which nobody here knows whether it lives."""
        path = f"lease/{newest_number(self.place):010d}.json"
        beat = Beat.decode(self.place.read(path))
        assert beat.process is not None
        self.place.replace(path, replace(beat, process=replace(beat.process, boot="another")).encode())


@pytest.fixture
def world() -> World:
    return World()


def test_a_lease_that_was_released_is_taken_at_once(world: World) -> None:
    for number in (1, 2, 3):
        lease = world.take()
        assert newest_number(world.place) == number and world.now == 1000.0
        lease.confirm()
        lease.release()
    assert len(world.place.list("lease")) == 1, "old leases are deleted"


def test_a_living_holder_is_named_and_keeps_its_lease(world: World) -> None:
    holder = world.take()
    world.meanwhile = holder.beat
    with pytest.raises(
        Fenced, match=rf"the query q is running already \(agent process {os.getpid()} on .*stop that run"
    ):
        world.lease().take(time.monotonic() + 0.2)
    holder.confirm()
    assert newest_number(world.place) == 1


def test_a_silent_holder_is_outlasted_and_cannot_go_on(world: World) -> None:
    """As a driver that was paused and wakes up: its clock says that its lease is over, whatever the store says."""
    paused = world.take()
    world.move_holder_away()
    began = world.now
    taker = world.take()
    assert world.now - began >= TIMING.silent_s + TIMING.valid_s
    taker.confirm()
    with pytest.raises(Fenced, match=r"was away from s3://b/cec for longer than 15 s"):
        paused.confirm()
    paused.release()
    taker.confirm()
    assert newest_number(world.place) == 2


class StaleListing(FaultyStorage):
    """Lists nothing, whatever there is."""

    def list(self, directory: str) -> Listing:
        return []


def test_a_listing_that_does_not_show_the_lease_is_named(world: World) -> None:
    world.take().release()
    began = time.monotonic()
    with pytest.raises(LogLocationError, match=r"listing does not show lease/0000000001\.json, which exists"):
        world.lease(StaleListing(world.place)).take(time.monotonic() + 0.2)
    assert time.monotonic() - began < 10


def trusts(lease: ObjectLease) -> bool:
    try:
        lease.confirm()
    except Fenced:
        return False
    return True


class WakingStorage(FaultyStorage):
    """Runs an action before the creation of an object, once."""

    def __init__(self, inner: Storage, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._actions = [action]

    def create(self, path: str, data: Buffer) -> None:
        """Runs the action, then creates the object."""
        if self._actions:
            self._actions.pop()()
        super().create(path, data)


def test_a_holder_that_wakes_after_several_takers_knows_it(world: World) -> None:
    """A start takes the lease twice, and deletes the numbers before: the next number after the holder's is gone."""
    paused = world.take()
    world.move_holder_away()
    world.take().release()
    running = world.take()
    assert [each.name for each in world.place.list("lease")] == ["0000000003.json"]
    with pytest.raises(Fenced, match="was away from"):
        paused.confirm()
    assert trusts(running) and not trusts(paused) and newest_number(world.place) == 3


@pytest.mark.parametrize("wakes_after_s", [*range(45), None])
def test_at_no_moment_two_processes_trust_a_lease(wakes_after_s: int | None, world: World) -> None:
    """Whenever the holder wakes up while another process takes its lease; None: between its last look and its write."""
    holder = world.take()
    world.move_holder_away()
    wakes_at = world.now + (1e9 if wakes_after_s is None else wakes_after_s)

    def wake_in_time() -> None:
        if world.now >= wakes_at:
            world.meanwhile = lambda: None
            holder.beat()

    world.meanwhile = wake_in_time
    taker = world.lease(WakingStorage(world.place, holder.beat) if wakes_after_s is None else None)
    with suppress(Fenced):
        taker.take(time.monotonic() + 3600)
    assert trusts(holder) + trusts(taker) <= 1
    assert trusts(taker) is (newest_number(world.place) == 2)


def test_a_number_that_others_have_used_meanwhile_gives_no_lease(world: World) -> None:
    """Between two looks of the taker the holder releases, and two starts take the lease and delete what is older."""
    holder = world.take()
    later: list[ObjectLease] = []

    def others_start() -> None:
        world.meanwhile = lambda: None
        holder.release()
        world.take().release()
        later.append(world.take())

    world.meanwhile = others_start
    taker = world.lease()
    with suppress(Fenced):
        taker.take(time.monotonic() + 0.1)
    assert later
    assert trusts(later[0]) + trusts(taker) <= 1


def test_a_process_that_is_hidden_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/proc` shows a user none of the others, if it is mounted with `hidepid`."""
    here = Process.find(os.getpid())
    assert here is not None
    hidden = replace(here, pid=1)
    find = Process.find
    monkeypatch.setattr(Process, "find", lambda pid: None if pid == 1 else find(pid))
    assert not hidden.is_gone

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(pid, signal)

    monkeypatch.setattr(os, "kill", refuse)
    assert not hidden.is_gone


def test_a_holder_of_this_machine_that_is_gone_needs_no_wait(world: World) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.find(child.pid)
    assert process is not None and not process.is_gone
    child.kill()
    child.wait()
    assert process.is_gone and not replace(process, namespace=1).is_gone and not replace(process, boot="x").is_gone
    world.place.create("lease/0000000001.json", Beat("t", 3, False, "here", process).encode())
    began = world.now
    world.take()
    assert world.now == began


def test_the_next_process_with_the_number_is_another_one() -> None:
    here = Process.find(os.getpid())
    assert here is not None and not here.is_gone and replace(here, started="1").is_gone


def test_a_store_that_is_away_for_a_moment_does_no_harm(world: World) -> None:
    faulty = FaultyStorage(world.place, Fault(0))
    lease = world.lease(faulty)
    lease.take(time.monotonic() + 60)
    world.now += 10
    lease.confirm()
    faulty.fault.seen.clear()
    lease.confirm()
    assert faulty.fault.seen == [], "a confirmation asks for nothing while beats are in time"
    world.now += 10
    lease.confirm()
    assert faulty.fault.seen == ["replace", "list"], "a late beat is made up for"
    faulty.fault = Fault(1, error=lambda: OSError("the store is away"))
    world.now += 20
    with pytest.raises(Fenced):
        lease.confirm()
    lease.confirm()


class ClosedStore(FaultyStorage):
    """Takes the keys of this process no more."""

    def replace(self, path: str, data: Buffer) -> None:
        """Raises what a store of objects does."""
        raise KeysRefused("the store takes the keys of fs.s3a.session.token no more: give new ones", path)


def test_a_beat_that_failed_says_why_the_lease_is_over(world: World) -> None:
    lease = world.lease(ClosedStore(world.place))
    lease.take(time.monotonic() + 60)
    world.now += 20
    with pytest.raises(Fenced, match=r"for longer than 15 s \(the store takes the keys of .*: give new ones\), and"):
        lease.confirm()


@pytest.mark.parametrize(
    "error", [LogLocationError("gs://b/cec", "half a key file"), RuntimeError("unforeseen"), OSError("away")]
)
def test_beats_go_on_after_any_error(error: Exception, world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without beats a start elsewhere would take the lease of a run that lives."""
    failing = [error] * 3

    def fail() -> Exception:
        return failing.pop()

    faulty = FaultyStorage(world.place, Fault(0))
    lease = ObjectLease(faulty, "the query q", replace(TIMING, beat_s=0.01))
    lease.take(time.monotonic() + 60)
    faulty.fault = Trouble(1, error=fail, lasts=3)
    until = time.monotonic() + 30
    while failing and time.monotonic() < until:
        time.sleep(0.01)
    beats = lease._beats
    while lease._beats < beats + 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert not failing and lease._beats >= beats + 2, "the thread has ended"
    assert lease.is_sure
    said = [each for each in caplog.records if "a beat of its lease failed" in each.getMessage()]
    assert len(said) == (0 if isinstance(error, OSError) else 1), "it is said once"
    lease.release()


def test_a_confirmation_after_any_error_says_why_the_lease_is_over(world: World) -> None:
    faulty = FaultyStorage(world.place, Fault(0))
    lease = world.lease(faulty)
    lease.take(time.monotonic() + 60)
    world.now += 20
    faulty.fault = Fault(1, error=lambda: LogLocationError("gs://b/cec", "the key file is half written"))
    with pytest.raises(Fenced, match=r"for longer than 15 s \(log location .* the key file is half written\), and"):
        lease.confirm()
    lease.confirm()
    lease.release()


def test_an_unreadable_lease_counts_as_one_that_may_live(world: World) -> None:
    world.place.create("lease/0000000001.json", b"{")
    began = world.now
    world.take()
    assert world.now - began >= TIMING.silent_s + TIMING.valid_s


class BeatingStorage(FaultyStorage):
    """A beat comes before each read."""

    def __init__(self, inner: Storage, beat: Callable[[], None]) -> None:
        super().__init__(inner)
        self._beat = beat

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Beats, then reads."""
        self._beat()
        return super().read(path, offset, length)


def test_whether_a_lease_is_taken(world: World) -> None:
    quick = Timing(silent_s=0.05, poll_s=0.01)
    assert not is_taken(world.place, quick)
    lease = world.take()
    world.move_holder_away()
    assert not is_taken(world.place, quick), "no beat comes"
    assert is_taken(BeatingStorage(world.place, lease.beat), quick)
    lease.release()
    assert not is_taken(world.place, quick)


def test_a_lease_whose_taker_has_ended_in_its_wait_counts_as_taken_so_long(world: World) -> None:
    """The holder before it may trust its lease still, though the newest one has ended."""
    quick = Timing(silent_s=0.05, poll_s=0.01, valid_s=0.3)
    ended = Beat("token", 1, is_released=True, host="here", process=None, waits=True)
    world.place.create("lease/0000000001.json", ended.encode())
    began = time.monotonic()
    assert not is_taken(world.place, quick)
    assert time.monotonic() - began >= 0.3


@dataclass
class Death(Trouble):
    """Ends the process at a call. `wakes`: what another process does before the `wakes_at`-th call."""

    wakes_at: int = 0
    wakes: Callable[[], object] = lambda: None

    def run(self, name: str, whole: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """One call."""
        if self.calls + 1 == self.wakes_at:
            self.wakes_at = 0
            self.wakes()
        return super().run(name, whole, half)


FEW_LOOKS = replace(TIMING, poll_s=10.0)

COURSES = ["take", "take what was released", "take over", "beat", "beat of one that has lost it", "release"]


class Course:
    """A process that does one thing with a lease, until a storage call ends it. `other`: who had or has the lease."""

    def __init__(self, what: str, death: Death) -> None:
        self.world, self.other = World(FEW_LOOKS), None
        if what == "take what was released":
            self.world.take().release()
        if what == "take over":
            self.other = self.world.take()
            self.world.move_holder_away()
            death.wakes = self.other.beat
        place = FaultyStorage(self.world.place)
        self._lease = self.world.lease(place)
        if not what.startswith("take"):
            self._lease.take(time.monotonic() + 3600)
        if what == "beat of one that has lost it":
            self.world.move_holder_away()
            self.other = self.world.take()
            self.world.move_holder_away()
        place.fault = death
        with suppress(Crash):
            {"take": self._take, "beat": self._lease.beat, "release": self._lease.release}[what.split()[0]]()

    def _take(self) -> None:
        self._lease.take(time.monotonic() + 3600)

    def lose(self, *, machine: bool) -> None:
        """The process is gone; and nobody can look whether it is, if its `machine` is gone, too."""
        for each in self.world.place.list("lease"):
            beat = Beat.decode(self.world.place.read(f"lease/{each.name}"))
            if beat.token == self._lease._token:
                assert beat.process is not None
                gone = replace(beat.process, boot="another") if machine else replace(beat.process, started="1")
                self.world.place.replace(f"lease/{each.name}", replace(beat, process=gone).encode())

    def take_next(self) -> float:
        """Another process takes the lease, and nobody else trusts it then; after how many seconds."""
        world, began = self.world, self.world.now
        assert len(world.place.list("lease")) <= 3
        taker = world.take()
        assert taker.is_sure
        if self.other is not None:
            assert not self.other.is_sure, "two trust the lease"
            self.other.beat()
            assert not trusts(self.other)
        assert trusts(taker) and len(world.place.list("lease")) == 1
        return world.now - began


def list_deaths(what: str) -> list[tuple[int, str]]:
    """Each storage call of a course, and whether it takes effect."""
    Course(what, none := Death(0))
    assert none.calls, "it asks the store"
    return [(call, when) for call in range(1, none.calls + 1) for when in ("before", "after")]


@pytest.mark.parametrize("machine", [False, True], ids=["process", "machine"])
@pytest.mark.parametrize("what", COURSES)
def test_a_kill_at_each_storage_call_leaves_the_lease_to_the_next_taker(what: str, machine: bool) -> None:
    for call, when in list_deaths(what):
        print(f"{what}: killed {when} call {call}")
        course = Course(what, death := Death(call, when))
        assert death.dead
        course.lose(machine=machine)
        took_s = course.take_next()
        if not machine and course.other is None:
            assert took_s == 0.0, "whose process is gone is known here"
        assert took_s <= TIMING.silent_s + TIMING.valid_s + FEW_LOOKS.poll_s


@pytest.mark.parametrize("machine", [False, True], ids=["process", "machine"])
def test_a_taker_is_killed_while_the_holder_before_it_may_trust_the_lease(machine: bool) -> None:
    """The silent holder wakes up at any call of the taker, writes a beat, and stands still again."""
    for call, when in list_deaths("take over"):
        for wakes_at in range(1, call + 1):
            print(f"killed {when} call {call}; the holder wakes up before call {wakes_at}")
            course = Course("take over", death := Death(call, when, wakes_at=wakes_at))
            if death.dead:
                course.lose(machine=machine)
                course.take_next()


def test_a_taker_that_gives_up_its_wait_leaves_the_wait_to_the_next_one(world: World) -> None:
    """The holder before it wrote a beat just before it was taken for silent, and may trust the lease still."""
    holder = world.take()
    world.move_holder_away()
    taker = world.lease(WakingStorage(world.place, holder.beat))

    def give_up() -> None:
        if newest_number(world.place) == 2:
            world.now -= TIMING.valid_s - 1.0
            raise KeyboardInterrupt

    world.meanwhile = give_up
    with pytest.raises(KeyboardInterrupt):
        taker.take(time.monotonic() + 3600)
    taker.release()
    world.meanwhile = lambda: None
    later = world.take()
    assert later.is_sure and not holder.is_sure
