"""The recovery plan: what must be replayed (docs/design.md, One recovery)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_cec.checkpoint.eventual import completed, head_at
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log.cuts import Cut
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import CommitMeta
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import REWIND

Allows: TypeAlias = "Callable[[CommitEntry], bool]"
"""Whether an attempt may be the committed one; see `recovery.attempts`."""

ANY_VERSION = 1 << 62
"""Above every version."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """V, T, the version that the stores begin from, and the footers of what stands for each of them there in the log.

    `base` is V+1, or an older version w where a lost frame made the query fall back (`recovery.fallback`).
    """

    committed_batch: int
    rewound_to: int
    base: int
    stores: tuple[StoreId, ...]
    heads: tuple[CommitMeta, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RecoveryPlan:
        """The inverse of `to_json`; fields that it does not know are left alone."""
        stores = (StoreId(int(operator), int(partition), str(name)) for operator, partition, name in raw["stores"])
        heads = (CommitMeta.decode(bytes.fromhex(head)) for head in raw["heads"])
        committed, rewound_to, base = (int(raw[name]) for name in ("committed_batch", "rewound_to", "base"))
        return cls(committed, rewound_to, base, tuple(stores), tuple(heads))

    def to_json(self) -> dict[str, Any]:
        """All of it: the agent that planned need not be the one that is asked next. Footers are as in the log."""
        return {
            "committed_batch": self.committed_batch,
            "rewound_to": self.rewound_to,
            "base": self.base,
            "stores": [[each.operator, each.partition, each.name] for each in self.stores],
            "heads": [head.encode().hex() for head in self.heads],
        }

    @property
    def replayed_batches(self) -> int:
        """How many committed batches will run again: V - T."""
        return self.committed_batch - self.rewound_to


def make_plan(
    index: Index, stores: Sequence[StoreId], committed: int, allows: Allows, base: int | None = None
) -> RecoveryPlan:
    """The plan of a recovery after batch `committed` (-1: none), from what every store has in the log at `base`.

    `stores`: those that there must be. `allows`: which attempts may be the committed ones. `base` is a version, by
    default V+1. Where the newest run committed it several times (a task ran again), the replay
    starts early enough for each of these attempts, since any of them may be loaded. Raises `DamagedLog` if a store's
    frame at that version is missing although Spark committed batch V.
    """
    version = committed + 1 if base is None else base
    if committed < 0:
        return nothing_to_replay(committed)
    heads = tuple(head_at(index, store, version, allows=allows) for store in stores) if version else ()
    rewound_to = min((first_missed(index, head) for head in heads), default=version) - 1
    return RecoveryPlan(committed, rewound_to, version, tuple(stores), tuple(head.meta for head in heads))


def nothing_to_replay(committed: int) -> RecoveryPlan:
    """The plan of a query that goes on after batch `committed` (-1: none) with no store."""
    return RecoveryPlan(committed, committed, committed + 1, (), ())


def refuse_an_unfinished_rewind(own: Storage, committed: int) -> None:
    """Refuses a checkpoint whose logs release 0.1 has cut for a recovery that it did not finish.

    `own` is rooted at the checkpoint's `cec` directory, `committed` is the newest batch that Spark does not run again.
    """
    was_committed = REWIND.read(own)
    if was_committed is None:
        return
    if committed < was_committed:
        raise UnsuitableCheckpoint(
            f"release 0.1 has cut Spark's logs for a recovery of batch {was_committed} that it did not finish: start "
            f"the query with that release until it has committed batch {was_committed}, and change to this one then"
        )


def refuse_a_later_history(index: Index, cuts: Iterable[Cut], committed: int, generation: int) -> None:
    """Refuses a log in which a later run has written, or cut, than `generation`, the newest that the checkpoint knows.

    The checkpoint, which ends at batch `committed`, was then restored from an older copy without its log. It would
    repeat the numbers of runs and versions: commits of the history that was given up could be taken for its own.
    """
    runs = [(cut.generation, f"was cut behind batch {cut.after} by run {cut.generation}") for cut in cuts]
    runs += [
        (meta.generation, f"has version {meta.version} of store {store} by run {meta.generation}")
        for store in index.stores()
        for meta in (entry.meta for entry in _newest_frames(index, store, committed))
    ]
    newest, what = max(runs, default=(0, ""))
    if newest > generation:
        raise UnsuitableCheckpoint(
            f"the log is ahead of the checkpoint: it {what}, but the checkpoint ends at batch {committed} and run "
            f"{generation}; restore both from one copy, or start a new checkpoint with a log of its own"
        )


def _newest_frames(index: Index, store: StoreId, committed: int) -> list[CommitEntry]:
    """Behind the committed version, and the newest: a later run begins there, but where a rollback came between."""
    return index.frames(store, committed + 2, ANY_VERSION) or index.newest(store, ANY_VERSION)


def refuse_later_batches(index: Index, checkpoint: str, committed: int, allows: Allows) -> None:
    """Refuses a log that has more batches than a crash after batch `committed` can leave, which no rollback took back.

    `allows` as in `make_plan`. Then the newest entries of Spark's logs are gone: somebody, or a power loss, has deleted
    them.
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
    """What to do where entries of Spark's logs were deleted, so that these end with `batch`."""
    if batch < 0:
        return "To begin anew, give the query a new checkpoint, with a log of its own"
    return f"To go back to batch {batch}, run `cec rollback {checkpoint.rstrip('/')} --to {batch}`"


def first_missed(index: Index, head: CommitEntry) -> int:
    """The lowest D of the attempts at the head's version, in its run: any of them may be loaded."""
    attempts = index.commits(head.meta.store, head.meta.version, head.meta.version)
    newest = attempts[-1].meta.generation  # the head may be its flush, written by a later run
    return min(completed(index, e).meta.dirty_from for e in attempts if e.meta.generation == newest)
