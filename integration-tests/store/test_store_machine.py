"""A random machine against a dict: batches, aborts, retries, forks, fresh providers, readers and dead agents."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from store_it.history import seeded
from store_it.jvm import Key, Step, Stores, Value
from store_it.operators import State
from store_it.providers import Provider, Store

STEPS = 45
KEYS = 25


class Machine:
    """A store in eager mode beside `versions`, the state that each version must have."""

    def __init__(self, jvm: Stores, checkpoint: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.jvm = jvm
        self.grouped = self.rng.random() < 0.5
        bounds = {
            "Q": self.rng.choice(["1x", "1.5x", "3x", "40"]),
            "CI": self.rng.choice(["0ms", "10ms"]),
            "CP": "10ms",
            "memory": "4KiB" if seed % 2 else "50%",
        }
        self.provider = Provider(jvm, checkpoint, self.grouped, {**bounds, "log__segmentBytes": "8KiB"}, partition=seed)
        self.versions: dict[int, State] = {0: {}}
        self.version = 0
        self.dead_agents = 0

    def key(self) -> Key:
        key = self.rng.randrange(KEYS)
        return (key % 5, key) if self.grouped else (key,)

    def value(self) -> Value:
        return (self.rng.randrange(1000), self.rng.randrange(1000))

    def mutate(self, store: Store, state: State) -> State:
        """Random puts and removes, with reads between them."""
        state = dict(state)
        steps: list[Step] = []
        for _ in range(self.rng.choice([0, 1, 3, 10, 40])):
            key = self.key()
            if self.rng.random() < 0.6:
                state[key] = self.value()
                steps.append(("put", key, state[key]))
            else:
                state.pop(key, None)
                steps.append(("remove", key))
        if self.rng.random() < 0.05:
            steps += [("remove", key) for key in state]
            state = {}
        store.do(*steps)
        self.compare(store, state)
        return state

    def compare(self, store: Store, state: State) -> None:
        what = self.rng.random()
        if what < 0.4:
            assert store.iterate() == state
        elif what < 0.7:
            key = self.key()
            assert store.get(*key) == state.get(key)
        elif self.grouped:
            group = self.rng.randrange(6)
            assert store.scan(group) == {key: value for key, value in state.items() if key[0] == group}

    def batch(self, version: int) -> None:
        """A batch at a version, committed; later versions of another line stay as they are."""
        store = self.provider.store(version)
        state = self.mutate(store, self.versions[version])
        assert store.commit() == version + 1
        assert store.metrics()["numKeys"] == len(state)
        self.compare(store, state)
        self.versions[version + 1] = state
        self.version = version + 1

    def new_batch(self) -> None:
        self.batch(self.version)

    def retried_batch(self) -> None:
        self.batch(max(self.version - 1, 0))

    def old_batch(self) -> None:
        self.batch(self.rng.choice(sorted(self.versions)))

    def given_up_batch(self) -> None:
        store = self.provider.store(self.version)
        self.mutate(store, self.versions[self.version])
        store.do((self.rng.choice(["abort", "release"]),))

    def forgotten_batch(self) -> None:
        """Neither committed nor aborted: the next one of the same thread takes its place."""
        self.mutate(self.provider.store(self.version), self.versions[self.version])

    def read(self) -> None:
        version = self.rng.choice(sorted(self.versions))
        provider = self.provider if self.rng.random() < 0.5 else self.provider.fresh()
        assert provider.read(version) == self.versions[version]

    def restart(self) -> None:
        self.provider = self.provider.fresh()

    def kill_agent(self) -> None:
        pid = self.jvm.agent_pid()
        if pid is not None and self.dead_agents < 1:
            os.kill(pid, signal.SIGKILL)
            self.dead_agents += 1

    def run(self) -> None:
        moves = {
            self.new_batch: 40,
            self.retried_batch: 8,
            self.old_batch: 3,
            self.given_up_batch: 8,
            self.forgotten_batch: 3,
            self.read: 12,
            self.restart: 6,
            self.kill_agent: 1,
        }
        for move in self.rng.choices(list(moves), list(moves.values()), k=STEPS):
            move()
        for version in self.rng.sample(sorted(self.versions), min(len(self.versions), 8)):
            assert self.provider.fresh().read(version) == self.versions[version], f"version {version}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all machines: their frames share the segments."""
    return tmp_path_factory.mktemp("checkpoint")


@pytest.mark.parametrize("first_seed", range(0, 20, 5))
def test_random_store_machine(jvm: Stores, checkpoint: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 5):
        with seeded(seed):
            Machine(jvm, str(checkpoint), seed).run()
