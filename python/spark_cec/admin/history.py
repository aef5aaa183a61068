"""Reads what the commits of a query did, batch by batch, as far back as the log goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.admin.committed import Committed, committed_attempts
from spark_cec.admin.find_log import Place
from spark_cec.checkpoint.eventual import completed
from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import CommitMeta
from spark_cec.recovery.attempts import ANY_VERSION
from spark_cec.settings import Settings


@dataclass(frozen=True, slots=True)
class BatchCommits:
    """The commits of all stores for one batch, with their flushes: sums, and of the times the longest.

    `wall_ms`: the newest record, ms since the epoch. `inputs` are input tuples, `records` what was written, `extent` q
    and `replay` u. Their bounds are None if they are unknown or follow from a recovery target. `stored_bytes`: in the
    log. `task_ms`: how long the slowest store's task took. `recovery_ms`: the estimate of a recovery from there, 0 if
    there is none. `stores`: how many have a commit; older ones may be trimmed.
    """

    batch: int
    wall_ms: int
    stores: int
    inputs: int
    records: int
    extent: int
    extent_bound: int | None
    replay: int
    replay_bound: int | None
    dirty_windows: int
    open_windows: int
    stored_bytes: int
    task_ms: float
    recovery_ms: float


def read_history(place: Place, index: Index, done: Committed | None) -> tuple[BatchCommits, ...]:
    """The batches, oldest first, for which every store of the log has a commit; the newest one is the committed one.

    `index` and `done`: as `read_state` has read them. Without a committed batch, whatever all stores have counts.
    """
    allows = committed_attempts(place, done)
    newest = ANY_VERSION if done is None or done.version is None else done.version
    versions: dict[int, dict[StoreId, list[CommitEntry]]] = {}
    stores = set[StoreId]()
    for store in index.stores():
        for entry in index.frames(store, 0, newest):
            if allows(entry):
                stores.add(store)
                versions.setdefault(entry.meta.version, {}).setdefault(store, []).append(entry)
    settings = place.settings
    bounded = settings if settings is not None and settings.recovery_target_ms is None else None
    return tuple(
        _sum_commits(version, [_StoreFrames.find(index, each) for each in found.values()], bounded)
        for version, found in sorted(versions.items())
        if stores <= {store for store, frames in found.items() if any(not each.meta.is_flush for each in frames)}
    )


@dataclass(frozen=True, slots=True)
class _StoreFrames:
    """The frames of a store for one batch: all attempts, the last `commit`, and `standing`: its flush, or itself."""

    frames: Sequence[CommitEntry]
    commit: CommitMeta
    standing: CommitMeta

    @classmethod
    def find(cls, index: Index, frames: Sequence[CommitEntry]) -> _StoreFrames:
        """`frames`: in the index's order, at least one commit."""
        commit = [each for each in frames if not each.meta.is_flush][-1]
        return cls(frames, commit.meta, completed(index, commit).meta)


def _sum_commits(version: int, stores: Sequence[_StoreFrames], bounded: Settings | None) -> BatchCommits:
    """The last attempt's numbers count, and the bytes of all. A flush has no input of its own."""
    newest, inputs = [each.standing for each in stores], [each.commit for each in stores]
    frames = [frame for each in stores for frame in each.frames]
    return BatchCommits(
        batch=version - 1,
        wall_ms=max(meta.wall_ms for meta in newest),
        stores=len(stores),
        inputs=sum(meta.inputs for meta in inputs),
        records=sum(frame.meta.records for frame in frames),
        extent=sum(meta.extent for meta in newest),
        extent_bound=None
        if bounded is None
        else sum(int(bounded.extent_bound.limit(meta.rows or meta.open_windows)) for meta in newest),
        replay=sum(meta.replay for meta in newest),
        replay_bound=None if bounded is None or bounded.replay_bound is None else bounded.replay_bound * len(newest),
        dirty_windows=sum(meta.dirty_windows for meta in newest),
        open_windows=sum(meta.open_windows for meta in newest),
        stored_bytes=sum(frame.location.length for frame in frames),
        task_ms=max((meta.elapsed_us for meta in inputs), default=0) / 1000,
        recovery_ms=max(meta.recovery_estimate_ms for meta in newest),
    )
