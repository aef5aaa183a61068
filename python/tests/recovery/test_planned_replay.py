"""The recovery plan: V and T, and what an unfinished recovery of release 0.1 has left."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.ids import StoreId, new_id
from spark_cec.log.frame import FrameKind
from spark_cec.log.index import Index
from spark_cec.log.meta import CommitFlags
from spark_cec.log.output_rollbacks import Cut
from spark_cec.recovery.attempts import Allows, CommittedAttempts
from spark_cec.recovery.decide import RecoveryPlan, refuse_later_batches, refuse_later_history, refuse_unfinished_rewind
from spark_cec.recovery.dirty_stores import name_dirty_stores
from spark_cec.recovery.facts import read_ahead, read_latest, read_plan
from spark_cec.recovery.generations import next_generation, record_start
from spark_cec.recovery.query_files import REWIND
from tests.checkpoint.support import Log
from tests.log.support import clear_memory, commit_meta, memory_storage

FIRST, SECOND = StoreId(0, 0), StoreId(1, 0)


def index_of(*commits: tuple[StoreId, int, int, int]) -> Index:
    """(store, version, D, generation) each."""
    log = Log()
    for wall_ms, (store, version, dirty_from, generation) in enumerate(commits):
        meta = commit_meta(
            version, store=store, dirty_from=dirty_from, generation=generation, checkpoint_id=new_id(), wall_ms=wall_ms
        )
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    return log.catalog.index


def planned(index: Index, committed: int) -> RecoveryPlan:
    return read_plan(index, index.stores(), committed, committed + 1, lambda _: True)


def refuse_ahead(index: Index, committed: int, allows: Allows) -> None:
    refuse_later_batches(read_ahead(index, committed, allows), "/checkpoint", committed)


@pytest.mark.parametrize(
    ("commits", "last_commit", "committed", "rewound_to"),
    [
        pytest.param([], -1, -1, -1, id="nothing was ever committed"),
        pytest.param([], 4, 4, 4, id="no store: nothing to replay"),
        pytest.param([(FIRST, 1, 1, 1)], 0, 0, 0, id="clean"),
        pytest.param([(FIRST, 1, 0, 1)], 0, 0, -1, id="from the first batch on"),
        pytest.param([(FIRST, 5, 3, 1)], 4, 4, 2, id="batches 3 and 4"),
        pytest.param([(FIRST, 5, 5, 1), (SECOND, 5, 2, 1)], 4, 4, 1, id="the store that needs most decides"),
        pytest.param(
            [(FIRST, 5, 4, 1), (FIRST, 6, 1, 1)], 4, 4, 3, id="a version that spark did not commit has no say"
        ),
        pytest.param([(FIRST, 5, 1, 1), (FIRST, 5, 4, 2)], 4, 4, 3, id="nor has an older run"),
        pytest.param([(FIRST, 5, 4, 2), (FIRST, 5, 1, 1)], 4, 4, 3, id="nor its zombie"),
        pytest.param([(FIRST, 5, 2, 1), (FIRST, 5, 4, 1)], 4, 4, 1, id="any attempt of the newest run may be loaded"),
        pytest.param([(FIRST, 5, 4, 1), (FIRST, 5, 2, 1)], 4, 4, 1, id="whichever came last"),
    ],
)
def test_how_far_a_query_is_rewound(
    commits: list[tuple[StoreId, int, int, int]], last_commit: int, committed: int, rewound_to: int
) -> None:
    plan = planned(index_of(*commits), last_commit)
    assert (plan.committed_batch, plan.rewound_to) == (committed, rewound_to)
    assert plan.replayed_batches == committed - rewound_to
    assert len(plan.heads) == (len({store for store, *_ in commits}) if last_commit >= 0 else 0)
    assert RecoveryPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("commits", "newest"),
    [([(FIRST, 5, 5, 1), (SECOND, 4, 4, 1)], "4"), ([(FIRST, 5, 5, 1), (SECOND, 6, 6, 1)], "none")],
)
def test_a_store_that_lacks_a_committed_version_is_damage(
    commits: list[tuple[StoreId, int, int, int]], newest: str
) -> None:
    with pytest.raises(
        DamagedLog, match=rf"store 1/0/default: no commit frame of version 5; newest at or below it: {newest}"
    ):
        planned(index_of(*commits), 4)


@pytest.mark.parametrize(("flushed", "rewound_to"), [((), 1), ((0,), 1), ((0, 1), 4)])
def test_a_commit_that_was_flushed_needs_no_replay(flushed: tuple[int, ...], rewound_to: int) -> None:
    """Two attempts at version 5, D = 2 and D = 2: either may be loaded, so both must be whole."""
    log, ids = Log(), [new_id(), new_id()]
    for attempt in ids:
        meta = commit_meta(5, store=FIRST, dirty_from=2, dirty_windows=1, checkpoint_id=attempt)
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    for number in flushed:
        meta = commit_meta(5, store=FIRST, dirty_from=5, checkpoint_id=ids[number], flags=int(CommitFlags.FLUSH))
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    plan = planned(log.catalog.index, 4)
    assert plan.rewound_to == rewound_to
    assert plan.heads[0].is_flush == (1 in flushed)


@pytest.mark.parametrize(("flushed_by", "rewound_to"), [(None, 1), (3, 4)])
def test_only_attempts_of_the_run_that_committed_decide(flushed_by: int | None, rewound_to: int) -> None:
    """Spark committed the attempt of run 1, and refused that of run 2. A run after both may have flushed the first."""
    log, ids = Log(), {1: new_id(), 2: new_id()}
    for generation, dirty_from in ((1, 2), (2, 4)):
        meta = commit_meta(5, store=FIRST, dirty_from=dirty_from, generation=generation, checkpoint_id=ids[generation])
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    if flushed_by is not None:
        flush = commit_meta(
            5, store=FIRST, dirty_from=5, generation=flushed_by, checkpoint_id=ids[1], flags=int(CommitFlags.FLUSH)
        )
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, flush))
    index = log.catalog.index
    plan = read_plan(index, index.stores(), 4, 5, lambda entry: entry.meta.checkpoint_id == ids[1])
    assert (plan.rewound_to, plan.heads[0].checkpoint_id) == (rewound_to, ids[1])


@pytest.mark.parametrize(("committed", "refused"), [(-1, True), (5, True), (8, True), (9, False), (30, False)])
def test_what_release_0_1_has_cut_must_be_finished_with_it(committed: int, refused: bool) -> None:
    own = memory_storage()
    own.replace(REWIND.name, b'{"committed_batch": 9, "rewound_to": 5, "offsets": {}}')
    if not refused:
        refuse_unfinished_rewind(REWIND.read(own), committed)
        return
    with pytest.raises(UnsuitableCheckpoint, match="start the query with that release until it has committed batch 9"):
        refuse_unfinished_rewind(REWIND.read(own), committed)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"rewound_to": 1}', '{"committed_batch": "x"}'])
def test_a_recording_of_release_0_1_that_cannot_be_read_is_refused(text: str) -> None:
    own = memory_storage()
    own.replace(REWIND.name, text.encode())
    with pytest.raises(UnsuitableCheckpoint, match=r"replay\.json cannot be read"):
        refuse_unfinished_rewind(REWIND.read(own), 4)


def test_without_one_nothing_is_refused() -> None:
    refuse_unfinished_rewind(None, 4)


def random_runs(rng: random.Random) -> tuple[list[tuple[StoreId, int, int, int]], list[Copy]]:
    """Commits of runs that crashed and began again, and copies of the checkpoint.

    A run that was thought dead may still commit the version that it was at.
    """
    commits: list[tuple[StoreId, int, int, int]] = []
    copies: list[Copy] = []
    committed, zombies, began_after = -1, list[tuple[StoreId, int, int, int]](), list[int]()
    for run in range(1, rng.randint(2, 5)):
        began_after.append(committed)
        copies.append(Copy([*began_after], committed))
        for _ in range(rng.randint(0, 4)):
            commits += [(store, committed + 2, committed + 2, run) for store in (FIRST, SECOND)]
            committed += 1
            copies.append(Copy([*began_after], committed))
            if zombies and rng.random() < 0.3:
                commits.append(zombies.pop())
        begun = [(store, committed + 2, committed + 2, run) for store in (FIRST, SECOND) if rng.random() < 0.5]
        commits += begun[:1]
        zombies += begun[1:]
    return commits, copies


@dataclass
class Copy:
    """What a copy of a checkpoint knows: when each run began, its newest run, and the last batch."""

    began_after: list[int]
    committed: int

    @property
    def run(self) -> int:
        return len(self.began_after)

    def is_behind(self, index: Index, cuts: Sequence[Cut] = ()) -> bool:
        """Whether a start is refused with that log."""
        own = memory_storage()
        for committed in self.began_after:
            record_start(own, next_generation(own), committed)
        allows = CommittedAttempts(memory_storage(), own, cuts, self.committed).allows
        try:
            refuse_later_history(read_latest(index, self.committed), cuts, self.committed, self.run)
            refuse_ahead(index, self.committed, allows)
        except UnsuitableCheckpoint:
            return True
        return False


def test_the_newest_commits_tell_whether_a_log_is_ahead_as_well_as_all_do() -> None:
    answers = set()
    for seed in range(300):
        commits, copies = random_runs(random.Random(seed))
        index = index_of(*commits)
        for copy in copies:
            wanted = any(by > copy.run or version > copy.committed + 2 for _, version, _, by in commits)
            assert copy.is_behind(index) == wanted, f"seed {seed}: {copy}"
            answers.add(wanted)
    assert answers == {True, False}


@dataclass
class Moment:
    """What there is at one moment: the checkpoint, and the log's commits and cuts."""

    checkpoint: Copy
    commits: tuple[tuple[StoreId, int, int, int], ...]
    cuts: tuple[Cut, ...]


def random_rollbacks(rng: random.Random) -> list[Moment]:
    """Runs that crash and begin again, and rollbacks between them: these take a number as a run does, and cut."""
    moments, began_after, cuts = list[Moment](), list[int](), list[Cut]()
    commits: list[tuple[StoreId, int, int, int]] = []
    committed = -1

    def look() -> None:
        moments.append(Moment(Copy([*began_after], committed), tuple(commits), tuple(cuts)))

    for run in range(1, rng.randint(4, 9)):
        goes_back = committed > 0 and rng.random() < 0.4
        if goes_back:
            committed = rng.randrange(committed)
            cuts.append(Cut(len(cuts), committed, run, 0))
        began_after.append(committed)
        look()
        for _ in range(0 if goes_back else rng.randint(0, 4)):
            commits += [(store, committed + 2, committed + 2, run) for store in (FIRST, SECOND)]
            committed += 1
            look()
        if not goes_back and rng.random() < 0.5:
            commits.append((FIRST, committed + 2, committed + 2, run))
            look()
    return moments


def test_no_start_is_refused_after_a_rollback_but_with_an_older_copy_of_the_checkpoint() -> None:
    answers = {True: 0, False: 0}
    for seed in range(150):
        clear_memory()
        moments = random_rollbacks(random.Random(seed))
        log = moments[-1]
        index = index_of(*log.commits)
        newest = max(by for _, _, _, by in [*log.commits, *((FIRST, 0, 0, cut.generation) for cut in log.cuts)])
        for moment in moments:
            there = index_of(*moment.commits)
            assert not moment.checkpoint.is_behind(there, moment.cuts), f"seed {seed}: {moment}"
            if newest > moment.checkpoint.run:
                assert moment.checkpoint.is_behind(index, log.cuts), f"seed {seed}: {moment}"
        answers[bool(log.cuts)] += 1
    assert min(answers.values()) > 20, answers


@pytest.mark.parametrize("idle_runs", [0, 1])
def test_batches_of_which_spark_knows_nothing_are_refused_with_the_way_back(idle_runs: int) -> None:
    """Somebody has deleted the newest two offsets and commits; perhaps the query was started once more before that."""
    index, own = index_of(*((FIRST, version, version, 1) for version in range(1, 10))), memory_storage()
    for began_after in (-1, *[8] * idle_runs):
        record_start(own, next_generation(own), began_after)
    for committed, refused in ((8, False), (7, False), (6, True)):
        allows = CommittedAttempts(memory_storage(), own, (), committed).allows
        if not refused:
            refuse_ahead(index, committed, allows)
            continue
        words = "store 0/0/default has version 9, of batch 8, .*, run `cec rollback /checkpoint --to 6`; or restore"
        with pytest.raises(UnsuitableCheckpoint, match=words):
            refuse_ahead(index, committed, allows)
        back = Cut(0, committed, idle_runs + 2, 0)
        allows = CommittedAttempts(memory_storage(), own, (back,), committed).allows
        refuse_ahead(index, committed, allows)


class CountingIndex:
    """An index that counts the commits that it hands out."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.handed_out = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._index, name)

        def counted(*arguments: Any) -> Any:
            answer = call(*arguments)
            self.handed_out += len(answer) if name in {"commits", "frames", "newest", "entries"} else 0
            return answer

        return counted


def test_whether_a_log_is_ahead_does_not_take_longer_with_its_age() -> None:
    for versions in (3, 300):
        index: Any = CountingIndex(index_of(*((FIRST, version, version, 1) for version in range(1, versions + 1))))
        refuse_later_history(read_latest(index, versions - 1), (), versions - 1, 1)
        refuse_ahead(index, versions - 1, lambda _: True)
        assert index.handed_out == 1, versions


@pytest.mark.parametrize(
    ("commits", "lines"),
    [
        pytest.param([], [], id="no store"),
        pytest.param([(FIRST, 5, 5, 2), (SECOND, 5, 5, 2)], [], id="all is written"),
        pytest.param(
            [(FIRST, 5, 5, 2), (SECOND, 5, 3, 2)], ["store 1/0/default still needs a replay from batch 3 on"], id="one"
        ),
        pytest.param([(FIRST, 5, 5, 2), (FIRST, 6, 2, 2)], [], id="what is later is not asked for"),
        pytest.param([(FIRST, 4, 4, 2)], ["store 0/0/default has no commit of version 5 in the log"], id="no commit"),
        pytest.param([(FIRST, 4, 4, 1), (SECOND, 5, 5, 2)], [], id="an operator that is gone"),
        pytest.param(
            [(FIRST, 5, 2, 2), (FIRST, 5, 5, 2)],
            ["store 0/0/default still needs a replay from batch 2 on"],
            id="an attempt that is dirty may be loaded",
        ),
    ],
)
def test_stores_that_are_left(commits: list[tuple[StoreId, int, int, int]], lines: list[str]) -> None:
    assert name_dirty_stores(index_of(*commits), version=5, generation=2) == lines
