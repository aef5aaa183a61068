"""Reads the facts that decide how a query begins: those of the checkpoint, of Spark's logs, and of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.checkpoint.eventual import completed, head_at
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import CommitMeta
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import ANY_VERSION, Allows, CommittedAttempts, living_stores
from spark_cec.recovery.decide import (
    RecoveryPlan,
    StartFacts,
    StoreFacts,
    choose_base,
    lacks_newest,
    plan_replay,
)
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.query_files import FALLBACK, REWIND, Fallback
from spark_cec.recovery.spark_logs import all_stores, planned_batches


@dataclass(frozen=True, slots=True)
class Places:
    """The storages of a query: its checkpoint, the checkpoint's `cec` directory (`own`), and its log."""

    checkpoint: Storage
    own: Storage
    log: Storage


def read_start_facts(
    places: Places, home: str, index: Index, committed: int, *, is_ours: bool, named: bool
) -> StartFacts:
    """The facts of a start after batch `committed` (V, -1 for none). `index` is that of the log at `home`.

    `is_ours`: our provider keeps the query's state. `named`: Spark records checkpoint ids with each commit. Raises
    `UnsuitableCheckpoint` if a note in the `cec` directory is unreadable.
    """
    checkpoint, own = places.checkpoint, places.own
    cuts = read_cuts(places.log).known
    attempts = CommittedAttempts(checkpoint, own, cuts, committed)
    allows = attempts.allows
    stores = all_stores(checkpoint, living_stores(index, cuts), is_ours=is_ours)
    fallback = FALLBACK.read(own)
    is_done = fallback is not None and is_fallback_done(index, stores, fallback)
    base = choose_base(fallback, is_done, committed)
    found = read_stores(index, stores, base, allows)
    was_unwritten = 0 <= committed < base and lacks_newest(found) and attempts.may_lack_newest(index)
    if was_unwritten:
        base, found = committed, read_stores(index, stores, committed, allows)
    return StartFacts(
        checkpoint=checkpoint.url,
        home=home,
        committed=committed,
        newest_run=newest_generation(own),
        lacks_commit=named and committed >= 0 and not checkpoint.exists(f"commits/{committed}"),
        unfinished_rewind=REWIND.read(own),
        planned=planned_batches(checkpoint),
        cuts=cuts,
        latest=read_latest(index, committed),
        ahead=read_ahead(index, committed, allows),
        published=manifest.batches(places.log),
        base=base,
        stores=found,
        fallback=fallback,
        fallback_is_done=is_done,
        was_unwritten=was_unwritten,
    )


def read_latest(index: Index, committed: int) -> list[CommitMeta]:
    """Each store's frames of versions above V+1, or of its newest version if there is none.

    A later run writes above V+1. If a rollback came between, it may have begun again below, with its newest frames.
    """
    return [
        entry.meta
        for store in index.stores()
        for entry in index.frames(store, committed + 2, ANY_VERSION) or index.newest(store, ANY_VERSION)
    ]


def read_ahead(index: Index, committed: int, allows: Allows) -> list[CommitMeta]:
    """Each store's newest commit above V+2, of those that `allows` lets count."""
    ahead = []
    for store in index.stores():
        counting = [entry.meta for entry in index.commits(store, committed + 3, ANY_VERSION) if allows(entry)]
        ahead += counting[-1:]
    return ahead


def read_stores(index: Index, stores: Sequence[StoreId], version: int, allows: Allows) -> list[StoreFacts]:
    """The stores in the log at a version. `allows` tells which attempts may be the committed ones."""
    return [_read_store(index, store, version, allows) for store in stores]


def _read_store(index: Index, store: StoreId, version: int, allows: Allows) -> StoreFacts:
    if version <= 0:
        return StoreFacts(store, None, version)
    try:
        head = head_at(index, store, version, allows=allows)
        return StoreFacts(store, head.meta, first_missed(index, head))
    except DamagedLog as error:
        return StoreFacts(store, None, version, error)


def read_plan(index: Index, stores: Sequence[StoreId], committed: int, base: int, allows: Allows) -> RecoveryPlan:
    """The plan of a recovery after batch `committed`, whose stores begin at version `base`, for commands that show it.

    `DamagedLog` as `plan_replay`.
    """
    return plan_replay(committed, base, read_stores(index, stores, base, allows))


def first_missed(index: Index, head: CommitEntry) -> int:
    """The lowest D of the attempts at the head's version, in the run of its commit: any of them may be loaded."""
    attempts = index.commits(head.meta.store, head.meta.version, head.meta.version)
    # A later run may have written the head's flush, or an attempt whose commit Spark refused.
    run = [e.meta.generation for e in attempts if e.meta.checkpoint_id == head.meta.checkpoint_id][-1]
    return min(completed(index, e).meta.dirty_from for e in attempts if e.meta.generation == run)


def is_fallback_done(index: Index, stores: Sequence[StoreId], fallback: Fallback) -> bool:
    """Whether a run after the damaged one has written every store whole at V+1.

    `stores` are all stores that the query must have, with or without frames in the log.
    """
    version = fallback.committed_batch + 1
    return all(
        any(
            entry.meta.generation > fallback.generation
            and entry.meta.oldest_footprint == version
            and not entry.meta.dirty_windows
            for entry in index.frames(store, version, version)
        )
        for store in stores
    )
