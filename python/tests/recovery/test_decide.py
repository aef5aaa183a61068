"""The decisions of a start: facts in, orders out."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint, Unsupported
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitMeta
from spark_cec.log.output_rollbacks import Cut
from spark_cec.migration.checkpoint import inspect_checkpoint
from spark_cec.recovery.decide import (
    LogFacts,
    OperatorDecision,
    QueryDecision,
    QueryFacts,
    RecoveryPlan,
    SinkKind,
    StartFacts,
    StartOrders,
    StoreFacts,
    choose_write_at,
    decide_start,
    plan_replay,
    refuse_log,
    refuse_provider,
    refuse_stray_commits,
)
from spark_cec.recovery.query_files import Fallback
from spark_cec.settings import PROVIDER, WriteAt
from tests.log.support import commit_meta

FIRST, SECOND = StoreId(0, 0), StoreId(0, 1)


def at(store: StoreId, version: int, dirty_from: int) -> StoreFacts:
    return StoreFacts(store, commit_meta(version, store=store, dirty_from=dirty_from), dirty_from)


def lost(store: StoreId) -> StoreFacts:
    return StoreFacts(store, None, 0, DamagedLog(f"store {store}", -1, "no commit frame"))


def by_run(generation: int, version: int = 5) -> CommitMeta:
    return commit_meta(version, store=FIRST, generation=generation)


SOUND = StartFacts(
    checkpoint="file:/c", home="file:/c/cec/log", committed=4, newest_run=2, lacks_commit=False, unfinished_rewind=None,
    planned=range(6), cuts=[Cut(0, 3, 2, 0)], latest=[by_run(2)], ahead=[], published=[3, 4, 5], base=5,
    stores=[at(FIRST, 5, 3), at(SECOND, 5, 5)],
)  # fmt: skip
"""Run 2 was killed as it ran batch 5: batch 4 is committed, and the first store must replay batches 3 and 4."""


def test_a_start_replays_from_the_lowest_d() -> None:
    heads = tuple(each.head for each in SOUND.stores if each.head is not None)
    assert decide_start(SOUND) == StartOrders(RecoveryPlan(4, 2, 5, (FIRST, SECOND), heads))


@pytest.mark.parametrize(
    ("batch", "is_done", "forgets"), [(4, False, False), (4, True, True), (3, False, True), (5, True, True)]
)
def test_the_note_of_a_fallback_goes_once_it_is_carried_out(batch: int, is_done: bool, forgets: bool) -> None:
    facts = replace(SOUND, fallback=Fallback(2, batch, 1), fallback_is_done=is_done)
    assert decide_start(facts).forgets_fallback is forgets


@pytest.mark.parametrize(
    ("planned", "committed", "says"),
    [
        ([3, 4], [3, 4, 6], "commits/6 is there, but the newest batch in offsets is 4.*rollback /c --to 4`; or"),
        ([3, 4], [3, 5, 6], "commits/6 is there, but the newest batch in offsets is 4.*rollback /c --to 3`; or"),
        ([], [0], "commits/0 is there, but offsets has none.* To begin anew"),
        ([3, 4], [3, 4], ""),
        ([3, 4, 5], [3, 4], ""),
        ([], [], ""),
    ],
)
def test_commits_behind_the_newest_plan_are_refused(planned: list[int], committed: list[int], says: str) -> None:
    if not says:
        refuse_stray_commits("/c", planned, committed)
        return
    with pytest.raises(UnsuitableCheckpoint, match=says):
        refuse_stray_commits("/c", planned, committed)


def test_a_checkpoint_with_such_a_commit_is_not_carried() -> None:
    """The batch before it would come again in the copy."""
    names = {"offsets": ["3", "4"], "commits": ["3", "4", "6"]}
    stopped: Any = SimpleNamespace(root="file:/c", names=names.__getitem__)
    with pytest.raises(UnsuitableCheckpoint, match="commits/6 is there"):
        inspect_checkpoint(stopped)


def test_a_copy_that_is_behind_its_log_is_not_sent_to_repair() -> None:
    """Its fallback is foreign, too, but a repair would not mend it."""
    facts = replace(SOUND, fallback=Fallback(2, 9, 1), latest=[by_run(3)])
    with pytest.raises(UnsuitableCheckpoint, match="ahead of the checkpoint"):
        decide_start(facts)


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"lacks_commit": True}, UnsuitableCheckpoint, "commits/4 is gone"),
        ({"unfinished_rewind": 5}, UnsuitableCheckpoint, "start the query with that release until .* batch 5"),
        ({"latest": [by_run(3)]}, UnsuitableCheckpoint, "it has version 5 of store .* by run 3"),
        ({"cuts": [Cut(0, 1, 3, 0)]}, UnsuitableCheckpoint, "it was cut after batch 1 by run 3"),
        ({"ahead": [by_run(2, version=7)]}, UnsuitableCheckpoint, "version 7, of batch 6, .*rollback file:/c --to 4`"),
        ({"fallback": Fallback(2, 9, 1)}, UnsuitableCheckpoint, "ends at batch 9, and this one ends at 4"),
        ({"published": [6]}, UnsuitableCheckpoint, "output of batch 6, but the checkpoint ends at batch 4"),
        ({"stores": [at(FIRST, 5, 3), lost(SECOND)]}, DamagedLog, "store 0/1/default"),
        ({"planned": [3, 4, 5]}, UnsuitableCheckpoint, "no longer has batch 2, .* replays from batch 3"),
    ],
)
def test_one_wrong_fact_is_enough_to_refuse_a_start(changed: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        decide_start(replace(SOUND, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"unfinished_rewind": 4},
        {"latest": [by_run(1)], "cuts": []},
        {"published": [5]},
        {"published": []},
        {"planned": [2, 3, 4]},
    ],
)
def test_what_a_crash_can_leave_is_no_reason_to_refuse_a_start(changed: dict[str, Any]) -> None:
    assert decide_start(replace(SOUND, **changed)) == decide_start(SOUND)


def test_a_plan_replays_all_that_each_store_misses_and_no_more() -> None:
    """For random stores, in any order."""
    for seed in range(300):
        rng = random.Random(seed)
        committed = rng.randint(-1, 9)
        base = rng.randint(0, committed + 1)
        stores = [at(StoreId(0, number), base, rng.randint(0, base)) for number in range(rng.randint(0, 4))]
        plan = plan_replay(committed, base, stores)
        first = plan.rewound_to + 1
        assert plan.committed_batch == committed, f"seed {seed}"
        if committed < 0:
            assert plan.replayed_batches == 0, f"seed {seed}"
            continue
        assert plan.stores == tuple(each.store for each in stores), f"seed {seed}"
        assert all(first <= each.dirty_from for each in stores) or not base, f"seed {seed}"
        assert first in {base, *(each.dirty_from for each in stores)}, f"seed {seed}"
        rng.shuffle(stores)
        assert plan_replay(committed, base, stores).rewound_to == plan.rewound_to, f"seed {seed}"
        if stores and base:
            damaged = [*stores[1:], lost(stores[0].store)]
            with pytest.raises(DamagedLog, match="no commit frame"):
                plan_replay(committed, base, damaged)


INSIDE = LogFacts("file:/c", "file:/c/cec/log", "file:/c/cec/log", "a", "a", True, False, 4, False)
OUTSIDE = replace(INSIDE, home="file:/log", recorded_home="file:/log", is_inside=False)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (INSIDE, ""),
        (OUTSIDE, ""),
        (replace(INSIDE, recorded_home=None, recorded_id=None), ""),
        (replace(OUTSIDE, recorded_home=None, recorded_id=None), "holds the log of another query"),
        (replace(OUTSIDE, found_id="b"), "holds the log of another query"),
        (replace(INSIDE, found_id=None, must_have_log=True), "its log is gone. Restore"),
        (replace(INSIDE, found_id=None, must_have_log=True, recorded_home=None), "of another provider"),
        (replace(INSIDE, found_id=None, must_have_log=False), ""),
        (replace(INSIDE, found_id=None, must_have_log=True, committed=-1), ""),
        (replace(OUTSIDE, home="file:/new"), ""),
        (replace(OUTSIDE, home="file:/new", found_id=None), "settings place it at file:/new"),
        (replace(OUTSIDE, home="file:/new", found_id=None, committed=-1), ""),
        (replace(OUTSIDE, home="file:/new", found_id="b", committed=-1), "holds the log of another query"),
        (replace(OUTSIDE, home="file:/new", found_id="b", committed=-1, was_begun=True), ""),
        (replace(OUTSIDE, home="file:/new", found_id="b", was_begun=True), "settings place it at file:/new"),
        (replace(INSIDE, recorded_home="file:/log", found_id="b", committed=-1), ""),
    ],
)
def test_a_log_that_is_not_the_querys_own(facts: LogFacts, says: str) -> None:
    if not says:
        refuse_log(facts)
        return
    with pytest.raises(UnsuitableCheckpoint, match=says):
        refuse_log(facts)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (QueryFacts(True, True), ""),
        (QueryFacts(True, True, planned=True, recorded_provider=PROVIDER), ""),
        (QueryFacts(True, True, planned=True, recorded_provider="other"), "begun with the state store provider other"),
        (QueryFacts(True, True, planned=True), "by an old release of Spark"),
        (QueryFacts(False, True, planned=True, recorded_provider=PROVIDER), "its state is in a Spark CEC log"),
        (QueryFacts(False, False, planned=True, recorded_provider=PROVIDER), ""),
        (QueryFacts(True, True, transform_with_state=True), "transformWithState cannot run"),
        (QueryFacts(False, True, transform_with_state=True), ""),
    ],
)
def test_a_provider_that_cannot_continue(query: QueryFacts, says: str) -> None:
    if not says:
        refuse_provider(query, "file:/c")
        return
    with pytest.raises((UnsuitableCheckpoint, Unsupported), match=says):
        refuse_provider(query, "file:/c")


@pytest.mark.parametrize(
    ("asked", "deferred", "appends", "sink", "wanted"),
    [
        (None, True, False, SinkKind.WAITS, WriteAt.BATCH),  # a query that fails with its executor anyway
        (None, False, False, SinkKind.WAITS, WriteAt.TASK),
        (None, True, True, SinkKind.WAITS, WriteAt.TASK),
        (None, True, False, SinkKind.FREE, WriteAt.TASK),
        (WriteAt.BATCH, False, True, SinkKind.WAITS, WriteAt.BATCH),
        (WriteAt.BATCH, True, False, SinkKind.FREE, WriteAt.TASK),  # nothing would make the stores write in time
        (WriteAt.TASK, True, False, SinkKind.LOG, WriteAt.TASK),
        (WriteAt.ASYNC, True, True, SinkKind.WAITS, WriteAt.ASYNC),
        (WriteAt.ASYNC, False, True, SinkKind.WAITS, WriteAt.BATCH),  # a replay may make another state
        (WriteAt.ASYNC, True, False, SinkKind.LOG, WriteAt.BATCH),  # rows of a batch that counts must be durable
        (WriteAt.ASYNC, True, False, SinkKind.FREE, WriteAt.TASK),
    ],
)
def test_stores_write_together_where_a_write_is_dear_or_the_user_says_so(
    asked: WriteAt | None, deferred: bool, appends: bool, sink: SinkKind, wanted: WriteAt
) -> None:
    operators = (OperatorDecision(0, "aggregation", deferred, "because"),)
    decision = QueryDecision("auto", "because", provider=True, operators=operators)
    assert choose_write_at(asked, decision, sink, appends=appends) is wanted
    others = replace(decision, provider=False)
    assert choose_write_at(asked, others, sink, appends=appends) is WriteAt.TASK, "its state is not ours"
