"""Replicas find the same rows in each bucket of a source's channel, and readers choose among replicas."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from spark_cec.availability.bucket_rows import find_times, take_range
from spark_cec.availability.buckets import Backlog, BatchTimes, ChannelFacts, Position, advance, plan_end
from spark_cec.availability.replicas import MOST_BEHIND_MS, choose_copy, find_floors

BUCKET_MS = 1_000
NAMES = ("app", "web")
Batches = dict[str, list[pa.Table]]


def make_batches(chance: random.Random, delay_ms: int) -> Batches:
    """Channels of sources, whose batches the replicas have agreed on.

    Many rows are behind by more than the delay, and some have no time.
    """
    made: Batches = {}
    for name in NAMES:
        at_ms, number, batches = 1_000, 0, []
        for _ in range(chance.randint(1, 14)):
            times: list[int | None] = []
            for _ in range(chance.randint(0, 5)):
                at_ms += chance.randint(0, 900)
                behind_ms = chance.randint(0, delay_ms) + (chance.randint(0, 6_000) if chance.random() < 0.25 else 0)
                times.append(None if chance.random() < 0.05 else max(at_ms - behind_ms, 1) * 1000)
            numbers = pa.array(range(number, number + len(times)), pa.int64())
            number += len(times)
            batches.append(pa.table({"time": pa.array(times, pa.timestamp("us", "UTC")), "n": numbers}))
        made[name] = batches
    return made


@dataclass
class Reader:
    """A flow of one replica. `seen`: how many batches of each channel are there for it."""

    batches: Batches
    delay_ms: int
    positions: dict[str, Position] = field(default_factory=lambda: dict.fromkeys(NAMES, Position(1, -1, 0)))
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    buckets: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    late: set[tuple[str, int]] = field(default_factory=set)
    batches_run: int = 0

    def step(self, chance: random.Random) -> bool:
        """A batch of the flow, if a bucket is stable; answers whether one was."""
        facts = {name: self._facts(name) for name in NAMES}
        end_ms = plan_end(list(facts.values()), BUCKET_MS, chance.choice((None, 3)), may_be_empty=True)
        if end_ms is not None:
            self.batches_run += 1
            for name in NAMES:
                self._read(name, advance(facts[name], end_ms))
        return end_ms is not None

    def _times(self, name: str) -> list[BatchTimes]:
        first, there = self.positions[name].first, self.batches[name][: self.seen[name]]
        found = [BatchTimes(batch, rows.num_rows, find_times(rows, "time")) for batch, rows in enumerate(there)]
        return [each for each in found if each.batch >= first and each.rows]

    def _facts(self, name: str) -> ChannelFacts:
        known = Backlog.of(self._times(name))
        return ChannelFacts(name, self.positions[name], known, self.seen[name] - 1, self.delay_ms)

    def _read(self, name: str, after: Position) -> None:
        before = self.positions[name]
        there = [(each.batch, each.times) for each in self._times(name)]
        floors = find_floors(there, self.delay_ms, BUCKET_MS)
        for batch in range(before.first, after.batch + 1):
            due, late = take_range(
                self.batches[name][batch], "time", before.until_ms, after.until_ms, fresh=batch > before.batch,
                floor_ms=floors.get(batch), replicated=True,
            )  # fmt: skip
            for row in due.to_pylist():
                place = self.buckets[int(row["time"].timestamp() * 1000) // BUCKET_MS]
                assert (name, row["n"]) not in place, "a row comes once"
                place.add((name, row["n"]))
            for number in late["n"].to_pylist():
                assert (name, number) not in self.late, "a late row is kept aside once"
                self.late.add((name, number))
        self.positions[name] = after


def read_at_random(batches: Batches, delay_ms: int, chance: random.Random) -> Reader:
    """Reads at random moments, until nothing more comes."""
    reader = Reader(batches, delay_ms)
    while any(reader.seen[name] < len(batches[name]) for name in NAMES):
        name = chance.choice(NAMES)
        reader.seen[name] = min(reader.seen[name] + chance.randint(0, 4), len(batches[name]))
        if chance.random() < 0.7:
            reader.step(chance)
    while reader.step(chance):
        pass
    return reader


@pytest.mark.parametrize("seed", range(80))
def test_replicas_find_the_same_rows_in_each_bucket(seed: int) -> None:
    """However their own batches are cut, also where rows are late."""
    chance = random.Random(seed)
    delay_ms = chance.choice((0, 500, 2_000))
    batches = make_batches(chance, delay_ms)
    first, second = (read_at_random(batches, delay_ms, random.Random(f"{seed} {each}")) for each in "ab")
    both = min(min(reader.positions[name].until_ms for name in NAMES) for reader in (first, second)) // BUCKET_MS
    assert {each: first.buckets[each] for each in range(both)} == {each: second.buckets[each] for each in range(both)}
    for reader in (first, second):
        given = set().union(*reader.buckets.values())
        assert not given & reader.late
    known = {name: min(reader.positions[name].batch for reader in (first, second)) for name in NAMES}
    looked_at = {
        (name, number)
        for name in NAMES
        for rows in batches[name][: known[name] + 1]
        for number in rows["n"].to_pylist()
    }
    assert first.late & looked_at == second.late & looked_at


def test_some_of_these_rows_are_late_and_some_readers_differ_in_their_batches() -> None:
    """Else the test above would show nothing."""
    late, cuts = 0, 0
    for seed in range(20):
        batches = make_batches(random.Random(seed), 500)
        readers = [read_at_random(batches, 500, random.Random(f"{seed} {each}")) for each in "ab"]
        late += len(readers[0].late)
        cuts += readers[0].batches_run != readers[1].batches_run
    assert late > 20 and cuts > 10


def test_a_reader_stays_with_a_replica_that_goes_on() -> None:
    assert choose_copy("a", {"a": 5_001, "b": 9_000}, 5_000, BUCKET_MS) == "a"
    assert choose_copy("b", {"a": 5_001, "b": 5_001}, 5_000, BUCKET_MS) == "b"
    assert choose_copy("a", {"a": 5_000, "b": 5_000}, 5_000, BUCKET_MS) == "a", "neither has more"


def test_a_reader_changes_from_a_replica_that_stands_still_or_is_far_behind() -> None:
    assert choose_copy("a", {"a": 5_000, "b": 5_001}, 5_000, BUCKET_MS) == "b"
    assert choose_copy("a", {"b": 4_000}, 5_000, BUCKET_MS) == "b", "the other one cannot be read"
    assert choose_copy("a", {"a": 6_000, "b": 6_001 + MOST_BEHIND_MS}, 5_000, BUCKET_MS) == "b"
    assert choose_copy("a", {"a": 60_000, "b": 120_000}, 0, 60_000) == "a", "one bucket"


def test_a_reader_begins_with_the_replica_that_is_ahead() -> None:
    assert choose_copy("", {"a": 1, "b": 2}, 1, BUCKET_MS) == "b"
    assert choose_copy("", {"a": 2, "b": 2}, 1, BUCKET_MS) == "a"
