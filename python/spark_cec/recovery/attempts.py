"""Which of several attempts at a version may be the one that Spark committed.

A batch that was planned and not committed is run again by the next run of the query, which writes the same versions
again. What the earlier run had written must not stand in for a frame of the later one that is lost: the two may differ.

The run that committed batch b is the newest of those that began when b was not committed yet. So at version v an
attempt counts if it was written by the newest run that began with V < v - 1, or by a later one (which wrote it anew,
after a loss). Where Spark names the state of V by ids, an attempt at V + 1 counts if it has one of them.

A rollback cuts the log: what runs before it have written behind the batch that it went back to counts never again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property

from spark_cec.ids import StoreId
from spark_cec.log.cuts import Cut, cuts_of
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import known_generations, started_after
from spark_cec.recovery.plan import ANY_VERSION, Allows
from spark_cec.recovery.spark_logs import STORES_OF_A_JOIN, Partition, committed_batch, committed_ids


class CommittedAttempts:
    """Of one checkpoint, which ends at batch `committed`. `own` is rooted at its `cec` directory, `cuts` its log's."""

    def __init__(self, checkpoint: Storage, own: Storage, cuts: Sequence[Cut], committed: int) -> None:
        self._checkpoint = checkpoint
        self._own = own
        self._cuts = cuts
        self._committed = committed
        self._started_after = cache(lambda generation: started_after(own, generation))

    def allows(self, entry: CommitEntry) -> bool:
        """Whether this attempt may be the committed one."""
        meta = entry.meta
        if is_taken_back(entry, self._cuts) or meta.generation < self.least_generation(meta.version):
            return False
        if meta.version != self._committed + 1:
            return True
        ids = self._ids.get((meta.store.operator, meta.store.partition))
        return not ids or meta.checkpoint_id.hex() in ids

    def named(self, store: StoreId, version: int) -> str | None:
        """The id, as hex digits, by which Spark names the store's state at V + 1; None where it names none."""
        ids = self._ids.get((store.operator, store.partition), ()) if version == self._committed + 1 else ()
        place = STORES_OF_A_JOIN.index(store.name) if store.name in STORES_OF_A_JOIN else 0
        return ids[place] if place < len(ids) else None

    def allows_read(self, entry: CommitEntry) -> bool:
        """As `allows`, for who is no run of the query: a version that Spark has not committed is not given up yet."""
        if entry.meta.version > self._committed + 1:
            return not is_taken_back(entry, self._cuts)
        return self.allows(entry)

    def least_generation(self, version: int) -> int:
        """The oldest run whose attempt at `version` counts; 0 where that is not known."""
        for generation in reversed(self._generations):
            after = self._started_after(generation)
            if after is not None and after < version - 1:
                return generation
        return 0

    @cached_property
    def _generations(self) -> list[int]:
        return known_generations(self._own)

    @cached_property
    def _ids(self) -> dict[Partition, tuple[str, ...]]:
        return committed_ids(self._checkpoint, self._committed)


def read_attempts(checkpoint: Storage, own: Storage, log: Storage) -> CommittedAttempts:
    """Of a checkpoint as it is now, and its log. Errors: `DamagedLog` where a cut cannot be read."""
    return CommittedAttempts(checkpoint, own, cuts_of(log).known, committed_batch(checkpoint))


def is_taken_back(entry: CommitEntry, cuts: Iterable[Cut]) -> bool:
    """Whether a rollback has taken back the batch that this attempt was written with."""
    return any(cut.takes_back(entry.meta.version - 1, entry.meta.generation) for cut in cuts)


def newest_allowed(index: Index, store: StoreId, allows: Allows) -> CommitEntry | None:
    """The last attempt of the highest version that has one which counts; None where none does."""
    version = ANY_VERSION
    while attempts := index.newest(store, version):
        counting = [entry for entry in attempts if allows(entry)]
        if counting:
            return counting[-1]
        version = attempts[-1].meta.version - 1
    return None
