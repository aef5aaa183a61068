"""A stream by buckets that reads the channel of one replica or of the other one: each row once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import unions
from spark_cec.agent.output_cache import OutputCache
from spark_cec.errors import LogLocationError, NoAnswer
from spark_cec.log import manifest
from spark_cec.log.late import list_late
from tests.agent.copies import Copies, make_copies
from tests.agent.support import Refused


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


@pytest.mark.parametrize("error", [OSError("EIO"), LogLocationError("there", "is gone"), NoAnswer("no answer")])
@pytest.mark.parametrize(("bad", "good"), ["ab", "ba"])
def test_a_replica_that_cannot_be_read_any_more_is_none(
    bad: str, good: str, error: Exception, copies: Copies
) -> None:
    """In the midst of a run, in which the stream has looked at both."""
    begin_beside(copies)
    copies.give_out(good, 8_000)
    with unreadable(copies, bad, error):
        end = copies.plan()
        assert end["replica"] == good
        assert copies.take(end) == copies.rows[6:8]
    copies.give_out(bad, 8_000)
    copies.give_out(bad, 9_000)
    assert copies.take(copies.plan()) == copies.rows[8:9], "it can be read again"


@contextmanager
def unreadable(copies: Copies, replica: str, error: Exception | None = None) -> Iterator[None]:
    """Nobody can look at that replica meanwhile."""
    handler: Any = copies.agents["a"].calls._by_name["view_splits"][1]
    readers = handler.__self__
    find, path = readers.find_log_or_none, copies.agents[replica].checkpoint

    def fail(request: Any, *more: Any) -> Any:
        if request.path == path:
            raise error or OSError("EIO")
        return find(request, *more)

    with pytest.MonkeyPatch.context() as away:
        away.setattr(readers, "find_log_or_none", fail)
        yield


@pytest.mark.parametrize("ends", [
    (13_000,), (6_000, 8_000, 9_000, 10_000, 11_000, 12_000, 13_000),
], ids=["fewer batches", "more"])  # fmt: skip
@pytest.mark.parametrize("replica", "ab")
def test_a_replica_is_brought_back_while_it_cannot_be_read(
    replica: str, ends: tuple[int, ...], copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has looked at both, and reads a."""
    monkeypatch.setattr(unions, "EMPTY_WAIT_MS", -1)
    begin_beside(copies)
    with unreadable(copies, replica):
        copies.take(copies.plan())
    bring_back(copies, replica, 4)
    given = take_some(copies, 1)
    for until_ms in ends:
        copies.give_out(replica, until_ms)
    given += take_some(copies)
    copies.give_out("b" if replica == "a" else "a", 13_000)
    assert given + take_some(copies) == copies.rows[6:13]


def test_what_the_writer_does_not_vouch_for_is_not_given_out(copies: Copies) -> None:
    """By its rows alone a channel would be complete up to the last one."""
    copies.rows = [500, 5_500]
    copies.plan()
    copies.give_out("a", 6_000, says=False)
    assert copies.take(copies.plan()) == []


@pytest.mark.parametrize(("how", "gone", "replica"), [
    ({}, 6, "b"), ({"notes": False}, 0, "b"), ({"notes": False}, 15, "a"), ({"kept": True}, 0, "b"),
    ({"kept": True}, 15, "a"),
])  # fmt: skip
def test_rows_that_the_other_replica_has_let_go_are_not_passed_over(
    how: dict[str, bool], gone: int, replica: str, copies: Copies
) -> None:
    """A channel keeps what a stream needs that notes how far it is. For one that does not it may let rows go.

    That of a flow with `kept=True` keeps what `output.retainBatches` says, whatever its readers note.
    """
    copies.rows = list(range(500, 30_000, 1_000))
    for name, value in how.items():
        setattr(copies, name, value)
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


def test_rows_that_both_replicas_let_go_under_a_planned_batch_are_not_passed_over(copies: Copies) -> None:
    """The first batch of a stream that does not note how far it is: no channel keeps anything for it."""
    copies.rows, copies.notes = list(range(500, 30_000, 1_000)), False
    copies.plan()
    for until_ms in range(1_000, 6_001, 1_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    end = copies.plan()
    for agent in copies.agents.values():
        manifest.retire(open_storage(agent.home), 3)
    with pytest.raises(Refused, match="not kept any more"):
        copies.read(end)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new run", "the same run"])
@pytest.mark.parametrize("how", [{"notes": False}, {"kept": True}], ids=["outside", "kept"])
def test_rows_that_the_replica_that_was_read_has_let_go_are_read_in_the_other_one(
    how: dict[str, bool], is_new: bool, copies: Copies
) -> None:
    """Nothing is planned in the first one: Spark's offset log would name its batches at each later start."""
    for name, value in how.items():
        setattr(copies, name, value)
    begin_beside(copies)
    let_go(copies, "ab", "a", is_new=is_new)
    end = copies.plan()
    assert end["replica"] == "b"
    assert copies.take(end) == copies.rows[6:26]
    copies.give_out("a", 28_000)
    assert copies.take(copies.plan()) == copies.rows[26:28] and copies.at["replica"] == "a", "it can be read again"


@pytest.mark.parametrize("is_new", [True, False], ids=["a new run", "the same run"])
def test_no_batch_is_planned_of_rows_that_both_replicas_have_let_go(is_new: bool, copies: Copies) -> None:
    copies.kept = True
    begin_beside(copies)
    let_go(copies, "ab", "ab", is_new=is_new)
    with pytest.raises(Refused, match=r"batches 6 to 14 .*not kept any more") as refused:
        copies.plan()
    assert refused.value.kind == "NotKept"


@pytest.mark.parametrize("loss", ["damaged", "let go"])
def test_a_batch_that_was_begun_is_read_in_its_replica_until_its_plan_is_taken_back(
    loss: str, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/replicas.md says, with what the user does then. A look reads no rows, so it finds no damage in them."""
    monkeypatch.setattr(OutputCache, "find", lambda *_: None)  # the rows are on the disk alone
    copies.kept = True
    begin_beside(copies)
    for until_ms in (7_000, 8_000, 9_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    end = copies.plan()
    assert end["replica"] == "a"
    if loss == "damaged":
        [segment] = (Path(copies.agents["a"].home) / "segments").glob("*")
        segment.write_bytes(segment.read_bytes()[:-1] + b"!")
    else:
        manifest.retire(open_storage(copies.agents["a"].home), 8)
    for _ in range(2):  # Spark's offset log says what the batch reads
        with pytest.raises(Refused, match="damaged log" if loss == "damaged" else "not kept any more"):
            copies.read(end)
    for until_ms in (15_000, 20_000):
        copies.give_out("b", until_ms)
    copies.run += 1  # the plan was taken back
    copies.plan()
    end = copies.plan()
    assert end["replica"] == "b", "it is more than ten seconds ahead"
    assert copies.take(end) == copies.rows[6:20]
    for until_ms in (12_000, 16_000, 23_000):
        copies.give_out("a", until_ms)
    assert copies.take(copies.plan()) == copies.rows[20:23] and copies.at["replica"] == "a"


def let_go(copies: Copies, given: str, gone: str, *, is_new: bool) -> None:
    """Replicas give out rows up to 26 s, and let their first 15 batches go. `is_new`: in a stop of the query."""
    for until_ms in range(7_000, 26_001, 1_000):
        for each in given:
            copies.give_out(each, until_ms)
    for each in gone:
        manifest.retire(open_storage(copies.agents[each].home), 15)
        copies.agents[each].calls.tidy()
    if is_new:
        copies.run += 1
        copies.plan()


def begin_beside(copies: Copies) -> None:
    """The stream has read six batches of a, has looked at those of b, and now a stands still."""
    copies.rows = list(range(500, 30_000, 1_000))
    copies.plan()
    for until_ms in range(1_000, 6_001, 1_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    assert copies.take(copies.plan()) == copies.rows[:6] and copies.at["replica"] == "a"
    assert copies.plan()["until_ms"] == 6_000, "it looks at both"


@pytest.mark.parametrize(("gone", "replica"), [(6, "b"), (7, "a")])
def test_rows_that_were_let_go_since_the_last_look_are_not_passed_over(
    gone: int, replica: str, copies: Copies
) -> None:
    """The stream knows from which batch on it may need rows of b: from 6 on."""
    begin_beside(copies)
    for until_ms in range(7_000, 26_001, 1_000):
        copies.give_out("b", until_ms)
    manifest.retire(open_storage(copies.agents["b"].home), gone)
    end = copies.plan()
    assert end["replica"] == replica
    assert copies.take(end) == (copies.rows[6:26] if replica == "b" else [])


@pytest.mark.parametrize("ends", [
    (12_000,), (8_000, 12_000), (5_000, 7_000, 9_000, 11_000, 12_000),
], ids=["fewer batches", "as many", "more"])  # fmt: skip
def test_a_replica_that_was_brought_back_from_a_copy_is_read_anew(
    ends: tuple[int, ...], copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has four of six batches. Its batches are others from then on, and their numbers say nothing.

    The old facts say that stable buckets have no rows. A batch without rows comes after a while.
    """
    monkeypatch.setattr(unions, "EMPTY_WAIT_MS", -1)
    begin_beside(copies)
    bring_back(copies, "b", 4)
    for until_ms in ends:
        copies.give_out("b", until_ms)
    end = copies.plan()
    assert end["replica"] == "b"
    assert copies.take(end) == copies.rows[6:12]
    copies.give_out("a", 20_000)
    assert copies.take(copies.plan()) == copies.rows[12:20]


def test_a_replica_that_was_brought_back_under_the_stream_that_reads_it(copies: Copies) -> None:
    """It has the rows in other batches, so the stream goes on in the other one, and not at a number."""
    begin_beside(copies)
    bring_back(copies, "a", 4)
    for until_ms in (8_000, 10_000, 12_000, 14_000):
        copies.give_out("a", until_ms)
    copies.give_out("b", 12_000)
    end = copies.plan()
    assert end["replica"] == "b"
    assert copies.take(end) == copies.rows[6:12]
    assert copies.take(copies.plan()) == copies.rows[12:14] and copies.at["replica"] == "a"


class Life:
    """Replicas give out rows and are brought back, and the query reads and is started again, at random."""

    def __init__(self, seed: int, copies: Copies) -> None:
        self.chance, self.copies, self.given = random.Random(seed), copies, list[int]()
        self.said, self.fails = {each: [0] for each in "ab"}, True
        self.files = {each: [read_files(copies, each)] for each in "ab"}
        copies.trims = self.chance.random() < 0.7
        copies.rows = sorted({self.chance.randint(1, 40_000) for _ in range(80)})
        copies.max_rows = self.chance.choice([None, None, 1, 5])

    def give_out(self, replica: str, until_ms: int) -> None:
        self.copies.give_out(replica, until_ms)
        self.said[replica].append(until_ms)
        self.files[replica].append(read_files(self.copies, replica))

    def give_some(self, replica: str) -> None:
        if self.copies.passed[replica] < 41_000:
            self.give_out(replica, self.copies.passed[replica] + self.chance.randint(0, 3_000))

    def bring_back(self, replica: str) -> None:
        batches = self.chance.randint(0, self.copies.batches[replica])
        del self.said[replica][batches + 1 :]
        del self.files[replica][batches + 1 :]
        bring_back(self.copies, replica, batches, self.said[replica][-1])
        put_files(self.copies, replica, self.files[replica][-1])
        for _ in range(self.chance.randint(0, 4)):
            self.give_some(replica)

    def read(self) -> None:
        """A query that fails is started again. Now and then a replica cannot be read."""
        bad = self.chance.choice("ab") if self.fails and self.chance.random() < 0.1 else None
        try:
            with unreadable(self.copies, bad) if bad else nullcontext():
                end = self.copies.plan()
            self.given += self.copies.take(end)
        except (Refused, OSError):
            self.copies.run += 1

    def step(self) -> None:
        if self.chance.random() < 0.6:
            self.give_some(self.chance.choice("ab"))
        if self.chance.random() < 0.08:
            self.bring_back(self.chance.choice("ab"))
        if self.chance.random() < 0.6:
            self.read()
        if self.chance.random() < 0.05:
            self.copies.stop()

    def end(self) -> None:
        """No failure is there to stay."""
        self.copies.max_rows, self.fails = None, False
        for replica, until_ms in (("b", 50_000), ("a", 60_000), ("b", 70_000)):
            self.give_out(replica, until_ms)
            for _ in range(4):
                self.read()


@pytest.mark.parametrize("seed", range(40))
def test_replicas_are_brought_back_at_random(seed: int, copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also twice, to no batch at all, and under a query that is started again. No row is lost or doubled."""
    monkeypatch.setattr(unions, "EMPTY_WAIT_MS", -1)
    life = Life(seed, copies)
    for _ in range(150):
        life.step()
    life.end()
    assert sorted(life.given) == copies.rows, f"seed {seed}"


def read_files(copies: Copies, replica: str) -> dict[str, bytes]:
    """The manifests and the notes of readers, as a copy of a replica has them."""
    home = Path(copies.agents[replica].home)
    found = [*home.glob("manifests/*"), *home.glob("readers/*")]
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def put_files(copies: Copies, replica: str, files: dict[str, bytes]) -> None:
    """Puts a copy in the place of the present files."""
    home = Path(copies.agents[replica].home)
    for name in read_files(copies, replica):
        (home / name).unlink()
    for name, content in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(content)


def bring_back(copies: Copies, replica: str, batches: int, until_ms: int | None = None) -> None:
    """Takes a replica back to so many batches behind the back of its readers.

    `until_ms`: it has then given out the rows below; None if each batch had those of a second.
    """
    home = Path(copies.agents[replica].home)
    for path in sorted((home / "manifests").glob("[0-9]*"))[batches:]:
        path.unlink()
    copies.batches[replica] = batches
    copies.passed[replica] = batches * 1_000 if until_ms is None else until_ms
    if until_ms is not None:
        (home / "boundary.json").unlink(missing_ok=True)


@pytest.mark.parametrize("ends", [(8_000, 12_000), (8_000, 9_000, 12_000)], ids=["as many", "more"])
def test_a_replica_that_was_brought_back_while_the_query_was_stopped(ends: tuple[int, ...], copies: Copies) -> None:
    """The first call of a run plans nothing, so the second one must compare the batch."""
    begin_beside(copies)
    bring_back(copies, "a", 4)
    for until_ms in ends:
        copies.give_out("a", until_ms)
    copies.run += 1
    given = take_some(copies)
    for each in "ab":
        copies.give_out(each, 13_000)
    assert given + take_some(copies) == copies.rows[6:13]


def test_a_replica_that_has_as_many_batches_again(copies: Copies) -> None:
    """The stream has looked at six batches, and has read three of them: its own batches are bounded."""
    copies.rows, copies.max_rows = list(range(500, 30_000, 1_000)), 1
    copies.plan()
    for until_ms in range(1_000, 6_001, 1_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    given = [row for _ in range(3) for row in copies.take(copies.plan())]
    bring_back(copies, "a", 4)
    for until_ms in (8_000, 12_000):
        copies.give_out("a", until_ms)
    given += take_some(copies, 8)
    for until_ms in (13_000, 14_000):
        for each in "ab":
            copies.give_out(each, until_ms)
    assert given + take_some(copies, 20) == copies.rows[:14]


def test_a_replica_that_was_brought_back_learns_nothing_by_its_old_numbers(copies: Copies) -> None:
    begin_beside(copies)
    bring_back(copies, "b", 4)
    for until_ms in (8_000, 12_000):
        copies.give_out("b", until_ms)
    copies.give_out("a", 7_000)
    end = copies.plan()
    assert copies.take(end) == copies.rows[6:12] if end["replica"] == "b" else end["others"]["b"] < 4


def test_a_replica_that_was_brought_back_and_has_let_go_what_was_looked_at(copies: Copies) -> None:
    copies.kept = True
    begin_beside(copies)
    bring_back(copies, "b", 4)
    for until_ms in (8_000, 12_000, 13_000):
        copies.give_out("b", until_ms)
    manifest.retire(open_storage(copies.agents["b"].home), 6)
    given = take_some(copies, 3)
    copies.give_out("a", 14_000)
    assert given + take_some(copies) == copies.rows[6:14]


@pytest.mark.parametrize("ends", [
    (15_000, 30_000, 31_000, 32_000, 33_000, 34_000, 35_000, 36_000), (36_000,), (29_000, 33_000, 36_000),
])  # fmt: skip
@pytest.mark.parametrize("note", ["of the copy", "none"])
def test_a_replica_that_was_brought_back_lets_nothing_go_by_an_old_note(
    note: str, ends: tuple[int, ...], copies: Copies
) -> None:
    """The query in b stops, and notes how far it is, after a was brought back."""
    copies.rows = list(range(500, 60_000, 1_000))
    copies.plan()
    for until_ms in range(1_000, 31_000, 1_000):
        for each in "ab":
            copies.give_out(each, until_ms)
        if until_ms == 4_000:
            files = read_files(copies, "a")
        copies.note("a", until_ms // 1_000 - 1)
    assert copies.take(copies.plan())[-1] == 29_500
    copies.give_out("b", 31_000)
    assert copies.take(copies.plan()) == [30_500] and copies.at["replica"] == "b"
    bring_back(copies, "a", 4)
    put_files(copies, "a", files if note == "of the copy" else {k: v for k, v in files.items() if "readers" not in k})
    copies.stop()
    copies.trims = True
    for until_ms in ends:
        copies.give_out("a", until_ms)
    assert take_some(copies) == copies.rows[31:36]


def take_some(copies: Copies, plans: int = 6) -> list[int]:
    """The rows of the next batches."""
    return [row for _ in range(plans) for row in copies.take(copies.plan())]
