"""Plans a recovery: which batches the query must replay (docs/design.md, One recovery)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_cec.checkpoint.eventual import completed, head_at
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import CommitMeta
from spark_cec.log.output_rollbacks import Cut
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import REWIND

Allows: TypeAlias = "Callable[[CommitEntry], bool]"
"""Tells whether an attempt may be the committed one; see `recovery.attempts`."""

ANY_VERSION = 1 << 62
"""A number above every version."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """V, T, the version from which the stores begin, and each store's footer at that version.

    `base` is V+1. If a lost frame made the query fall back, `base` is an older version w (`recovery.fallback`).
    """

    committed_batch: int
    rewound_to: int
    base: int
    stores: tuple[StoreId, ...]
    heads: tuple[CommitMeta, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RecoveryPlan:
        """The inverse of `to_json`; ignores unknown fields."""
        stores = (StoreId(int(operator), int(partition), str(name)) for operator, partition, name in raw["stores"])
        heads = (CommitMeta.decode(bytes.fromhex(head)) for head in raw["heads"])
        committed, rewound_to, base = (int(raw[name]) for name in ("committed_batch", "rewound_to", "base"))
        return cls(committed, rewound_to, base, tuple(stores), tuple(heads))

    def to_json(self) -> dict[str, Any]:
        """The whole plan, so that another agent can use it after a restart. Footers are in hex, as the log has them."""
        return {
            "committed_batch": self.committed_batch,
            "rewound_to": self.rewound_to,
            "base": self.base,
            "stores": [[each.operator, each.partition, each.name] for each in self.stores],
            "heads": [head.encode().hex() for head in self.heads],
        }

    @property
    def replayed_batches(self) -> int:
        """The number of committed batches that run again: V - T."""
        return self.committed_batch - self.rewound_to


def make_plan(
    index: Index, stores: Sequence[StoreId], committed: int, allows: Allows, base: int | None = None
) -> RecoveryPlan:
    """Plans the recovery after batch `committed` (-1: none) from each store's frames at version `base`.

    `stores` are the stores that the query must have. `allows` tells which attempts may be the committed ones. `base`
    defaults to V+1. If a task ran again, a run has several attempts at the version. Any of them may be loaded, so the
    replay starts early enough for all. Raises `DamagedLog` if Spark committed batch V but a store has no frame at that
    version.
    """
    version = committed + 1 if base is None else base
    if committed < 0:
        return nothing_to_replay(committed)
    heads = tuple(head_at(index, store, version, allows=allows) for store in stores) if version else ()
    rewound_to = min((first_missed(index, head) for head in heads), default=version) - 1
    return RecoveryPlan(committed, rewound_to, version, tuple(stores), tuple(head.meta for head in heads))


def nothing_to_replay(committed: int) -> RecoveryPlan:
    """The plan of a query that continues after batch `committed` (-1: none) and has no store."""
    return RecoveryPlan(committed, committed, committed + 1, (), ())


def refuse_unfinished_rewind(own: Storage, committed: int) -> None:
    """Refuses a checkpoint if release 0.1 cut its Spark logs for a recovery and did not finish that recovery.

    `own` is rooted at the checkpoint's `cec` directory. `committed` is the newest batch that Spark does not run again.
    """
    was_committed = REWIND.read(own)
    if was_committed is None:
        return
    if committed < was_committed:
        raise UnsuitableCheckpoint(
            f"release 0.1 has cut Spark's logs for a recovery of batch {was_committed} that it did not finish: start "
            f"the query with that release until it has committed batch {was_committed}, and change to this one then"
        )


def refuse_later_history(index: Index, cuts: Iterable[Cut], committed: int, generation: int) -> None:
    """Refuses a log that has frames or a rollback by a later run than `generation`, the newest run of the checkpoint.

    Then the checkpoint, which ends at batch `committed`, is an older copy that was restored without its log. The query
    would reuse run and version numbers. It could take commits of the abandoned history for its own.
    """
    runs = [(cut.generation, f"was cut behind batch {cut.after} by run {cut.generation}") for cut in cuts]
    runs += [
        (meta.generation, f"has version {meta.version} of store {store} by run {meta.generation}")
        for store in index.stores()
        for meta in (entry.meta for entry in _find_newest_frames(index, store, committed))
    ]
    newest, what = max(runs, default=(0, ""))
    if newest > generation:
        raise UnsuitableCheckpoint(
            f"the log is ahead of the checkpoint: it {what}, but the checkpoint ends at batch {committed} and run "
            f"{generation}; restore both from one copy, or start a new checkpoint with a log of its own"
        )


def _find_newest_frames(index: Index, store: StoreId, committed: int) -> list[CommitEntry]:
    """The store's frames behind the committed version, else its newest frames.

    A later run begins behind the committed version unless a rollback came between.
    """
    return index.frames(store, committed + 2, ANY_VERSION) or index.newest(store, ANY_VERSION)


def refuse_later_batches(index: Index, checkpoint: str, committed: int, allows: Allows) -> None:
    """Refuses a log with more batches than a crash after batch `committed` can leave, unless a rollback took them back.

    `allows` as in `make_plan`. If the log is ahead, a person or a power loss has deleted the newest entries of Spark's
    logs.
    """
    for store in index.stores():
        ahead = [entry.meta for entry in index.commits(store, committed + 3, ANY_VERSION) if allows(entry)]
        if ahead:
            raise UnsuitableCheckpoint(
                f"the log is ahead of the checkpoint: store {store} has version {ahead[-1].version}, of batch "
                f"{ahead[-1].version - 1}, but the checkpoint ends at batch {committed}: entries of its offsets and "
                f"commits are gone. {way_back(checkpoint, committed)}; or restore these entries, or the checkpoint "
                "with its log from one copy"
            )


def way_back(checkpoint: str, batch: int) -> str:
    """Tells the user what to do if entries of Spark's logs behind `batch` were deleted."""
    if batch < 0:
        return "To begin anew, give the query a new checkpoint, with a log of its own"
    return f"To go back to batch {batch}, run `cec rollback {checkpoint.rstrip('/')} --to {batch}`"


def first_missed(index: Index, head: CommitEntry) -> int:
    """The lowest D of the attempts at the head's version, in the newest run: any of them may be loaded."""
    attempts = index.commits(head.meta.store, head.meta.version, head.meta.version)
    newest = attempts[-1].meta.generation  # a later run may have written the head's flush
    return min(completed(index, e).meta.dirty_from for e in attempts if e.meta.generation == newest)
