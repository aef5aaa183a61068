"""A crash after Spark committed a batch, and before all stores had written it (`writeAt=async`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId, new_id
from spark_cec.log.frame import FrameKind
from spark_cec.log.storage import Storage
from spark_cec.recovery.decide import StartOrders, decide_start
from spark_cec.recovery.facts import Places, read_start_facts
from spark_cec.recovery.generations import next_generation, note_intent, record_start
from spark_cec.recovery.start_messages import StartMessage, describe_plan, describe_write_at
from spark_cec.settings import WriteAt
from tests.checkpoint.support import Log
from tests.log.support import commit_meta, memory_storage

FIRST, SECOND = StoreId(0, 0), StoreId(0, 1)


@dataclass
class Query:
    """A query whose Spark has committed batches 0 to 3, so V is 3. `runs`: where each began, and its `write_at`."""

    runs: tuple[tuple[int, str], ...]
    checkpoint: Storage = field(default_factory=memory_storage)
    own: Storage = field(default_factory=memory_storage)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        for batch in range(4):
            self.checkpoint.create(f"offsets/{batch}", b"v1\n{}\n")
            self.checkpoint.create(f"commits/{batch}", b"v1\n{}\n")
        for began, write_at in self.runs:
            generation = next_generation(self.own)
            record_start(self.own, generation, began)
            note_intent(self.own, generation, {"query": {"write_at": write_at}})

    def commit(
        self, store: StoreId, version: int, dirty_from: int, generation: int = 1, number: bytes | None = None
    ) -> bytes:
        number = number or new_id()
        meta = commit_meta(
            version, store=store, dirty_from=dirty_from, generation=generation, checkpoint_id=number, wall_ms=version
        )
        self.log.catalog.note(*self.log.writer.append(FrameKind.COMMIT, meta))
        return number

    def name(self, batch: int, *ids: bytes) -> None:
        """Spark names the state of operator 0 after the batch, by partition."""
        named = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[each.hex()] for each in ids]}})
        self.checkpoint.replace(f"commits/{batch}", f"v2\n{named}".encode())

    def start(self) -> StartOrders:
        places = Places(self.checkpoint, self.own, self.log.storage)
        return decide_start(
            read_start_facts(places, "memory://home", self.log.catalog.index, 3, is_ours=True, named=False)
        )


ASYNC = ((-1, "async"),)


def test_a_store_that_had_not_written_the_newest_version_takes_all_back_to_the_one_before() -> None:
    query = Query(ASYNC)
    query.commit(FIRST, 3, 1)
    query.commit(FIRST, 4, 2)
    query.commit(SECOND, 3, 3)
    orders = query.start()
    assert (orders.plan.base, orders.plan.rewound_to, orders.makes_newest) == (3, 0, True)
    assert [head.version for head in orders.plan.heads] == [3, 3]
    words = describe_plan(orders, "deferred", "Q=1", "home")
    assert words[0] == StartMessage(
        "Spark had committed batch 3 before all stores had written it (writeAt=async): a replay of batches 1 to 3 "
        "makes it again",
        warns=False,
    )
    assert not any("repair" in word.line for word in words)


def test_nothing_is_made_again_if_all_have_written() -> None:
    query = Query(ASYNC)
    for store in (FIRST, SECOND):
        query.commit(store, 3, 3)
        query.commit(store, 4, 4)
    orders = query.start()
    assert (orders.plan.base, orders.plan.replayed_batches, orders.makes_newest) == (4, 0, False)


@pytest.mark.parametrize(
    ("runs", "is_lag"),
    [
        (((-1, "batch"),), False),
        (((-1, "async"), (3, "task")), True),  # the second run has committed nothing
        (((-1, "async"), (2, "task")), False),  # it has committed batch 3
        (((-1, "task"), (2, "async"), (3, "batch"), (3, "task")), True),
    ],
)
def test_only_the_run_that_committed_the_batch_explains_that_it_is_missing(
    runs: tuple[tuple[int, str], ...], is_lag: bool
) -> None:
    query = Query(runs)
    for store in (FIRST, SECOND):
        query.commit(store, 3, 3, len(runs))
    query.commit(FIRST, 4, 4, len(runs))
    if is_lag:
        assert query.start().plan.base == 3
    else:
        with pytest.raises(DamagedLog, match="no commit frame of version 4"):
            query.start()


def test_a_store_that_lacks_an_older_version_is_damaged() -> None:
    query = Query(ASYNC)
    query.commit(FIRST, 4, 4)
    query.commit(FIRST, 3, 3)
    query.commit(SECOND, 2, 2)
    with pytest.raises(DamagedLog, match="no commit frame of version 3"):
        query.start()


def test_the_version_before_is_the_attempt_that_spark_named() -> None:
    """The batch before ran twice with different results, and Spark has the first one's id."""
    query = Query(ASYNC)
    named = query.commit(FIRST, 3, 2)
    query.commit(FIRST, 3, 3)
    query.name(2, named)
    plan = query.start().plan
    assert (plan.base, [head.checkpoint_id for head in plan.heads]) == (3, [named])


def test_a_run_that_committed_after_a_later_one_began_decides_where_the_replay_begins() -> None:
    """Run 1 was paused in the commit of batch 3. Run 2 has flushed and run batch 3, and Spark refused its commit."""
    query = Query(((-1, "batch"), (2, "batch")))
    ids = [query.commit(store, 4, 2) for store in (FIRST, SECOND)]
    for store in (FIRST, SECOND):
        query.commit(store, 4, 4, 2)
    query.name(3, *ids)
    plan = query.start().plan
    assert (plan.base, plan.rewound_to, [head.checkpoint_id for head in plan.heads]) == (4, 1, ids)


@pytest.mark.parametrize("first_written_again", [False, True])
@pytest.mark.parametrize(("of_first", "of_second", "is_lag"), [("async", "batch", True), ("batch", "async", False)])
def test_the_run_that_committed_explains_what_is_missing_even_if_a_later_one_began(
    of_first: str, of_second: str, is_lag: bool, first_written_again: bool
) -> None:
    """`first_written_again`: a third run made the version again, and has died before its second store wrote."""
    query = Query(((-1, of_first), (2, of_second), (3, of_second)))
    for store in (FIRST, SECOND):
        query.commit(store, 3, 3)
        query.commit(store, 4, 4, 2)
    named = query.commit(FIRST, 4, 4)
    if first_written_again:
        query.commit(FIRST, 4, 4, 3, named)
    query.name(3, named, new_id())
    if is_lag:
        assert query.start().plan.base == 3
    else:
        with pytest.raises(DamagedLog, match="the commit frame of version 4 is lost"):
            query.start()


def test_a_choice_that_is_not_heeded_is_said() -> None:
    assert describe_write_at(None, WriteAt.BATCH) == describe_write_at(WriteAt.ASYNC, WriteAt.ASYNC) == []
    (word,) = describe_write_at(WriteAt.ASYNC, WriteAt.BATCH)
    assert word.warns and "writeAt=batch, and not" in word.line and "`cec` sink" in word.line
    (word,) = describe_write_at(WriteAt.BATCH, WriteAt.TASK)
    assert "memory sink" in word.line
