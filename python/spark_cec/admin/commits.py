"""Reads the commits of a log for the advice on the checkpoint interval."""

from __future__ import annotations

from pathlib import Path

from spark_cec.admin.committed import committed_attempts
from spark_cec.admin.find_log import find_log
from spark_cec.admin.state import open_catalog
from spark_cec.errors import LogLocationError
from spark_cec.log.meta import CommitFlags
from spark_cec.recovery.attempts import ANY_VERSION
from spark_cec.tuning.estimate import Commit


def read_commits(checkpoint: Path) -> list[Commit]:
    """Every store's commits in the log of a checkpoint, the last attempt of each version; empty without a log.

    Commits that a rollback took back are left out: later commits of the same versions have other times.
    """
    try:
        place = find_log(str(checkpoint))
    except LogLocationError:
        return []
    catalog = open_catalog(place)
    catalog.refresh()
    index = catalog.index
    allows = committed_attempts(place, None)
    entries = [entry for store in index.stores() for entry in index.commits(store, 0, ANY_VERSION)]
    metas = [entry.meta for entry in entries if allows(entry)]
    last = {(meta.store, meta.version): meta for meta in metas}
    return [
        Commit(
            meta.version,
            meta.store.operator,
            meta.store.partition,
            meta.wall_ms / 1e3,
            meta.elapsed_us / 1e6,
            whole=bool(meta.flags & CommitFlags.EAGER),
        )
        for meta in last.values()
    ]
