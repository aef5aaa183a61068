"""A stream by buckets that reads the channel of one replica or of the other one: each row once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log import manifest
from spark_cec.log.late import list_late
from tests.agent.copies import Copies, make_copies


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = make_copies(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(40))
def test_each_row_comes_once_from_one_replica_or_the_other(seed: int, copies: Copies) -> None:
    """Replicas stand still and catch up, and the reader is started again, at random; a repeat has the same rows."""
    chance = random.Random(seed)
    copies.rows = [*sorted(chance.randint(1, 40_000) for _ in range(60)), 48_000, 58_000]
    given: list[int] = []
    copies.plan()
    for _ in range(120):
        replica = chance.choice("ab" if chance.random() < 0.5 else "a" if (len(given) // 15) % 2 else "b")
        if chance.random() < 0.5 and copies.passed[replica] < 41_000:
            until_ms = copies.passed[replica] + chance.randint(0, 2_000)
            copies.give_out(replica, until_ms, says=chance.random() < 0.7)
        if chance.random() < 0.5:
            before, end = dict(copies.at), copies.plan()
            rows = copies.take(end)
            given += rows
            if end["until_ms"] != before["until_ms"] and chance.random() < 0.3:
                after, copies.at = copies.at, before
                assert sorted(copies.read(end)) == sorted(rows), "a repeat"
                copies.at = after
        if chance.random() < 0.1:
            copies.run += 1
            copies.plan()
    copies.moved.clear()
    for replica, until_ms in (("b", 50_000), ("a", 60_000)):
        copies.give_out(replica, until_ms)
        for _ in range(3):  # a run that begins, what the first replica still has, and the other one
            given += copies.take(copies.plan())
    assert sorted(given) == copies.rows
    assert copies.moved == {"a", "b"}
    assert not any(list_late(open_storage(agent.home), "board") for agent in copies.agents.values()), "no row is late"


def test_the_replica_that_is_not_read_learns_what_is_not_needed(copies: Copies) -> None:
    copies.rows = [500, 1_500, 2_500, 3_500]
    copies.plan()
    copies.give_out("a", 2_000)
    copies.give_out("b", 1_000)
    copies.give_out("b", 4_000)
    end = copies.plan()
    assert (end["replica"], end["until_ms"], end["since"], end["others"]) == ("b", 4_000, 0, {"a": 0})
    assert sorted(copies.take(end)) == copies.rows
    assert copies.at["first"] == 2, "no batch of b is needed"


def test_a_replica_that_cannot_be_read_is_none(copies: Copies, caplog: pytest.LogCaptureFixture) -> None:
    copies.rows = [500, 1_500]
    copies.plan()
    copies.give_out("a", 1_000)
    assert copies.take(copies.plan()) == [500]
    shutil.rmtree(Path(copies.agents["a"].home) / "manifests")
    copies.agents["a"].calls.tidy()
    copies.give_out("b", 2_000)
    copies.run += 1
    copies.plan()
    end = copies.plan()
    assert end["replica"] == "b"
    assert copies.take(end) == [1_500]


def test_what_the_writer_does_not_vouch_for_is_not_given_out(copies: Copies) -> None:
    """By its rows alone a channel would be complete up to the last one."""
    copies.rows = [500, 5_500]
    copies.plan()
    copies.give_out("a", 6_000, says=False)
    assert copies.take(copies.plan()) == []


@pytest.mark.parametrize(("notes", "gone", "replica"), [(True, 6, "b"), (False, 0, "b"), (False, 15, "a")])
def test_rows_that_the_other_replica_has_let_go_are_not_passed_over(
    notes: bool, gone: int, replica: str, copies: Copies
) -> None:
    """A channel keeps what a stream needs that notes how far it is. For one that does not it may let rows go."""
    copies.rows, copies.notes = list(range(500, 30_000, 1_000)), notes
    copies.plan()
    for until_ms in range(1_000, 6_001, 1_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    assert copies.take(copies.plan()) == copies.rows[:6]
    for until_ms in range(7_000, 26_001, 1_000):
        copies.give_out("b", until_ms)
    manifest.retire(open_storage(copies.agents["b"].home), gone)
    copies.agents["b"].calls.tidy()
    copies.run += 1
    copies.plan()
    end = copies.plan()
    assert end["replica"] == replica
    assert copies.take(end) == (copies.rows[6:26] if replica == "b" else [])
