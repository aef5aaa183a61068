"""Replicas agree on the batches of a source: the first one decides, and nothing is decided twice."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.agent import agreements
from spark_cec.agent.agreements import AgreementCalls, ReplicasDiffer
from spark_cec.agent.messages import AgreeRequest
from spark_cec.errors import DamagedLog


class Replica:
    """One replica's process, which may be started again; `ends` by batch, as Spark's offset log has them."""

    def __init__(self, place: Path, name: str) -> None:
        self.place, self.name = f"{place}/agreed/web", name
        self.calls = AgreementCalls()
        self.ends: list[str] = []

    def ask(self, batch: int, start: str, end: str, *, decides: bool = True) -> str | None:
        request = AgreeRequest(
            place=self.place, replica=self.name, batch=batch, start=start, end=end, decides=decides
        )
        answer = self.calls.agree(request)
        self.follows = answer.follows
        return answer.end

    def begin(self, offset: str) -> None:
        self.begins = self.ask(-1, "", offset) or ""

    def step(self, end: str) -> None:
        batch = len(self.ends)
        self.ends.append(self.ask(batch, self.ends[-1] if self.ends else self.begins, end) or "")

    def restart(self) -> None:
        self.calls = AgreementCalls()


def test_the_first_one_decides(tmp_path: Path) -> None:
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    a.begin("7")
    b.begin("8")
    assert b.begins == "7"
    b.step("20")
    a.step("30")
    a.step("31")
    assert (a.ends, b.ends) == (["20", "31"], ["20"])


def test_a_look_decides_nothing(tmp_path: Path) -> None:
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b):
        each.begin("0")
    assert b.ask(0, "0", "9", decides=False) is None and not b.follows
    a.step("5")
    assert not a.follows
    assert b.ask(0, "0", "9", decides=False) == "5" and b.follows


@pytest.mark.parametrize("seed", range(30))
def test_replicas_run_the_same_batches(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With restarts, and while old agreements are deleted."""
    monkeypatch.setattr(agreements, "TIDY_EVERY", 3)
    monkeypatch.setattr(agreements, "KEPT", 2)
    chance = random.Random(seed)
    replicas = [Replica(tmp_path, name) for name in "ab"]
    for each in replicas:
        each.begin(str(chance.randint(0, 9)))
    for _ in range(60):
        each = chance.choice(replicas)
        each.step(str(chance.randint(0, 1_000_000)))
        if chance.random() < 0.2:
            each.restart()
    shared = min(len(each.ends) for each in replicas)
    assert shared > 5 and replicas[0].ends[:shared] == replicas[1].ends[:shared]
    kept = [each.name for each in open_storage(replicas[0].place).list("") if each.name[0] == "0"]
    assert len(kept) < 60 - shared + 15, "what both have passed is deleted"


def test_batches_that_begin_elsewhere_are_refused(tmp_path: Path) -> None:
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    a.begin("0")
    b.begin("0")
    a.step("5")
    with pytest.raises(ReplicasDiffer, match=r"batch 0 of replica b begins at 1 .* replica a has begun it at 0"):
        b.ask(0, "1", "6")


@pytest.mark.parametrize("batch", [0, 4])
def test_what_was_decided_is_not_decided_again(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a replica that was restored from an old copy, or whose folder was removed."""
    monkeypatch.setattr(agreements, "TIDY_EVERY", 2)
    monkeypatch.setattr(agreements, "KEPT", 0)
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b):
        each.begin("0")
    for number in range(9):
        a.step(str(number + 1))
        b.step("-")
    b.restart()
    b.begin("7")
    assert b.begins == "0"
    for _ in range(2):
        with pytest.raises(ReplicasDiffer, match=rf"replica b is to run batch {batch}, .* kept from batch 8 on"):
            b.ask(batch, str(batch), "999")
    assert not open_storage(b.place).exists(f"{batch:019d}.json")


def test_agreements_that_were_moved_away_are_not_made_anew(tmp_path: Path) -> None:
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b):
        each.begin("10")
        each.step("15")
    a.step("20")
    Path(a.place).rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(ReplicasDiffer, match="the agreements of the replicas are gone"):
            b.step("25")
    assert not Path(a.place, f"{1:019d}.json").exists()
    for left in Path(a.place).iterdir():
        left.unlink()
    Path(a.place).rmdir()
    (tmp_path / "away").rename(a.place)
    b.step("25")
    assert b.ends == ["15", "20"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_replica_that_is_too_far_behind_is_refused(
    has_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it runs all the time or comes for the first time."""
    monkeypatch.setattr(agreements, "TIDY_EVERY", 1)
    monkeypatch.setattr(agreements, "MOST_BEHIND", 5)
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b)[: 2 if has_begun else 1]:
        each.begin("0")
        each.step("1")
    for number in range(1, 12):
        a.step(str(number + 1))
    if not has_begun:
        b.begin("20")
    for _ in range(2):
        with pytest.raises(ReplicasDiffer, match="kept from batch 6 on"):
            b.step("50")
    assert b.ends in ([], ["1"])


def test_a_replica_that_never_came_is_waited_for_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreements, "TIDY_EVERY", 1)
    monkeypatch.setattr(agreements, "MOST_BEHIND", 10)
    a = Replica(tmp_path, "a")
    a.begin("0")
    with caplog.at_level(logging.WARNING):
        for batch in range(14):
            a.step(str(batch + 1))
    kept = [each.name for each in open_storage(a.place).list("") if each.name[0] == "0"]
    assert len(kept) == 11
    assert "replica b is 14 batches behind" in caplog.text


def test_a_damaged_agreement_is_named(tmp_path: Path) -> None:
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b):
        each.begin("0")
    a.step("5")
    path = Path(a.place) / f"{0:019d}.json"
    path.write_bytes(path.read_bytes().replace(b'"5"', b'"6"'))
    with pytest.raises(DamagedLog, match="agreement of replicas"):
        b.step("7")


def test_a_damaged_note_of_one_replica_does_not_stop_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one alone writes it, and may be gone. Agreements are kept meanwhile."""
    monkeypatch.setattr(agreements, "KEPT", 2)
    a, b = Replica(tmp_path, "a"), Replica(tmp_path, "b")
    for each in (a, b):
        each.begin("0")
    for number in range(agreements.TIDY_EVERY):
        for each in (a, b):
            each.step(str(number))
    note = next((tmp_path / "agreed/web").glob("at-b*"))
    note.write_bytes(note.read_bytes()[:-4])
    for number in range(2 * agreements.TIDY_EVERY):
        a.step(str(agreements.TIDY_EVERY + number))
    assert len(a.ends) == 3 * agreements.TIDY_EVERY


def test_a_full_disk_at_a_tidying_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreements, "TIDY_EVERY", 1)
    a = Replica(tmp_path, "a")
    a.begin("0")

    def fail(*_: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(LocalStorage, "list", fail)
    a.step("5")
    assert a.ends == ["5"]
