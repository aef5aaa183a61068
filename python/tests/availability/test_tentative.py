"""Which epoch a reader reads, in random lives of two replicas."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from spark_cec.availability.replicas import choose_copy
from spark_cec.availability.tentative import MOST_BEHIND_MS, OpenEpoch, Reading, choose_epoch, stays

BUCKET_MS, WAIT_MS = 1_000, 5_000


def choose(present: Reading | None, epochs: dict[str, OpenEpoch], ends: dict[str, int], until_ms: int) -> str | None:
    return choose_epoch(present, epochs, ends, until_ms, WAIT_MS, BUCKET_MS)


def test_an_epoch_is_read_if_it_is_ahead_of_the_stable_rows() -> None:
    assert choose(None, {"": OpenEpoch(1, 10_000)}, {"": 9_000}, 9_000) == ""
    assert choose(None, {"": OpenEpoch(1, 9_000)}, {"": 9_000}, 9_000) is None
    assert choose(None, {"": OpenEpoch(1, 9_000)}, {"": 8_000}, 9_000) is None, "the reader has those rows"
    assert choose(None, {}, {"": 9_000}, 9_000) is None


def test_a_replica_in_time_is_preferred_to_the_epoch_of_the_other_one() -> None:
    ends = {"a": 20_000, "b": 12_000}
    assert choose(None, {"b": OpenEpoch(1, 20_000 + WAIT_MS)}, ends, 20_000) is None
    assert choose(None, {"b": OpenEpoch(1, 21_000 + WAIT_MS)}, ends, 20_000) == "b", "the driver of a is gone"


def test_an_epoch_of_which_nothing_is_read_yet_is_the_furthest_one() -> None:
    epochs, ends = {"a": OpenEpoch(4, 30_000), "b": OpenEpoch(2, 31_000)}, {"a": 20_000, "b": 20_000}
    assert choose(None, epochs, ends, 20_000) == "b"
    assert choose(Reading("a", 4, 29_000), epochs, ends, 20_000) == "a", "a change takes rows back"
    assert choose(Reading("a", 3, 29_000), epochs, ends, 20_000) == "b", "it is another epoch"


def test_an_epoch_that_stands_still_is_left() -> None:
    ends, own = {"a": 20_000, "b": 20_000}, OpenEpoch(4, 30_000)
    for ahead_ms, expected in ((MOST_BEHIND_MS, "a"), (MOST_BEHIND_MS + 1_000, "b")):
        epochs = {"a": own, "b": OpenEpoch(2, 30_000 + ahead_ms)}
        assert choose(Reading("a", 4, 30_000), epochs, ends, 20_000) == expected
    behind = {"a": OpenEpoch(4, 19_000), "b": OpenEpoch(2, 21_000)}
    assert choose(Reading("a", 4, 19_000), behind, ends, 20_000) == "b", "the present one has nothing to say"


def test_an_epoch_of_the_other_replica_does_not_take_answers_away() -> None:
    """Its driver is gone. The present epoch was closed, but the reader has not seen the stable rows yet."""
    old = {"b": OpenEpoch(2, 29_000)}
    assert choose(Reading("a", 4, 30_000), old, {"a": 20_000, "b": 20_000}, 20_000) is None
    assert choose(Reading("b", 1, 30_000), old, {"a": 20_000, "b": 20_000}, 20_000) == "b", "the next one knows more"


def test_a_replica_that_has_stood_still_is_not_in_time() -> None:
    """Its driver is gone, and the inputs pause: in event time the epoch is a little ahead for ever."""
    epochs, ends = {"a": OpenEpoch(1, 22_000)}, {"a": 20_000, "b": 20_000}
    assert choose(None, epochs, ends, 20_000) is None
    assert choose_epoch(None, epochs, ends, 20_000, WAIT_MS, BUCKET_MS, still=["b"]) == "a"


def test_the_next_epoch_of_a_replica_is_not_read_if_the_other_one_knows_more() -> None:
    """The driver of a was killed in its third epoch, and its fourth one has just begun."""
    ends = {"a": 20_000, "b": 20_000}
    assert choose(Reading("a", 3, 50_000), {"a": OpenEpoch(4, 31_000), "b": OpenEpoch(7, 49_500)}, ends, 20_000) == "b"
    assert choose(Reading("a", 3, 50_000), {"a": OpenEpoch(4, 31_000), "b": OpenEpoch(7, 30_000)}, ends, 20_000) == "a"


def test_rows_count_until_stable_rows_are_there() -> None:
    assert stays(Reading("a", 4, 30_000), 29_000)
    assert not stays(Reading("a", 4, 30_000), 30_000)


@dataclass
class _Replica:
    """A flow in one replica. It waits for an input that is away, and opens an epoch after WAIT_MS."""

    end_ms: int = 0
    epoch: OpenEpoch | None = None
    number: int = 0
    lives: bool = True
    has_all: bool = True
    opened_ms: int = 0

    def go_on(self, now_ms: int, chance: random.Random) -> None:
        if not self.lives:
            return
        if self.has_all:
            self.end_ms = max(self.end_ms, min(now_ms, self.end_ms + chance.randint(1, 4) * BUCKET_MS))
        if self.epoch is None and now_ms - self.end_ms >= WAIT_MS:
            self.number += 1
            self.epoch, self.opened_ms = OpenEpoch(self.number, self.end_ms), now_ms
        elif self.epoch is not None and self.end_ms >= self.epoch.end_ms and self.has_all:
            self.epoch = None
        elif self.epoch is not None:
            self.epoch = OpenEpoch(self.epoch.number, max(self.epoch.end_ms, now_ms - chance.choice((0, BUCKET_MS))))

    def fail(self) -> None:
        self.lives = False

    def start(self) -> None:
        """A driver closes what the one before has left open."""
        self.lives, self.epoch = True, None


@dataclass
class _Reader:
    """What a reader has: stable buckets up to `until_ms`, and the buckets of one epoch."""

    replica: str = "a"
    until_ms: int = 0
    reading: Reading | None = None
    tentative: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def read(self, replicas: dict[str, _Replica]) -> int:
        """Reads what there is; answers how many tentative buckets are new."""
        ends = {name: each.end_ms for name, each in replicas.items()}
        self.replica = choose_copy(self.replica, ends, self.until_ms, BUCKET_MS)
        self.until_ms = max(self.until_ms, ends[self.replica])
        epochs = {name: each.epoch for name, each in replicas.items() if each.epoch is not None}
        before, chosen = self.reading, choose(self.reading, epochs, ends, self.until_ms)
        fresh: set[int] = set()
        if chosen is not None:
            epoch = epochs[chosen]
            is_same = before is not None and (before.replica, before.number) == (chosen, epoch.number)
            after = max(before.until_ms, self.until_ms) if before is not None and is_same else self.until_ms
            if epoch.end_ms > after:
                fresh = set(range(after, epoch.end_ms, BUCKET_MS))
                self.reading = Reading(chosen, epoch.number, epoch.end_ms)
        elif before is not None and not stays(before, self.until_ms):
            self.reading = None
        if before is not None and self._name() != (before.replica, before.number):
            del self.tentative[before.replica, before.number]
        if fresh:
            shown = self.tentative.setdefault(self._name(), set())
            assert not shown & fresh, "a bucket of an epoch comes once"
            shown |= fresh
        return len(fresh)

    def _name(self) -> tuple[str, int]:
        return ("", 0) if self.reading is None else (self.reading.replica, self.reading.number)


def _check_change(before: Reading | None, after: Reading | None) -> None:
    if before is not None and after is not None and before.replica != after.replica:
        assert after.until_ms >= before.until_ms, "a change to the other replica takes no answer away"


@pytest.mark.parametrize("seed", range(200))
def test_a_reader_of_two_replicas(seed: int) -> None:
    """Inputs and drivers come and go. One epoch counts at most; none if a replica is in time; none when all is well."""
    chance = random.Random(seed)
    replicas, reader = {"a": _Replica(), "b": _Replica()}, _Reader()
    for now_ms in range(BUCKET_MS, 200 * BUCKET_MS, BUCKET_MS):
        if chance.random() < 0.06:
            replicas[chance.choice("ab")].has_all = chance.random() < 0.5
        if chance.random() < 0.04:
            each = replicas[chance.choice("ab")]
            each.start() if not each.lives else each.fail()
        for each in replicas.values():
            each.go_on(now_ms, chance)
        before, fresh = reader.reading, reader.read(replicas)
        assert len(reader.tentative) <= 1, "no row is doubled by a change"
        _check_change(before, reader.reading)
        newest = max(reader.until_ms, max((max(each) + BUCKET_MS for each in reader.tentative.values()), default=0))
        if any(each.lives and now_ms - each.end_ms < WAIT_MS for each in replicas.values()):
            assert not fresh or all(each.epoch for each in replicas.values()), "stable rows come in time"
        if any(each.lives and each.epoch and now_ms - each.opened_ms > BUCKET_MS for each in replicas.values()):
            assert now_ms - newest <= WAIT_MS + BUCKET_MS, "an epoch goes on, and is read"
    for each in replicas.values():
        each.start()
        each.has_all = True
    for later in range(200, 400):
        for each in replicas.values():
            each.go_on(later * BUCKET_MS, chance)
        reader.read(replicas)
    assert reader.reading is None and not reader.tentative, "all is well, so no tentative row is left"
    assert reader.until_ms >= 395 * BUCKET_MS


@pytest.mark.parametrize(("end_ms", "pause_ms", "is_read"), [
    (21_000, WAIT_MS, True),  # it delays its rows, and gives out what came alpha * X before
    (20_000, WAIT_MS, False),  # the reader has all of that
    (21_000, 0, False),  # it delays them no more: what came is as far in the other replica, or nearly so
    (20_000 + WAIT_MS + 1_000, 0, True),
])  # fmt: skip
def test_how_far_an_epoch_that_delays_its_rows_is_ahead(end_ms: int, pause_ms: int, is_read: bool) -> None:
    """The other replica has no epoch, and goes on. It is in time, or it catches up."""
    epochs, ends = {"a": OpenEpoch(1, end_ms, pause_ms)}, {"a": 5_000, "b": 20_000}
    assert choose_epoch(None, epochs, ends, 20_000, WAIT_MS, BUCKET_MS) == ("a" if is_read else None)
