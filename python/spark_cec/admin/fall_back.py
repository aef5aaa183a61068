"""What `cec repair` does about stores that cannot be rebuilt: it looks for a version that the query can begin from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.committed import committed, committed_attempts
from spark_cec.admin.find_log import OWN_DIRECTORY, Place
from spark_cec.admin.state import catalog_of
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.agent.owner import external_log, refuse_if_owned
from spark_cec.log.storage import Storage
from spark_cec.recovery.fallback import Base, FallbackCost, NoBase, estimate_cost, find_base, make_probe
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.plan import make_plan
from spark_cec.recovery.query_files import Fallback, read_carried, save_fallback
from spark_cec.recovery.spark_logs import all_stores

_JUST_STOPPED_S = 2.0


@dataclass(frozen=True, slots=True)
class Mending:
    """Stores are lost at the end of `committed_batch`, V: where the query can begin from, and what that costs.

    Of a flow under a protocol V is the batch that its next start takes it back to.
    """

    committed_batch: int
    found: Base | NoBase
    cost: FallbackCost | None


def find_mending(place: Place) -> Mending | None:
    """Reads every frame that a recovery needs, writes nothing. None: all stores are whole, or only the log is known."""
    done = committed(place)
    if place.checkpoint is None or done is None or done.version is None:
        return None
    catalog = catalog_of(place)
    catalog.refresh()
    index = catalog.index
    stores = all_stores(place.checkpoint, index.stores())
    oldest = min(_batches(place.checkpoint, "offsets"), default=done.last + 1)
    probe = make_probe(place.storage, index, committed_attempts(place, done))
    found = find_base(stores, done.last, oldest, probe, read_carried(open_storage(_own(place.checkpoint))))
    if not found.losses:
        return None
    return Mending(done.last, found, estimate_cost(index, found, done.last) if isinstance(found, Base) else None)


def replay_due(place: Place) -> tuple[int, int] | None:
    """The first and last batch that the next start replays, where no store is lost; None if it replays nothing."""
    done = committed(place)
    if done is None or done.version is None:
        return None
    catalog = catalog_of(place)
    catalog.refresh()
    stores = all_stores(place.checkpoint, catalog.index.stores())
    plan = make_plan(catalog.index, stores, done.last, committed_attempts(place, done))
    return (plan.rewound_to + 1, done.last) if plan.rewound_to < done.last else None


def begin_from(place: Place, mending: Mending) -> None:
    """Has the next start begin from the version that was found, if one was; the caller has the checkpoint's lease."""
    if place.checkpoint is not None and isinstance(mending.found, Base):
        own = open_storage(_own(place.checkpoint))
        save_fallback(own, Fallback(mending.found.version, mending.committed_batch, newest_generation(own)))


@contextmanager
def while_no_run_has_it(place: Place) -> Iterator[None]:
    """Holds the lease of the checkpoint, where one is known, and of its log; `Fenced` if the query runs.

    A query that has just been stopped gives its lease back a moment later. `UnsuitableCheckpoint` if the checkpoint is
    a copy, and the log is the original's.
    """
    leases = CheckpointLeases()
    if place.checkpoint is None:
        leases.hold(place.home, open_storage(place.home), _JUST_STOPPED_S)
    else:
        url = place.checkpoint.url
        leases.hold(url, open_storage(_own(place.checkpoint)), _JUST_STOPPED_S, external_log(url, place.home))
    try:
        if place.checkpoint is not None:
            refuse_if_owned(place.checkpoint.url, place.home)
        yield
    finally:
        leases.close()


def _own(checkpoint: Storage) -> str:
    return f"{checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}"


def _batches(storage: Storage, directory: str) -> list[int]:
    stems = [file.name.removesuffix(".json") for file in storage.list(directory)]
    return [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
