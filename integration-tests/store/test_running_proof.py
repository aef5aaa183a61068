"""The proof on the running store: eventual checkpoint and replay under the hold rule give the undisturbed state."""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from store_it.history import AMPLE_MS, Bounds, History, LogReader, random_bounds, seeded
from store_it.jvm import Refused, Stores, pairs
from store_it.operators import Baskets, Batch, CountWindows, Deduplication, Lying, Operator, Sessions

_operator_ids = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    """One log for all histories: their frames interleave."""
    return LogReader(str(tmp_path_factory.mktemp("checkpoint") / "log"))


def random_operator(rng: random.Random) -> Operator:
    operators: list[Operator] = [
        CountWindows(keys=rng.randint(1, 8), size=rng.randint(1, 6)),
        CountWindows(keys=rng.randint(1, 12), size=50),
        CountWindows(keys=3, size=2, most=4),
        Sessions(keys=rng.randint(1, 5), gap=rng.randint(1, 6)),
        Sessions(keys=2, gap=30),
        Deduplication(keys=rng.randint(1, 30)),
    ]
    return rng.choice(operators)


def garbage(rng: random.Random, history: History) -> None:
    """A batch that is given up: its changes must leave no trace."""
    batch = history.operator.batch(rng, rng.randrange(history.version + 2))
    history.do(*history.operator.changes(pairs(history.do(("iterate",))[0]), batch), ("rollback",))


def live_on(rng: random.Random, history: History, batches: int) -> None:
    """New batches, with attempts that are given up and batches that are run again."""
    for _ in range(batches):
        batch = history.operator.batch(rng, history.version)
        task_ms = rng.choice([AMPLE_MS, AMPLE_MS, 0])
        if rng.random() < 0.15:
            history.do(("begin", history.version, None))
            garbage(rng, history)
        if rng.random() < 0.15:
            history.run_batch(history.version, history.operator.batch(rng, history.version), rng.choice([AMPLE_MS, 0]))
        history.commit_next(batch, task_ms)


def zombie_commits(rng: random.Random, history: History, successor: str) -> None:
    """The store of the run before, still alive, commits something else at the version that comes next."""
    history.target, present = successor, history.target
    history.run_batch(history.version, history.operator.batch(rng, history.version))
    history.target = present


def crash_and_recover(rng: random.Random, history: History) -> int:
    """A recovery with everything that may disturb it; answers how many batches were replayed."""
    before, dirty_from = history.windows(), history.dirty_from()
    first = rng.randint(max(dirty_from - 3, 0), dirty_from)
    replayed = history.version - dirty_from

    def rubbish(batch_id: int) -> Batch | None:
        return history.operator.batch(rng, batch_id) if batch_id < dirty_from and rng.random() < 0.5 else None

    if rng.random() < 0.3:
        history.recover(first, rubbish, until=rng.randint(first, history.version))
    history.start(history.version)
    for batch_id in range(first, history.version):
        batch = rubbish(batch_id) or history.batches[batch_id]
        if rng.random() < 0.1:
            history.do(("begin", batch_id, None))
            garbage(rng, history)
        history.run_batch(batch_id, batch)
        if rng.random() < 0.1:
            history.run_batch(batch_id, batch)
    assert history.visible(history.version) == history.truth[-1]
    if replayed:
        history.note_flush()
    assert history.windows() == history.written(before)
    assert set(history.verdicts()) == {True}
    assert history.do(("replaying",)) == [False]
    return replayed


def fall_back(rng: random.Random, history: History, oldest: int) -> int:
    """Frames are lost, and a recovery begins from a version before them, not before `oldest`; answers which."""
    last = history.version
    base = rng.randrange(oldest, last)
    dirty_from = history.log.dirty_from(history.store, base)
    first = rng.randint(max(dirty_from - 3, 0), dirty_from)
    for lost in rng.sample(range(base + 1, last + 1), k=min(2, last - base)):
        history.log.damage(history.store, lost)
    if rng.random() < 0.3:
        history.start(last, base=base)
        for batch_id in range(first, rng.randint(first, last - 1)):
            history.run_batch(batch_id, history.batches[batch_id])
    history.start(last, base=base)
    for batch_id in range(first, last):
        wrong = batch_id < dirty_from and rng.random() < 0.5
        batch = history.operator.batch(rng, batch_id) if wrong else history.batches[batch_id]
        if rng.random() < 0.2:
            history.do(("begin", batch_id, None))
            garbage(rng, history)
        if batch_id < last - 1 and rng.random() < 0.2:
            history.run_batch(batch_id, batch)
        history.run_batch(batch_id, batch)
    assert history.visible(last) == history.truth[-1]
    assert set(history.windows().values()) <= {(last, None)}, "every window is written"
    assert history.verdicts() == [True], "what is lost of the last version is records: its digest is there"
    history.records[last] = len(history.truth[-1])
    return base


def run_history(jvm: Stores, log: LogReader, seed: int) -> int:
    """A store that lives, crashes and recovers a few times; answers the longest replay in batches."""
    rng = random.Random(seed)
    history = History(jvm, log, next(_operator_ids), random_operator(rng), random_bounds(rng))
    history.start(0)
    longest = 0
    for _ in range(rng.randint(1, 3)):
        live_on(rng, history, rng.randint(1, 12))
        former = history.target
        longest = max(longest, crash_and_recover(rng, history))
        if rng.random() < 0.3:
            zombie_commits(rng, history, former)
    live_on(rng, history, 2)
    crash_and_recover(rng, history)
    return longest


@pytest.mark.parametrize("first_seed", range(0, 120, 20))
def test_random_histories_recover_exactly(jvm: Stores, log: LogReader, first_seed: int) -> None:
    longest = 0
    for seed in range(first_seed, first_seed + 20):
        with seeded(seed):
            longest = max(longest, run_history(jvm, log, seed))
    assert longest > 3, "these histories prove nothing: none replayed much"


@pytest.mark.parametrize("first_seed", range(1000, 1060, 20))
def test_what_lost_frames_held_is_made_again(jvm: Stores, log: LogReader, first_seed: int) -> None:
    """From any earlier version: held up to there, free from there on; then nothing rests on what is lost."""
    longest = 0
    for seed in range(first_seed, first_seed + 20):
        with seeded(seed):
            rng = random.Random(seed)
            history = History(jvm, log, next(_operator_ids), random_operator(rng), random_bounds(rng))
            history.start(0)
            live_on(rng, history, rng.randint(2, 12))
            whole = 0
            for _ in range(2):
                last = history.version
                longest = max(longest, last - fall_back(rng, history, whole))
                whole = last
                live_on(rng, history, rng.randint(1, 4))
                crash_and_recover(rng, history)
    assert longest > 5


def test_a_replay_survives_the_death_of_its_agent(jvm: Stores, log: LogReader) -> None:
    """The books of the stores die with the agent; the successor has them from the log."""
    rng = random.Random(7)
    history = History(jvm, log, next(_operator_ids), CountWindows(keys=6, size=9), Bounds(replay=30))
    history.start(0)
    live_on(rng, history, 6)
    _kill_agent(jvm)
    live_on(rng, history, 3)
    _kill_agent(jvm)
    dirty_from = history.dirty_from()
    assert dirty_from < history.version
    history.recover(dirty_from, until=dirty_from + 1)
    _kill_agent(jvm)
    history.recover(dirty_from)
    _kill_agent(jvm)
    live_on(rng, history, 3)
    crash_and_recover(rng, history)


def _kill_agent(jvm: Stores) -> None:
    pid = jvm.agent_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "bounds", [Bounds(per_window=1.5, replay=5), Bounds(records=60, replay=40)], ids=["tight", "counted"]
)
@pytest.mark.parametrize(
    "operator", [CountWindows(keys=20, size=10, most=30), Sessions(keys=8, gap=12, most=30)], ids=["count", "session"]
)
def test_bounds_hold_at_every_commit_with_time_enough(
    jvm: Stores, log: LogReader, operator: Operator, bounds: Bounds
) -> None:
    rng = random.Random(3)
    history = History(jvm, log, next(_operator_ids), operator, bounds)
    history.start(0)
    for _ in range(40):
        history.commit_next(operator.batch(rng, history.version), AMPLE_MS)
    crash_and_recover(rng, history)


@pytest.mark.parametrize(
    ("sizes", "bounds"),
    [
        ((10,) * 10, Bounds(records=130, replay=4)),
        ((1,) * 20 + (20,) * 3, Bounds(per_window=1.5, replay=3)),
        ((1,) * 20 + (20,) * 3, Bounds(records=104, replay=3)),
    ],
    ids=["even", "uneven", "uneven, counted"],
)
def test_windows_of_many_rows_stay_within_q(
    jvm: Stores, log: LogReader, sizes: tuple[int, ...], bounds: Bounds
) -> None:
    """Q counts records, and a window of a grouped store has one per row; some may have more than others."""
    for seed in range(4):
        rng = random.Random(seed)
        history = History(jvm, log, next(_operator_ids), Baskets(sizes), bounds)
        history.start(0)
        with seeded(seed):
            for _ in range(50):
                history.commit_next(history.operator.batch(rng, history.version), AMPLE_MS)
            crash_and_recover(rng, history)


def test_windows_of_many_rows_are_not_written_at_every_commit(jvm: Stores, log: LogReader) -> None:
    """Q=2x is twice what the state needs at least: 5 rows per window, so 10 records per window."""
    operator = Baskets((5,) * 10, most=1)
    history = History(jvm, log, next(_operator_ids), operator, Bounds(per_window=2.0))
    history.start(0)
    rng = random.Random(12)
    for _ in range(40):
        history.commit_next(operator.batch(rng, history.version), AMPLE_MS)
    checked = sum(count for version, count in history.records.items() if version > 1)
    assert checked <= 10 * 5 * 4, f"{checked} records for {sum(history.inputs.values())} updates"


def test_without_time_only_openings_and_closings_are_written(jvm: Stores, log: LogReader) -> None:
    operator = CountWindows(keys=10, size=1000)
    history = History(jvm, log, next(_operator_ids), operator, Bounds(per_window=1.0, replay=1, checks=False))
    history.start(0)
    rng = random.Random(5)
    for _ in range(30):
        history.commit_next(operator.batch(rng, history.version), AMPLE_MS)
    assert sum(history.records.values()) == len(history.truth[-1]) <= 10


def test_batches_that_spark_would_forget_are_never_needed(jvm: Stores, log: LogReader) -> None:
    """Whatever CI says, retention forces checks (`minBatchesToRetain` is 6, of which 4 are kept in hand)."""
    operator = CountWindows(keys=10, size=1000)
    history = History(jvm, log, next(_operator_ids), operator, Bounds(retained=6, checks=False))
    history.start(0)
    rng = random.Random(5)
    for _ in range(30):
        history.commit_next(operator.batch(rng, history.version), 0)
        assert history.version - history.dirty_from() <= 2
    assert sum(history.records.values()) > 10


def lying_history(jvm: Stores, log: LogReader, rng: random.Random, operator: Operator) -> History:
    history = History(jvm, log, next(_operator_ids), operator, Bounds(replay=1_000_000, per_window=4.0))
    history.start(0)
    live_on(rng, history, 8)
    return history


@pytest.mark.parametrize("lie", ["sum", "skip"])
def test_a_replay_with_other_results_stops(jvm: Stores, log: LogReader, lie: str) -> None:
    """Either the state is right and the log says so, or the replay ends with an error; the truth mends it."""
    wrong = 0
    for seed in range(15):
        rng = random.Random(seed)
        history = lying_history(jvm, log, rng, CountWindows(keys=6, size=30))
        before, dirty_from = history.windows(), history.dirty_from()
        try:
            history.recover(dirty_from, operator=Lying(history.operator, lie))
        except Refused as refused:
            assert refused.kind == "Divergence", f"seed {seed}"
            assert "differs from what was committed" in str(refused), f"seed {seed}"
            wrong += 1
            history.recover(dirty_from)
        assert history.visible(history.version) == history.truth[-1], f"seed {seed}"
        assert history.windows() == history.written(before), f"seed {seed}"
        assert set(history.verdicts()) == {True}, f"seed {seed}"
    assert wrong > 5


def test_a_replay_that_closes_an_open_window_stops(jvm: Stores, log: LogReader) -> None:
    history = lying_history(jvm, log, random.Random(1), CountWindows(keys=4, size=30))
    dirty_from = history.dirty_from()
    assert dirty_from < history.version
    with pytest.raises(Refused, match=r"the replay of batch \d+ would close .* are not what they were") as refused:
        history.recover(dirty_from, operator=Lying(history.operator, "close"))
    assert refused.value.kind == "Divergence"
    history.recover(dirty_from)
    assert history.visible(history.version) == history.truth[-1]


def retry_the_task(history: History, liar: Operator) -> None:
    """Spark runs the task of the last batch again, in the same provider."""
    last = history.version - 1
    with pytest.raises(Refused) as refused:
        history.run_batch(last, history.batches[last], operator=liar)
    assert refused.value.kind == "Divergence"


def go_on(history: History, liar: Operator) -> None:
    """The next batch finds the store that a refused replay has left."""
    with pytest.raises(Refused) as refused:
        history.run_batch(history.version, history.batches[-1], operator=liar)
    assert refused.value.kind == "Divergence"


def flush(history: History, liar: Operator) -> None:
    """The query's end, `close()` and the shutdown of an executor write what is dirty."""
    history.do(("rollback",), ("flush",))


def hand_over(history: History, liar: Operator) -> None:
    """Another executor, and `cec flush`, ask for a version."""
    for version in (history.version, history.version - 1):
        assert history.do(("rewind_to", version),) == [False]
        history.do(("flush",))


ENDS = (retry_the_task, go_on, flush, hand_over)


@pytest.mark.parametrize("lie", ["sum", "skip", "close"])
def test_a_refused_replay_leaves_nothing_behind_whatever_ends_it(jvm: Stores, log: LogReader, lie: str) -> None:
    """Two more starts follow each end: what was refused once is refused again, and the honest query goes on exactly."""
    refusals = 0
    for seed in range(12):
        rng = random.Random(seed)
        honest = CountWindows(keys=6, size=30)
        history, liar = lying_history(jvm, log, rng, honest), Lying(honest, lie)
        before, dirty_from = history.windows(), history.dirty_from()
        with seeded(seed):
            for _ in range(3):
                try:
                    history.recover(dirty_from, operator=liar)
                except Refused as refused:
                    assert refused.kind == "Divergence"
                    refusals += 1
                    for end in rng.sample(ENDS, k=rng.randint(1, len(ENDS))):
                        end(history, liar)
                    assert log.dirty_from(history.store, history.version) == dirty_from
                    assert history.verdicts() == []
                else:
                    break  # this lie makes no difference to this history
            history.recover(dirty_from)
            assert history.visible(history.version) == history.truth[-1]
            if history.verdicts() == [True]:
                assert history.windows() == history.written(before)
            live_on(rng, history, 4)
            assert history.visible(history.version) == history.truth[-1]
    assert refusals > 12


def test_a_replay_whose_end_could_not_be_compared_proves_nothing(jvm: Stores, tmp_path: Path) -> None:
    """The log is away just then. Whatever asks for the version at the end finds no windows that the log would take."""
    log = LogReader(str(tmp_path / "log"))
    history = lying_history(jvm, log, random.Random(6), CountWindows(keys=6, size=30))
    last, base = history.version, 3
    first = log.dirty_from(history.store, base)
    log.damage(history.store, base + 1)
    history.start(last, base=base)
    for batch_id in range(first, last - 1):
        history.run_batch(batch_id, history.batches[batch_id])
    pid, away = jvm.agent_pid(), tmp_path / "away"
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # what the agent has open does not go away
    Path(log.home).rename(away)
    with pytest.raises(Refused):
        history.run_batch(last - 1, history.batches[last - 1])
    away.rename(log.home)
    with pytest.raises(Refused) as refused:
        history.visible(last)
    assert refused.value.kind in {"RestartNeeded", "DamagedLog"}
    assert history.do(("rewind_to", last)) == [False]
    assert history.verdicts() == []
    history.start(last, base=base)
    for batch_id in range(first, last):
        history.run_batch(batch_id, history.batches[batch_id])
    assert history.visible(last) == history.truth[-1]


def test_dirty_windows_of_a_lost_executor_ask_for_a_restart(jvm: Stores, log: LogReader) -> None:
    history = lying_history(jvm, log, random.Random(2), CountWindows(keys=4, size=30))
    history.start(0)
    with pytest.raises(Refused, match="Restart the query") as refused:
        history.visible(history.version)
    assert refused.value.kind == "RestartNeeded"


@pytest.mark.parametrize("operator", [CountWindows(keys=6, size=30), Baskets((3, 1, 4, 2))], ids=["plain", "grouped"])
def test_a_commit_stands_until_another_takes_its_place(jvm: Stores, log: LogReader, operator: Operator) -> None:
    """A function for `foreachBatch` looks at a batch again. What its commit left dirty is in this memory alone."""
    for seed in range(8):
        rng = random.Random(seed)
        history = lying_history(jvm, log, rng, operator)
        before, last = history.windows(), history.version - 1
        assert history.dirty_from() < history.version, f"seed {seed}"
        for _ in range(3):
            history.visible(last)
            changes = operator.changes(history.truth[last], operator.batch(rng, last))
            history.do(*changes, *(("remove", key) for key in list(history.truth[last])[:2]), ("rollback",))
            assert history.visible(history.version) == history.truth[-1], f"seed {seed}"
            assert history.windows() == before, f"seed {seed}"
        history.run_batch(last, history.batches[last])
        assert history.visible(history.version) == history.truth[-1], f"seed {seed}"
        history.commit_next(operator.batch(rng, history.version), AMPLE_MS)
        assert history.visible(history.version) == history.truth[-1], f"seed {seed}"
