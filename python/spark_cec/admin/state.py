"""Reads the state of a log from frame headers, for `cec inspect`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_cec.admin.committed import (
    Committed,
    committed,
    committed_attempts,
    count_recoveries,
    decided_fallback,
    list_stores,
    note_unwritten,
)
from spark_cec.admin.damage import Finding, damage_findings, error_finding
from spark_cec.admin.find_log import Place
from spark_cec.checkpoint.eventual import completed
from spark_cec.errors import DamagedLog
from spark_cec.log import manifest
from spark_cec.log.catalog import Catalog
from spark_cec.log.index import CommitEntry, Index, MemoryIndex
from spark_cec.log.meta import CommitMeta
from spark_cec.log.segment import list_segments
from spark_cec.recovery.attempts import ANY_VERSION, Allows, newest_allowed
from spark_cec.recovery.facts import read_plan
from spark_cec.recovery.query_files import Fallback
from spark_cec.recovery.replay_input import ReplayInput, read_replay_input
from spark_cec.recovery.spark_logs import all_stores
from spark_cec.settings import Settings


@dataclass(frozen=True, slots=True)
class StoreState:
    """One store at the last committed version, or at its newest version if the log lacks the committed one.

    `extent_bound` is Q in records and `replay_bound` U in input tuples, None if unknown or not fixed. `stored_bytes`
    and `segments` count all of its frames, of every version, flushes too. `lost`: the log has no commit of the
    committed version.
    """

    meta: CommitMeta
    newest_version: int
    lost: bool
    extent_bound: int | None
    replay_bound: int | None
    stored_bytes: int
    segments: int


@dataclass(frozen=True, slots=True)
class LogState:
    """A whole log. `stored_bytes`: of all segments. `output_batches`: batches that have a manifest.

    `replay_input`: the input that a recovery needs. It is None without a checkpoint, a committed batch or a store, or
    if a store has lost its commit. `decided`: the fallback that `cec repair` has decided for the next start.
    """

    place: Place
    committed: Committed | None
    recoveries: int
    stores: tuple[StoreState, ...]
    segments: int
    stored_bytes: int
    output_batches: int
    findings: tuple[Finding, ...]
    replay_input: ReplayInput | None
    decided: Fallback | None


def open_catalog(place: Place) -> Catalog:
    """A catalog with an index in memory, so that it leaves no trace. It is not refreshed yet."""
    return Catalog(place.storage, MemoryIndex(place.log_id))


def read_state(place: Place, catalog: Catalog | None = None) -> LogState:
    """The state of the log. Reads Spark's commits first, because a frame is in the log before its batch commits.

    `catalog`: that of an earlier look, which then reads only what is new.
    """
    done = committed(place)
    catalog = catalog or open_catalog(place)
    catalog.refresh()
    index, files = catalog.index, list_segments(place.storage)
    done = note_unwritten(place, index, done)
    allows = committed_attempts(place, done)
    newest = {store: newest_allowed(index, store, allows) for store in index.stores()}
    stores = tuple(
        _read_store_state(index, each, done, allows, place.settings) for each in newest.values() if each is not None
    )
    batches, damaged_cuts = manifest.readable_batches(place.storage)
    errors = [*([place.damage] if place.damage else []), *damaged_cuts]
    findings = [*map(error_finding, errors), *damage_findings(catalog.damages)]
    return LogState(
        place=place,
        committed=done,
        recoveries=count_recoveries(place),
        stores=stores,
        segments=len(files),
        stored_bytes=sum(file.size for file in files),
        output_batches=len(batches),
        findings=(*findings, *_find_lost(place, stores, done)),
        replay_input=_read_replay_input(place, index, done),
        decided=decided_fallback(place, index, done),
    )


def _read_store_state(
    index: Index, newest: CommitEntry, done: Committed | None, allows: Allows, settings: Settings | None
) -> StoreState:
    store = newest.meta.store
    version = newest.meta.version if done is None or done.version is None else done.version
    # An attempt that Spark cannot have committed does not count.
    known = [entry for entry in index.commits(store, version, version) if allows(entry)]
    meta = completed(index, known[-1] if known else newest).meta
    frames = index.frames(store, 0, ANY_VERSION)
    # Under a recovery target the writer changes the bounds with its measurements.
    bounded = settings if settings and settings.recovery_target_ms is None else None
    return StoreState(
        meta=meta,
        newest_version=newest.meta.version,
        lost=not known,
        extent_bound=int(bounded.extent_bound.limit(meta.rows or meta.open_windows)) if bounded else None,
        replay_bound=bounded.replay_bound if bounded else None,
        stored_bytes=sum(frame.location.length for frame in frames),
        segments=len({frame.location.segment for frame in frames}),
    )


def _read_replay_input(place: Place, index: Index, done: Committed | None) -> ReplayInput | None:
    stores = list_stores(place, index)
    if place.checkpoint is None or done is None or done.version is None or not stores:
        return None
    try:
        plan = read_plan(index, stores, done.last, done.version, committed_attempts(place, done))
    except DamagedLog:
        return None
    return read_replay_input(place.checkpoint, plan.rewound_to + 1, done.last)


def _find_lost(place: Place, stores: Iterable[StoreState], done: Committed | None) -> list[Finding]:
    """Findings for stores without a commit of the committed version."""
    if done is None or done.version is None:
        return []
    shown = {state.meta.store for state in stores if not state.lost}
    newest = {state.meta.store: str(state.newest_version) for state in stores}
    reason = f"no commit frame of version {done.version}, although Spark has committed batch {done.batch}; newest: "
    return [
        error_finding(DamagedLog(f"store {store}", -1, reason + newest.get(store, "none")))
        for store in all_stores(place.checkpoint, newest, is_ours=place.is_ours)
        if store not in shown
    ]
