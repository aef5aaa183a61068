"""Output that is taken back: what counts then, whoever crashes, is late, or reads meanwhile."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from spark_cec.errors import AlreadyExists, DamagedLog, Fenced, NewerFormat
from spark_cec.log.checked_json import encode_object
from spark_cec.log.manifest import (
    Manifest,
    PublishedBatches,
    batches,
    load,
    manifest_path,
    publish,
    retire,
    take_back,
)
from spark_cec.log.output_rollbacks import Cut, Cuts, append_cut, cut_path, read_all_cuts, read_cuts
from spark_cec.log.reader import verify
from spark_cec.log.storage import Storage
from tests.log.support import Crash, Fault, FaultyStorage, memory_storage


def written(batch: int, generation: int) -> Manifest:
    """What a run writes with a batch."""
    return Manifest(batch, (f"{generation:032x}",), generation, "{}", False, generation, 7)


def with_batches(last: int, generation: int = 1) -> Storage:
    """A log whose first run has written batches up to one."""
    storage = memory_storage()
    for batch in range(last + 1):
        publish(storage, written(batch, generation))
    return storage


def counting(storage: Storage) -> dict[int, int]:
    """The batches that count, and the runs that wrote them."""
    return {batch: load(storage, batch).generation for batch in batches(storage)}


def test_what_is_behind_a_cut_is_gone_and_written_anew() -> None:
    storage = with_batches(5)
    cut = take_back(storage, 2, 2)
    assert (cut.number, cut.after, cut.generation) == (0, 2, 2)
    assert counting(storage) == {0: 1, 1: 1, 2: 1}
    assert publish(storage, written(3, 2)) == written(3, 2)
    assert counting(storage) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert cut_path(0) == "cuts/00000000.json"
    assert read_cuts(storage).known == (cut,)


def test_all_of_it() -> None:
    storage = with_batches(2)
    take_back(storage, -1, 2)
    assert counting(storage) == {}
    assert PublishedBatches(storage).bounds() is None


def test_a_run_that_was_cut_off_is_told_and_changes_nothing() -> None:
    storage = with_batches(3)
    take_back(storage, 1, 2)
    with pytest.raises(Fenced, match="run 2 has taken back the output after batch 1, so that run 1 cannot publish"):
        publish(storage, written(4, 1))
    assert publish(storage, written(1, 1)) == written(1, 1), "that one counts"
    assert counting(storage) == {0: 1, 1: 1}


class Late(FaultyStorage):
    """Somebody else acts between the look at the cuts and the manifest."""

    def __init__(self, inner: Storage, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def create(self, path: str, data: object) -> None:
        self._act()
        super().create(path, data)  # type: ignore[arg-type]


def test_what_a_run_adds_that_does_not_know_yet_that_it_was_cut_off_does_not_count() -> None:
    storage = with_batches(3)
    follower = PublishedBatches(storage)
    assert follower.bounds() == (0, 3)
    publish(Late(storage, lambda: take_back(storage, 1, 2)), written(4, 1))
    assert storage.exists(manifest_path(4))
    assert counting(storage) == {0: 1, 1: 1}
    assert follower.bounds() == (0, 1)
    for batch in (2, 3):
        publish(storage, written(batch, 2))
        assert follower.bounds() == (0, batch)
    publish(storage, written(4, 2))
    assert follower.bounds() == (0, 4)
    assert load(storage, 4).generation == 2


def test_the_same_cut_again_is_one() -> None:
    storage = with_batches(3)
    take_back(storage, 1, 2)
    publish(storage, written(2, 2))
    take_back(storage, 1, 2)
    assert len(read_cuts(storage).known) == 1
    assert counting(storage) == {0: 1, 1: 1, 2: 2}, "what the run has written since stays"
    take_back(storage, 0, 3)
    assert [cut.after for cut in read_cuts(storage).known] == [1, 0]
    assert counting(storage) == {0: 1}


def _cut_and_go_on(storage: Storage) -> None:
    take_back(storage, 1, 2)
    for batch in (2, 3):
        publish(storage, written(batch, 2))


def _calls() -> int:
    storage = FaultyStorage(with_batches(5))
    _cut_and_go_on(storage)
    return storage.fault.calls


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, _calls() + 1))
def test_a_crash_at_every_step(call: int, when: str) -> None:
    """A reader sees what was there before the cut, or a beginning of what is there after it; and the cut is mended."""
    left = with_batches(5)
    follower = PublishedBatches(left)
    follower.bounds()
    with pytest.raises(Crash):
        _cut_and_go_on(FaultyStorage(left, Fault(call, when)))
    there = counting(left)
    if read_cuts(left).known:
        assert there in ({0: 1, 1: 1}, {0: 1, 1: 1, 2: 2}, {0: 1, 1: 1, 2: 2, 3: 2})
    else:
        assert there == dict.fromkeys(range(6), 1)
    assert follower.bounds() == PublishedBatches(left).bounds() == (0, max(there))
    _cut_and_go_on(left)
    assert counting(left) == {0: 1, 1: 1, 2: 2, 3: 2}
    assert follower.bounds() == (0, 3)
    assert not left.exists(manifest_path(4)) and not left.exists(manifest_path(5))


@pytest.mark.parametrize("seed", range(150))
def test_runs_that_are_cut_off_and_readers_at_any_time(seed: int) -> None:
    """Against a model: of each batch that counts, the run that wrote it."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    storage = memory_storage()
    model: list[int] = []  # of each batch, the run that wrote it
    reached = {1: 0}  # of each run, its next batch
    begun: dict[int, int] = {}  # of each run but the first, its first batch
    followers = [PublishedBatches(storage)]
    for _ in range(60):
        newest = max(reached)
        what = chance.random()
        if what < 0.55:
            publish(storage, written(len(model), newest))
            model.append(newest)
            reached[newest] = len(model)
        elif what < 0.75 and newest > 1:
            late = chance.randrange(1, newest)
            batch = reached[late]
            try:
                there = publish(storage, written(batch, late))
                assert batch < len(model) and there.generation == model[batch]
            except Fenced:
                assert any(run > late and cut <= batch for run, cut in begun.items())
        elif what < 0.85:
            after = chance.randrange(-1, len(model))
            take_back(storage, after, newest + 1)
            del model[after + 1 :]
            reached[newest + 1] = len(model)
            begun[newest + 1] = after + 1
        else:
            followers.append(PublishedBatches(storage))
        assert counting(storage) == dict(enumerate(model))
        bounds = (0, len(model) - 1) if model else None
        for each in chance.sample(followers, min(2, len(followers))):
            assert each.bounds() == bounds


def test_what_cannot_be_taken_back() -> None:
    storage = with_batches(9)
    retire(storage, 4)
    with pytest.raises(ValueError, match="kept from batch 4 on, and cannot end with batch 2"):
        take_back(storage, 2, 2)
    assert not read_cuts(storage).known
    take_back(storage, 3, 2)
    assert counting(storage) == {}


def test_two_that_cut_at_once() -> None:
    storage = with_batches(3)
    with pytest.raises(AlreadyExists):
        append_cut(Late(storage, lambda: append_cut(storage, 1, 2, 7)), 0, 3, 7)
    assert read_cuts(storage).known == (Cut(0, 1, 2, 7),)


def test_a_damaged_manifest_behind_a_cut_is_written_anew() -> None:
    storage = with_batches(3)
    storage.replace(manifest_path(3), b"{}")
    assert batches(storage) == [0, 1, 2, 3]
    take_back(storage, 1, 2)
    assert counting(storage) == {0: 1, 1: 1}


def test_a_cut_that_cannot_be_read_is_named() -> None:
    """Passed over, it would bring rows back."""
    storage = with_batches(3)
    storage.create(cut_path(0), b"{}")
    for step in (lambda: batches(storage), lambda: publish(storage, written(4, 1)), PublishedBatches(storage).bounds):
        with pytest.raises(DamagedLog, match=r"cuts/00000000\.json"):
            step()
    storage.replace(cut_path(0), encode_object({"after": 1, "generation": 2, "wall_ms": 7}).replace(b"1", b"2", 1))
    with pytest.raises(DamagedLog, match="the cut fails its checksum"):
        read_cuts(storage)


def test_a_cut_that_is_missing_is_named() -> None:
    """Those behind it would not be known, and what they take back would count again."""
    storage = memory_storage()
    for generation in (2, 3, 4):
        append_cut(storage, 1, generation, 0)
    storage.delete(cut_path(1))
    for look in (read_all_cuts, lambda it: append_cut(it, 0, 5, 0)):
        with pytest.raises(DamagedLog, match=r"00000001.json: this cut is missing, and 00000002.json is there"):
            look(storage)
    assert [each.segment for each in verify(storage).files] == [cut_path(1)]


def test_a_cut_of_a_later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = with_batches(3)
    with monkeypatch.context() as later:
        later.setattr("spark_cec.log.checked_json.FORMAT_VERSION", 2)
        append_cut(storage, 1, 2, 7)
    with pytest.raises(NewerFormat, match="format version 2"):
        batches(storage)


def test_cuts_are_followed_without_a_listing() -> None:
    storage = FaultyStorage(with_batches(3))
    cuts = Cuts(storage)
    assert not cuts.look()
    for number in range(3):
        append_cut(storage.inner, 2 - number, 2 + number, 7)
    assert cuts.look() and not cuts.look()
    assert [cut.after for cut in cuts.known] == [2, 1, 0]
    assert cuts.of(2, 2) == Cut(2, 0, 4, 7), "the newest, not the one that the run knows"
    assert cuts.of(1, 4) is None and cuts.of(0, 1) is None
    assert "list" not in storage.fault.seen


def test_a_cut_may_grow() -> None:
    storage = with_batches(3)
    fields = {"after": 1, "generation": 2, "wall_ms": 7, "of_later": [1]}
    storage.create(cut_path(0), encode_object(fields))
    assert read_cuts(storage).known == (Cut(0, 1, 2, 7),)
    assert dataclasses.asdict(read_cuts(storage).known[0])["wall_ms"] == 7
