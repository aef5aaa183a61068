"""Reads what the commits of a query did, batch by batch, as far back as the log goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_cec.admin.committed import committed, committed_attempts
from spark_cec.admin.find_log import Place
from spark_cec.log.catalog import Catalog
from spark_cec.log.index import CommitEntry
from spark_cec.recovery.attempts import ANY_VERSION
from spark_cec.settings import Settings


@dataclass(frozen=True, slots=True)
class BatchCommits:
    """The commits of all stores for one batch: sums, and of the times the longest.

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


def read_history(place: Place, catalog: Catalog) -> tuple[BatchCommits, ...]:
    """The batches, oldest first, for which each of the stores that has the newest batch has a commit.

    `catalog`: an up-to-date one of the log.
    """
    index = catalog.index
    allows = committed_attempts(place, committed(place))
    versions: dict[int, dict[object, list[CommitEntry]]] = {}
    for store in index.stores():
        for entry in index.commits(store, 0, ANY_VERSION):
            if allows(entry):
                versions.setdefault(entry.meta.version, {}).setdefault(store, []).append(entry)
    if not versions:
        return ()
    whole = versions[max(versions)].keys()
    settings = place.settings
    bounded = settings if settings is not None and settings.recovery_target_ms is None else None
    return tuple(
        _sum_commits(version, found, bounded) for version, found in sorted(versions.items()) if whole <= found.keys()
    )


def _sum_commits(version: int, stores: dict[object, list[CommitEntry]], bounded: Settings | None) -> BatchCommits:
    """`stores`: by store its frames of that version: the last attempt's numbers count, and the bytes of all."""
    newest = [frames[-1].meta for frames in stores.values()]
    # A flush comes after its commit, and has no input of its own.
    commits = [[each.meta for each in frames if not each.meta.is_flush] for frames in stores.values()]
    inputs = [metas[-1] for metas in commits if metas]
    return BatchCommits(
        batch=version - 1,
        wall_ms=max(meta.wall_ms for meta in newest),
        stores=len(stores),
        inputs=sum(meta.inputs for meta in inputs),
        records=sum(entry.meta.records for entry in _flatten(stores.values())),
        extent=sum(meta.extent for meta in newest),
        extent_bound=None
        if bounded is None
        else sum(int(bounded.extent_bound.limit(meta.rows or meta.open_windows)) for meta in newest),
        replay=sum(meta.replay for meta in newest),
        replay_bound=None if bounded is None or bounded.replay_bound is None else bounded.replay_bound * len(newest),
        dirty_windows=sum(meta.dirty_windows for meta in newest),
        open_windows=sum(meta.open_windows for meta in newest),
        stored_bytes=sum(entry.location.length for entry in _flatten(stores.values())),
        task_ms=max((meta.elapsed_us for meta in inputs), default=0) / 1000,
        recovery_ms=max(meta.recovery_estimate_ms for meta in newest),
    )


def _flatten(frames: Iterable[list[CommitEntry]]) -> Iterable[CommitEntry]:
    return (entry for each in frames for entry in each)
