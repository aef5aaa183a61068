"""Stores that go from one executor to another: each version that Spark may ask for is whole, wherever it asks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_it.history import AMPLE_MS, Bounds, History, LogReader, random_bounds, seeded
from store_it.jvm import Key, Refused, Stores, Value
from store_it.operators import Baskets, CountWindows, Deduplication, Operator, Sessions, apply_changes
from store_it.providers import Provider

NO_CHECKS = {"CI": "0ms", "CP": "1h"}
LOCK_TIMEOUT = "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs"

Make = Callable[..., Provider]

_partitions = itertools.count()
_operator_ids = itertools.count()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint, and so one log, for all stores."""
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    """One log for all histories: their frames interleave."""
    return LogReader(str(tmp_path_factory.mktemp("moves") / "log"))


@pytest.fixture(params=["50%", "4KiB"])
def make(request: pytest.FixtureRequest, jvm: Stores, checkpoint: Path) -> Make:
    """Makes providers of stores that no other test has; without checks, so that all updates stay dirty."""

    def made(**more: Any) -> Provider:
        settings = {**NO_CHECKS, "memory": request.param}
        return Provider(jvm, str(checkpoint), partition=next(_partitions), settings=settings, **more)

    return made


def states(upto: int) -> list[dict[Key, Value]]:
    """The state of each version: a window that every batch updates, one that the second batch updates, one for each."""
    found: list[dict[Key, Value]] = [{}]
    for version in range(upto):
        found.append({**found[-1], (0,): (version, 0), (10 + version,): (version, 1)})
        if version < 2:
            found[-1][1,] = (version, 2)
    return found


def run_to(provider: Provider, version: int, *, together: bool = False, first: int = 0) -> None:
    """The batches before `version`, in tasks of a query."""
    truth = states(version)
    for batch in range(first, version):
        changed = {key: value for key, value in truth[batch + 1].items() if truth[batch].get(key) != value}
        assert provider.run_task(batch, changed, together=together) == batch + 1


def test_a_store_is_given_away_only_at_the_version_that_it_has(make: Make, jvm: Stores) -> None:
    """A late task elsewhere may ask for a version that is long past. Dirty windows must not go because of it."""
    provider = make()
    run_to(provider, 4)
    for elsewhere in (1, 2, 6):
        assert jvm.ask("hand_over", name=provider.name, version=elsewhere) is False
        assert provider.read(4) == states(4)[4]
    assert jvm.ask("hand_over", name=provider.name, version=4) is True
    assert jvm.ask("hand_over", name=provider.name, version=4) is False
    assert provider.fresh().read(4) == states(4)[4]


def test_a_version_is_given_away_with_the_commit_after_it(make: Make, jvm: Stores) -> None:
    """A second run of a batch may look at some rows only. Then its first commit counts, and nobody else has it."""
    first = make()
    run_to(first, 4)
    second = first.fresh()
    assert second.look_in_task(3) == states(3)[3]
    assert first.fresh().read(4) == states(4)[4], "the log has it alone"
    assert first.fresh().read(3) == states(3)[3]
    third = first.fresh()
    assert third.look_in_task(4) == states(4)[4]
    run_to(third, 6, first=4)
    assert jvm.ask("hand_over", name=third.name, version=6) is True
    assert first.fresh().read(6) == states(6)[6]


def test_a_commit_that_waits_for_the_end_of_its_batch_is_given_away_too(make: Make, jvm: Stores) -> None:
    provider = make()
    run_to(provider, 3)
    assert jvm.ask("hand_over", name=provider.name, version=3) is True
    run_to(provider, 4, first=3, together=True)
    with pytest.raises(Refused):
        provider.fresh().read(4)
    assert jvm.ask("hand_over", name=provider.name, version=3) is True
    assert provider.fresh().read(4) == states(4)[4]
    assert provider.fresh().read(3) == states(3)[3]


def test_a_store_that_is_closed_leaves_both_its_versions(make: Make, jvm: Stores) -> None:
    """An executor ends in good order while a later stage of the batch runs: then Spark runs the batch's tasks again."""
    provider = make()
    run_to(provider, 4)
    jvm.ask("close_provider", name=provider.name)
    for version in (3, 4):
        assert provider.fresh().look_in_task(version) == states(version)[version]


def test_a_task_that_was_killed_takes_no_window_away(make: Make, jvm: Stores) -> None:
    """It comes to its store late, of an old batch perhaps, because its function did not heed the kill."""
    provider = make()
    run_to(provider, 4)
    for version in (1, 4):
        provider.begin_task(9)
        jvm.ask("task_kill", thread="query")
        with pytest.raises(Refused, match="killed"):
            provider.store(version, thread="query")
        jvm.ask("task_end", thread="query")
    assert jvm.ask("hand_over", name=provider.name, version=4) is True
    assert provider.fresh().read(4) == states(4)[4]


def test_the_end_of_a_task_takes_back_what_its_other_thread_has_done(make: Make, jvm: Stores) -> None:
    """As of `RDD.pipe`, for whose thread the task does not wait."""
    provider, writer = make(), "writer alone"
    run_to(provider, 3)
    provider.begin_task(3, thread=writer)
    store = provider.store(3, thread=writer)
    jvm.do(store.name, ("put", (0,), (9, 9)), ("put", (77,), (1, 1)), ("remove", (1,)), thread=writer)
    jvm.ask("task_end_of", of=writer)
    for step in (("put", (78,), (1, 1)), ("remove", (0,)), ("get", (0,)), ("iterate",), ("commit",)):
        with pytest.raises(Refused, match=r"Aborted|aborted"):
            jvm.do(store.name, step, thread=writer)
    with pytest.raises(Refused, match="has ended"):
        provider.store(3, thread=writer)
    run_to(provider, 5, first=3)
    assert jvm.ask("hand_over", name=provider.name, version=5) is True
    assert provider.fresh().read(5) == states(5)[5]


def test_a_store_that_spark_closes_while_a_task_has_it_is_closed_when_that_task_ends(make: Make, jvm: Stores) -> None:
    """Spark closes a store once. It was kept in memory until the end of the run."""
    provider = make(conf={LOCK_TIMEOUT: "50"})
    run_to(provider, 3)
    provider.begin_task(3)
    store = provider.store(3, thread="query")
    jvm.ask("close_provider", name=provider.name)
    changed = {key: value for key, value in states(4)[4].items() if states(4)[3].get(key) != value}
    jvm.do(store.name, *(("put", key, value) for key, value in changed.items()), ("commit",), thread="query")
    jvm.ask("task_end", thread="query")
    assert jvm.ask("hand_over", name=provider.name, version=4) is False, "nothing is left in memory"
    assert provider.fresh().read(4) == states(4)[4]


def test_a_reader_in_the_function_of_a_query_takes_no_store_away(make: Make) -> None:
    """Spark's reader of state in `foreachBatch`: its tasks are like those of the query. Its stores have another id."""
    provider = make()
    run_to(provider, 4)
    reader = Provider(
        provider.jvm, provider.checkpoint, settings=NO_CHECKS, partition=provider.partition, extra={"run_id": "another"}
    )
    with pytest.raises(Refused, match="run `cec flush"):
        reader.look_in_task(4)
    provider.jvm.ask("task_end", thread="query")
    assert provider.read(4) == states(4)[4], "the query has its store as before"
    run_to(provider, 6, first=4)
    assert provider.read(6) == states(6)[6]


def random_operator(rng: random.Random) -> Operator:
    operators: list[Operator] = [
        CountWindows(keys=rng.randint(1, 8), size=rng.randint(1, 20)),
        Sessions(keys=rng.randint(1, 5), gap=rng.randint(1, 10)),
        Deduplication(keys=rng.randint(1, 30)),
        Baskets((3,) * 5),
    ]
    return rng.choice(operators)


class Cluster:
    """The executors of one run. The store of `history` goes from one to another, and may stand on several of them."""

    def __init__(self, history: History, rng: random.Random) -> None:
        self.history, self.rng = history, rng
        self.states: dict[int, str] = {}

    def use(self, executor: int) -> None:
        """What the history does next it does there."""
        state = self.states.get(executor)
        if state is not None and self.history.jvm.do(state, ("gone",)) == [False]:
            self.history.target = state
        else:
            self.history.open(executor)
            self.states[executor] = self.history.target

    def run_batch(self) -> None:
        """A new batch, whose tasks may run again: whole, or for a look at some rows."""
        history, version = self.history, self.history.version
        batch = history.operator.batch(self.rng, version)
        self.use(self.rng.randrange(3))
        state = history.visible(version)
        assert state == history.truth[version]
        history.run_batch(version, batch, self.rng.choice([AMPLE_MS, 0]))
        after = dict(state)
        apply_changes(after, history.operator.changes(after, batch))
        history.batches.append(batch)
        history.truth.append(after)
        for _ in range(self.rng.choice([0, 0, 1, 2, 3])):
            self.use(self.rng.randrange(3))
            assert history.visible(version) == state
            if self.rng.random() < 0.5:
                history.do(("rollback",))
            else:
                history.run_batch(version, batch, self.rng.choice([AMPLE_MS, 0]))

    def close_one(self) -> None:
        """An executor ends in good order."""
        executor = self.rng.randrange(3)
        if (state := self.states.pop(executor, None)) and self.history.jvm.do(state, ("gone",)) == [False]:
            self.history.jvm.do(state, ("close",))


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_random_moves_lose_nothing(jvm: Stores, log: LogReader, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        with seeded(seed):
            rng = random.Random(seed)
            history = History(jvm, log, next(_operator_ids), random_operator(rng), random_bounds(rng))
            for _ in range(2):
                replay_moved(history)
                cluster = Cluster(history, rng)
                for _ in range(rng.randint(4, 12)):
                    cluster.run_batch()
                    if rng.random() < 0.1:
                        cluster.close_one()
            replay_moved(history)


def replay_moved(history: History) -> None:
    """A restart after all executors are gone: the replay has the books of the commits that count."""
    first = history.log.dirty_from(history.store, history.version) if history.version else 0
    history.start(history.version)
    for batch in range(first, history.version):
        history.run_batch(batch, history.batches[batch])
    assert history.visible(history.version) == history.truth[-1]
    if history.version:
        assert set(history.verdicts()) == {True}


def without_checks(jvm: Stores, log: LogReader, seed: int, batches: int) -> History:
    """A history of so many batches whose updates stay dirty."""
    rng = random.Random(seed)
    history = History(jvm, log, next(_operator_ids), CountWindows(keys=6, size=30), Bounds(checks=False))
    history.start(0)
    for _ in range(batches):
        history.commit_next(history.operator.batch(rng, history.version), AMPLE_MS)
    return history


def test_a_replay_that_moves_begins_again(jvm: Stores, log: LogReader) -> None:
    """Nobody can hand over windows that a replay has not proved, and nothing of it is written."""
    history = without_checks(jvm, log, seed=5, batches=8)
    first = history.dirty_from()
    history.recover(first, until=first + 3)
    history.open(1)
    for version in (first + 3, history.version):
        with pytest.raises(Refused) as refused:
            history.visible(version)
        assert refused.value.kind == "RestartNeeded"
    history.recover(first)
    assert history.visible(history.version) == history.truth[-1]
    assert set(history.verdicts()) == {True}


def test_an_owner_that_answers_too_late_has_written_all_the_same(jvm: Stores, log: LogReader) -> None:
    """It closes between the load and the question, or its answer is lost: the log has the version then."""
    history = without_checks(jvm, log, seed=3, batches=5)
    history.open(1, hears_late=True)
    assert history.visible(history.version) == history.truth[-1]
