"""A store that writes when it is asked to, and nothing with its commits, against a dict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from store_it.history import LogReader, seeded
from store_it.jvm import Key, Refused, Stores
from store_it.operators import State

from spark_cec.ids import StoreId

BATCHES, KEYS = 30, 12


class SilentStore:
    """`versions` of the history under way; `written` are those that the log has, and `lost` what was given up."""

    def __init__(self, jvm: Stores, home: str, seed: int, grouped: bool | None = None) -> None:
        self.rng = random.Random(seed)
        self.jvm, self.home, self.operator = jvm, home, seed
        self.grouped = self.rng.random() < 0.5 if grouped is None else grouped
        self.memory = "4KiB" if seed % 2 else "50%"
        self.versions: dict[int, State] = {0: {}}
        self.written = [0]
        self.generation = self.moves = 0
        self.start(0)

    def start(self, version: int) -> None:
        """A run of the query that goes on from a version."""
        self.generation += 1
        self.version = self.began = version
        self.open()
        self.do(("begin", version))

    def open(self) -> None:
        """The run has the store in a JVM that has not had it before."""
        self.moves += 1
        self.target = f"silent/{self.operator}/{self.generation}/{self.moves}"
        self.jvm.ask(
            "state", name=self.target, home=self.home, operator=self.operator, partition=0,
            generation=self.generation, grouped=self.grouped, deferred=self.rng.random() < 0.5, replay_to=self.began,
            retained=100, silent=True, conf=self.jvm.conf(memory=self.memory, log__segmentBytes="8KiB"),
        )  # fmt: skip

    def do(self, *steps: object) -> list[object]:
        return self.jvm.do(self.target, *steps)  # type: ignore[arg-type]

    def key(self) -> Key:
        key = self.rng.randrange(KEYS)
        return (key % 3, key) if self.grouped else (key,)

    def mutate(self, state: State) -> State:
        state, steps = dict(state), []
        for _ in range(self.rng.choice([0, 1, 4, 12])):
            key = self.key()
            if self.rng.random() < 0.55:
                state[key] = (self.rng.randrange(1000), self.rng.randrange(1000))
                steps.append(("put", key, state[key]))
            else:
                state.pop(key, None)
                steps.append(("remove", key))
        self.do(*steps)
        return state

    def there(self) -> State:
        return {tuple(key): tuple(value) for key, value in self.do(("iterate",))[0]}  # type: ignore[attr-defined]

    def batch(self) -> None:
        self.do(("begin", self.version))
        assert self.there() == self.versions[self.version]
        state = self.mutate(self.versions[self.version])
        if self.rng.random() < 0.15:
            self.do(("rollback",))
            return
        self.do(("commit", 5, 1))
        assert self.there() == state
        self.version += 1
        self.versions[self.version] = state

    def batch_again(self) -> None:
        """The function of a `foreachBatch` looks twice, and sees other rows, or gives up half way."""
        if self.version in self.written or self.version - 1 not in self.versions:
            return
        self.do(("begin", self.version - 1))
        assert self.there() == self.versions[self.version - 1]
        state = self.mutate(self.versions[self.version - 1])
        if self.rng.random() < 0.3:
            self.do(("rollback",))
            assert self.there() == self.versions[self.version]
            return
        self.do(("commit", 5, 1))
        self.versions[self.version] = state

    def checkpoint(self) -> None:
        self.do(("flush",), *([("flush",)] if self.rng.random() < 0.3 else []))
        if self.written[-1] != self.version:
            self.written.append(self.version)

    def move(self) -> None:
        """Another executor has the store, and nobody answers it: what the one before has written as it let go is there.

        No older version will do instead.
        """
        before = self.target
        self.open()
        if self.version in self.written:
            self.do(("begin", self.version))
            assert self.there() == self.versions[self.version]
            return
        with pytest.raises(Refused) as refused:
            self.do(("begin", self.version))
        assert refused.value.kind == "RestartNeeded"
        self.target = before

    def go_back(self) -> None:
        """A failure: all behind one of the newest checkpoints is given up."""
        at = self.rng.choice(self.written[-2:])
        self.written = [each for each in self.written if each <= at]
        self.versions = {version: state for version, state in self.versions.items() if version <= at}
        self.start(at)
        assert self.there() == self.versions[at]

    def run(self) -> None:
        moves = [self.batch] * 6 + [self.batch_again, self.checkpoint, self.checkpoint, self.move, self.go_back]
        for _ in range(BATCHES):
            self.rng.choice(moves)()
        self.checkpoint()
        for version in self.written[-4:]:
            self.start(version)
            assert self.there() == self.versions[version], f"version {version}"


@pytest.mark.parametrize("first_seed", [0, pytest.param(10, marks=pytest.mark.long)])
def test_silent_stores_come_back_as_they_were(jvm: Stores, tmp_path: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        with seeded(seed):
            SilentStore(jvm, str(tmp_path), seed).run()


def test_between_checkpoints_nothing_is_written_and_what_is_not_there_wants_a_restart(
    jvm: Stores, tmp_path: Path
) -> None:
    store = SilentStore(jvm, str(tmp_path), seed=0)
    before = sorted(path.stat().st_size for path in tmp_path.rglob("*.seg*"))
    for version in range(3):
        store.do(("begin", version), ("put", (1, 1) if store.grouped else (1,), (version, 0)), ("commit", 1, 1))
    assert sorted(path.stat().st_size for path in tmp_path.rglob("*.seg*")) == before
    store.start(0)
    with pytest.raises(Refused) as refused:
        store.do(("begin", 3))
    assert refused.value.kind == "RestartNeeded"


def test_a_frame_rests_on_the_one_before_it_and_has_no_more_than_what_changed(jvm: Stores, tmp_path: Path) -> None:
    store = SilentStore(jvm, str(tmp_path), seed=0, grouped=False)
    store.do(
        ("begin", 0), *(("put", (key,), (key, 0)) for key in range(9)), ("commit", 9, 1),
        ("begin", 1), ("commit", 0, 1), ("flush",),
        ("begin", 2), ("put", (0,), (7, 7)), ("put", (30,), (1, 1)), ("remove", (2,)), ("commit", 2, 1),
        ("begin", 3), ("remove", (30,)), ("remove", (1,)), ("put", (2,), (8, 8)), ("commit", 2, 1),
        ("begin", 4), ("remove", (3,)), ("remove", (4,)), ("commit", 2, 1),
        ("begin", 4), ("remove", (4,)), ("commit", 1, 1),  # the same batch, looked at once more
        ("flush",),
    )  # fmt: skip
    frames = LogReader(str(tmp_path))._index().frames(StoreId(0, 0), 0, 99)
    assert [each.meta.version for each in frames] == [2, 5]
    assert frames[1].meta.base_checkpoint_id == frames[0].meta.checkpoint_id
    # Changed: 0, and 2, which was closed and opened again; closed: 1 and 4. What was opened and closed was never there.
    assert (frames[1].meta.checked, frames[1].meta.closed) == (2, 2)
