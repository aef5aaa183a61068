"""Plans the fallback for `cec repair`: if stores cannot be rebuilt, finds a version from which the query can begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.committed import committed, committed_attempts, decided_fallback, list_stores, note_unwritten
from spark_cec.admin.find_log import OWN_DIRECTORY, Place
from spark_cec.admin.state import open_catalog
from spark_cec.agent.lease import CheckpointLeases, command_wait_s
from spark_cec.agent.owner import external_log, refuse_log_of_another
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.storage import Storage
from spark_cec.recovery.decide import refuse_later_history
from spark_cec.recovery.facts import read_latest, read_plan
from spark_cec.recovery.fallback import Base, FallbackCost, NoBase, estimate_cost, find_base, make_probe
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.query_files import FALLBACK, Fallback, read_carried, save_fallback
from spark_cec.recovery.spark_logs import committed_batch, planned_batches


@dataclass(frozen=True, slots=True)
class FallbackPlan:
    """The version from which the query can begin if stores are lost at the end of `committed_batch` (V), and the cost.

    For a flow under a protocol, V is the batch to which its next start goes back.
    """

    committed_batch: int
    found: Base | NoBase
    cost: FallbackCost | None


def plan_fallback(place: Place) -> FallbackPlan | None:
    """Reads every frame that a recovery needs; None if all stores are whole, or no checkpoint is known. Never writes.
    """
    done = committed(place)
    if place.checkpoint is None or done is None or done.version is None:
        return None
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    index = catalog.index
    done = note_unwritten(place, index, done) or done
    stores, oldest = list_stores(place, index), _find_oldest_batch(place.checkpoint, done.last)
    probe = make_probe(place.storage, index, committed_attempts(place, done))
    newest = done.last - done.is_unwritten
    found = find_base(stores, newest, oldest, probe, read_carried(open_storage(_own_url(place.checkpoint))))
    if not found.losses:
        return None
    cost = estimate_cost(index, stores, found, done.last) if isinstance(found, Base) else None
    return FallbackPlan(done.last, found, cost)


def replay_due(place: Place) -> tuple[int, int] | None:
    """The first and last batch that the next start replays; None if it replays nothing.

    After `cec repair` of lost stores it replays from the version that the repair has found.
    """
    done = committed(place)
    if done is None or done.version is None:
        return None
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    done = note_unwritten(place, catalog.index, done) or done
    stores = list_stores(place, catalog.index)
    decided = decided_fallback(place, catalog.index, done)
    # A decision for another end is of another copy of the checkpoint, and a start refuses it.
    is_due = decided is not None and decided.committed_batch == done.last
    base = decided.version if decided is not None and is_due else done.version or 0
    plan = read_plan(catalog.index, stores, done.last, base, committed_attempts(place, done))
    return (plan.rewound_to + 1, done.last) if plan.rewound_to < done.last else None


def refuse_other_history(place: Place) -> None:
    """Raises `UnsuitableCheckpoint` if the log has another history than the checkpoint, which is an older copy then."""
    assert place.checkpoint is not None
    own, end = open_storage(_own_url(place.checkpoint)), committed_batch(place.checkpoint)
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    cuts = read_cuts(place.storage).known
    refuse_later_history(read_latest(catalog.index, end), cuts, end, newest_generation(own))


def record_fallback(place: Place, fallback: FallbackPlan | None) -> None:
    """Makes the next start begin from the version of the plan, if it has one; the caller holds the checkpoint's lease.

    If no store is lost, an earlier plan is withdrawn, because somebody has brought its frames back.
    """
    if place.checkpoint is None:
        return
    own = open_storage(_own_url(place.checkpoint))
    if fallback is None:
        FALLBACK.delete(own)
    elif isinstance(fallback.found, Base):
        save_fallback(own, Fallback(fallback.found.version, fallback.committed_batch, newest_generation(own)))


@contextmanager
def keep_runs_out(place: Place) -> Iterator[Callable[[], None]]:
    """Holds the leases of the checkpoint, if one is known, and of its log; `Fenced` if the query runs.

    Yields a function to call before a write that follows a wait: it raises `Fenced` if a run has taken a lease since,
    as it may on an object store while this process is suspended.
    A query that has just stopped releases its lease a moment later. Raises `UnsuitableCheckpoint` if the checkpoint is
    a copy, and the log belongs to the original.
    """
    leases = CheckpointLeases()
    if place.checkpoint is None:
        held, log = place.home, open_storage(place.home)
        leases.hold(held, log, command_wait_s(log))
    else:
        held, own = place.checkpoint.url, open_storage(_own_url(place.checkpoint))
        leases.hold(held, own, command_wait_s(own), external_log(held, place.home))
    try:
        if place.checkpoint is not None:
            refuse_log_of_another(place.checkpoint.url, place.home)
        yield partial(leases.confirm, held)
    finally:
        leases.close()


def has_lock(place: Place) -> bool:
    """Whether a run of the query takes a lease, which keeps a command out. One without state here takes none.

    If `query.json` is not known, the log tells: one with state has stores.
    """
    if place.query is not None:
        return place.is_ours
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    return bool(catalog.index.stores())


def _own_url(checkpoint: Storage) -> str:
    return f"{checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}"


def _find_oldest_batch(checkpoint: Storage, last: int) -> int:
    """The first batch of Spark's offset log from which on it has each one up to `last`; `last` + 1 if it lacks that."""
    planned, oldest = set(planned_batches(checkpoint)), last + 1
    while oldest - 1 in planned:
        oldest -= 1
    return oldest
