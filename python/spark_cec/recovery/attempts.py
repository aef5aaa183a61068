"""Decides which attempt at a version may be the one that Spark committed.

If a query stops before Spark commits a planned batch, the next run repeats the batch and writes its versions again. The
two runs may write different state. If a frame of the later run is lost, a frame of the earlier run must not replace it.

If Spark records checkpoint ids for V, an attempt at V + 1 counts if it has one of the recorded ids. The same holds for
V. The run does not matter: Spark may accept the commit of a paused run after a later run has begun.

Without ids, the newest run that began before batch b was committed is taken for the run that committed b. At version v
an attempt counts if that run (its V at the start was below v - 1) wrote it. An attempt by a later run counts too: it
repairs a loss.

A rollback to the end of a batch excludes all attempts after that batch by runs before the rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import TypeAlias

from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.output_rollbacks import Cut, read_cuts
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import known_generations, read_start, read_state
from spark_cec.recovery.spark_logs import STORES_OF_A_JOIN, Partition, committed_batch, committed_ids
from spark_cec.settings import WriteAt

Allows: TypeAlias = "Callable[[CommitEntry], bool]"
"""Tells whether an attempt may be the committed one."""

ANY_VERSION = 1 << 62
"""A number above every version."""


class CommittedAttempts:
    """Tells which commit attempts of one checkpoint count; Spark has committed its batches up to `committed`.

    `own` is rooted at the checkpoint's `cec` directory. `cuts` are the rollbacks that the log records.
    """

    def __init__(self, checkpoint: Storage, own: Storage, cuts: Sequence[Cut], committed: int) -> None:
        self._own = own
        self._cuts = cuts
        self._committed = committed
        self._read_start = cache(lambda generation: read_start(own, generation))
        self._read_ids: Callable[[int], dict[Partition, tuple[str, ...]]] = cache(
            lambda batch: committed_ids(checkpoint, batch)
        )

    def allows(self, entry: CommitEntry) -> bool:
        """Whether this attempt may be the committed one."""
        meta = entry.meta
        if is_rolled_back(entry, self._cuts):
            return False
        has_ids = meta.version in (self._committed, self._committed + 1)
        ids = self._read_ids(meta.version - 1) if has_ids else {}
        named = ids.get((meta.store.operator, meta.store.partition))
        return meta.checkpoint_id.hex() in named if named else meta.generation >= self.least_generation(meta.version)

    def committed_id(self, store: StoreId, version: int) -> str | None:
        """The checkpoint id, in hex digits, that Spark records for the store at V + 1; None if Spark records no id."""
        is_newest = version == self._committed + 1
        ids = self._read_ids(self._committed).get((store.operator, store.partition), ()) if is_newest else ()
        place = STORES_OF_A_JOIN.index(store.name) if store.name in STORES_OF_A_JOIN else 0
        return ids[place] if place < len(ids) else None

    def allows_read(self, entry: CommitEntry) -> bool:
        """As `allows`, but for a reader: an attempt above V + 1 counts, because Spark may still commit it."""
        if entry.meta.version > self._committed + 1:
            return not is_rolled_back(entry, self._cuts)
        return self.allows(entry)

    def least_generation(self, version: int) -> int:
        """The oldest run whose attempt at `version` counts, if Spark records no ids; 0 if no run file tells."""
        for generation in reversed(self._generations):
            after = self._read_start(generation)
            if after is not None and after < version - 1:
                return generation
        return 0

    @cached_property
    def _generations(self) -> list[int]:
        return known_generations(self._own)

    def may_lack_newest(self, index: Index) -> bool:
        """Whether the run that committed V let Spark commit a batch before its stores had written it.

        Such a run plans no batch before it has written the last one, so the log lacks no older version. A run before
        `least_generation` has committed V if an attempt of its counts. A later one has only written it again.
        """
        version = self._committed + 1
        attempts = [entry for store in index.stores() for entry in index.commits(store, version, version)]
        counting = [entry.meta.generation for entry in attempts if self.allows(entry)]
        state = read_state(self._own, min([self.least_generation(version), *counting]))
        query = (state.intent or {}).get("query") if state is not None else None
        return query is not None and query.get("write_at") == WriteAt.ASYNC.value


def read_attempts(checkpoint: Storage, own: Storage, log: Storage) -> CommittedAttempts:
    """Reads the committed batch and the rollbacks as they are now. `DamagedLog` if a rollback entry is unreadable."""
    return CommittedAttempts(checkpoint, own, read_cuts(log).known, committed_batch(checkpoint))


def is_rolled_back(entry: CommitEntry, cuts: Iterable[Cut]) -> bool:
    """Whether a rollback took back the batch of this attempt."""
    return any(cut.takes_back(entry.meta.version - 1, entry.meta.generation) for cut in cuts)


def living_stores(index: Index, cuts: Sequence[Cut]) -> list[StoreId]:
    """The stores of the index, without those of which a rollback took back every attempt.

    A flow that went back to its beginning may have other operators and partitions since then.
    """
    if not cuts:
        return index.stores()
    return [each for each in index.stores() if newest_allowed(index, each, lambda e: not is_rolled_back(e, cuts))]


def newest_allowed(index: Index, store: StoreId, allows: Allows) -> CommitEntry | None:
    """The last attempt that counts, at the highest version that has one; None if no attempt counts."""
    version = ANY_VERSION
    while attempts := index.newest(store, version):
        counting = [entry for entry in attempts if allows(entry)]
        if counting:
            return counting[-1]
        version = attempts[-1].meta.version - 1
    return None
