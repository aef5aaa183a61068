"""Falling back: a lost frame costs a longer replay, and not the state (docs/recovery.md, A lost frame).

Where the eventual checkpoint of the committed version V+1 cannot be rebuilt, the query begins from an older version w:
the newest at which the log still gives every store, as far back as Spark's offset log has the batches that follow.

1. Every store loads EC(w), and batches D(w)...w-1 are replayed under the hold rule, as after a crash at w.
2. Batches w...V are run as they were run first: nothing is held, windows open and close, nothing is written.
3. The digest must be that of the footer of V+1, if that is left. Then every store writes its commit of that version
   anew, with all its windows and the same checkpoint id, so that nothing rests on the lost frame any more.

Batches w...V are not patched into what is left of EC(V+1): which windows the lost frame opened, checked or closed is
not known, and a window that it closed would live on (`tests/recovery/test_fallback_model.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_cec.checkpoint.eventual import chain_of, head_at, rebuild
from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.reader import read_frame
from spark_cec.log.storage import Storage
from spark_cec.recovery.plan import Allows, first_missed
from spark_cec.recovery.query_files import FALLBACK, Fallback


@dataclass(frozen=True, slots=True)
class Loss:
    """A store cannot be rebuilt at some version, because the frame of `version` (that one, or an older one) is lost."""

    store: StoreId
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A store can be rebuilt at the version of `head`; batches from `dirty_from` on must be replayed."""

    head: CommitEntry | None
    dirty_from: int


Look: TypeAlias = "Callable[[StoreId, int], Whole | Loss]"
"""Whether a store can be rebuilt at a version."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where a query can begin from: version w, replaying from batch `replay_from` on. `losses`: why not from V+1."""

    version: int
    replay_from: int
    heads: tuple[CommitEntry, ...]
    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class NoBase:
    """No version is whole and within reach: the nearest would need batches from `needs_batch` on.

    `carried`: the version with which the log begins, if the state came from another checkpoint.
    """

    needs_batch: int
    oldest_batch: int
    losses: tuple[Loss, ...]
    carried: int = 0


def newest_base(
    stores: Sequence[StoreId], committed_batch: int, oldest_batch: int, look: Look, carried: int = 0
) -> Base | NoBase:
    """The newest version not above V+1 at which all stores are whole, if Spark still has the batches that it needs.

    `oldest_batch` is the oldest one in Spark's offset log, which must have the batch before the first that is replayed:
    that is where its input begins. Older versions never need fewer batches, so the first that is whole decides. There
    is none before version `carried`: batches from before the state was carried here ran with another number of
    partitions, or another provider.
    """
    version, losses = committed_batch + 1, list[Loss]()
    while version > 0 and version >= carried:
        found = [look(store, version) for store in stores]
        lost = [each for each in found if isinstance(each, Loss)]
        if not lost:
            whole = [each for each in found if isinstance(each, Whole)]
            replay_from = min((each.dirty_from for each in whole), default=version)
            heads = tuple(each.head for each in whole if each.head is not None)
            if max(replay_from - 1, 0) < oldest_batch:
                return NoBase(replay_from, oldest_batch, tuple(losses))
            return Base(version, replay_from, heads, tuple(losses))
        losses += lost
        version = min(loss.version for loss in lost) - 1
    if oldest_batch > 0 or carried > 0:
        return NoBase(0, oldest_batch, tuple(losses), carried)
    return Base(0, 0, (), tuple(losses))


def looking_at(storage: Storage, index: Index, allows: Allows) -> Look:
    """A `Look` that reads every frame that an eventual checkpoint needs; `allows`: which attempts may be committed."""

    def look(store: StoreId, version: int) -> Whole | Loss:
        try:
            head = head_at(index, store, version, allows=allows)
        except DamagedLog as error:
            return Loss(store, version, error.reason)
        loss = _lost_frame(storage, index, head)
        if loss is not None:
            return loss
        try:
            rebuild(storage, index, head)
        except DamagedLog as error:  # all frames are there, and yet not every window: the newest is as good as lost
            return Loss(store, version, error.reason)
        return Whole(head, first_missed(index, head))

    return look


def _lost_frame(storage: Storage, index: Index, head: CommitEntry) -> Loss | None:
    """The newest frame of the head's chain that is not there or cannot be read."""
    meta, missing = head.meta, _missing_link(index, head)
    for entry in chain_of(index, head, missing.version + 1 if missing else None):
        try:
            if entry.meta.records:
                read_frame(storage, entry.location)
        except DamagedLog as error:
            return Loss(meta.store, entry.meta.version, str(error))
    return missing


def _missing_link(index: Index, head: CommitEntry) -> Loss | None:
    """The newest version of the head's chain that has no frame."""
    whole, missing = head.meta.version, None
    least = max(head.meta.oldest_footprint, 1)
    while missing is None or whole - missing.version > 1:
        version = least if missing is None else (whole + missing.version) // 2
        try:
            chain_of(index, head, version)
        except DamagedLog as error:
            missing = Loss(head.meta.store, version, error.reason)
        else:
            if missing is None:
                return None
            whole = version
    return missing


def pending_fallback(
    own: Storage, index: Index, stores: Sequence[StoreId], committed_batch: int
) -> Fallback | None:
    """The fallback that a start must begin with, or None; one that is done is removed.

    It is done when every store has been written whole at V+1 by a later run; until then, however a start ended, the
    next one does it again from w. Raises `UnsuitableCheckpoint` where Spark's commit log does not end where it did.
    """
    fallback = FALLBACK.read(own)
    if fallback is None:
        return None
    if is_done(index, stores, fallback) or committed_batch > fallback.committed_batch:
        FALLBACK.delete(own)
        return None
    if committed_batch < fallback.committed_batch:
        raise UnsuitableCheckpoint(
            f"cec/{FALLBACK.name} is for a checkpoint that ends at batch {fallback.committed_batch}, and this one ends "
            f"at {committed_batch}: it was restored from a copy; delete cec/{FALLBACK.name} and run `cec repair` again"
        )
    return fallback


def is_done(index: Index, stores: Sequence[StoreId], fallback: Fallback) -> bool:
    """Whether every store was written whole at V+1 by a run after the one that had been damaged.

    `stores`: all that there must be, and not those alone of which something is left.
    """
    version = fallback.committed_batch + 1
    return all(
        any(
            entry.meta.generation > fallback.generation
            and entry.meta.oldest_footprint == version
            and not entry.meta.dirty_windows
            for entry in index.frames(store, version, version)
        )
        for store in stores
    )


@dataclass(frozen=True, slots=True)
class FallbackCost:
    """What falling back takes: batches replayed, and the input tuples that their footers count, all stores together.

    `lost_footers`: commits among them whose footers are lost, and their tuples not counted.
    """

    batches: int
    inputs: int
    lost_footers: int = 0


def cost_of(index: Index, base: Base, committed_batch: int) -> FallbackCost:
    """What it takes to begin from `base`."""
    inputs = lost = 0
    batches = committed_batch + 1 - base.replay_from
    for store in index.stores():
        last = {e.meta.version: e.meta for e in index.commits(store, base.replay_from + 1, committed_batch + 1)}
        inputs += sum(meta.inputs for meta in last.values())
        lost += batches - len(last)
    return FallbackCost(batches, inputs, lost)
