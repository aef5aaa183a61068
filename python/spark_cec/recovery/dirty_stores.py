"""Names the stores that a flush left dirty. The log knows them even if an executor does not answer."""

from __future__ import annotations

from spark_cec.log.index import Index
from spark_cec.recovery.facts import first_missed


def name_dirty_stores(index: Index, version: int, generation: int) -> list[str]:
    """A line with D for each store of run `generation` for which a recovery at `version` would replay batches.

    If a store's newest commit is older than `version` and by an earlier run, it has no line: its operator may be gone.
    """
    lines = []
    for store in index.stores():
        attempts = index.newest(store, version)
        if not attempts:
            continue
        newest = attempts[-1]
        if newest.meta.version < version:
            if newest.meta.generation == generation:
                lines.append(f"store {store} has no commit of version {version} in the log")
            continue
        dirty_from = first_missed(index, newest)
        if dirty_from < version:
            lines.append(f"store {store} still needs a replay from batch {dirty_from} on")
    return lines
