"""Falls back to an older version if a frame is lost: the replay is longer, but the state survives.

See docs/recovery.md, A lost frame. If the log cannot rebuild the eventual checkpoint of the committed version V+1, the
query begins from an older version w. w is the newest version at which every store is whole and whose later batches
Spark's offset log still has.

1. Every store loads EC(w). The query replays batches D(w)...w-1 under the hold rule, as after a crash at w.
2. The query runs batches w...V as it first ran them: it holds no change, opens and closes windows, and writes nothing.
3. The digest must equal the digest in the footer of V+1, if the log still has that footer. Then every store writes
   version V+1 again, with all windows and the same checkpoint id. After that no version depends on the lost frame.

Batches w...V do not patch the remains of EC(V+1). Nobody knows which windows the lost frame opened, checked or closed,
so a closed window would live on (`tests/recovery/test_fallback_model.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_cec.checkpoint.eventual import chain_of, head_at, rebuild
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.reader import read_frame
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import Allows
from spark_cec.recovery.facts import first_missed


@dataclass(frozen=True, slots=True)
class Loss:
    """The log cannot rebuild a store at some version: the frame of `version`, that one or an older one, is lost."""

    store: StoreId
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class WholeStore:
    """The log can rebuild a store at the version of `head`; a replay must begin at batch `dirty_from`."""

    head: CommitEntry | None
    dirty_from: int


StoreProbe: TypeAlias = "Callable[[StoreId, int], WholeStore | Loss]"
"""Tells whether the log can rebuild a store at a version."""


@dataclass(frozen=True, slots=True)
class Base:
    """Version w, from which a query can begin, and the first batch to replay. `losses` rule out the newer versions."""

    version: int
    replay_from: int
    heads: tuple[CommitEntry, ...]
    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class NoBase:
    """Every version that is within reach has a loss; the nearest whole version needs batches from `needs_batch` on.

    `oldest_batch` is the oldest batch in Spark's offset log. `carried` is the first version of the log, if the state
    came from another checkpoint, else 0.
    """

    needs_batch: int
    oldest_batch: int
    losses: tuple[Loss, ...]
    carried: int = 0


def find_base(
    stores: Sequence[StoreId], committed_batch: int, oldest_batch: int, probe: StoreProbe, carried: int = 0
) -> Base | NoBase:
    """Finds the newest version, at most V+1, at which all stores are whole and whose replay Spark's offset log covers.

    `oldest_batch` is the oldest batch in Spark's offset log. The offset log must have the batch before the first
    replayed one, because the input begins at its end. An older version needs at least as many batches, so the first
    whole version decides. No base lies before version `carried`: the batches before it ran with another number of
    partitions or another provider.
    """
    version, losses = committed_batch + 1, list[Loss]()
    while version > 0 and version >= carried:
        found = [probe(store, version) for store in stores]
        lost = [each for each in found if isinstance(each, Loss)]
        if not lost:
            whole = [each for each in found if isinstance(each, WholeStore)]
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


def make_probe(storage: Storage, index: Index, allows: Allows) -> StoreProbe:
    """Makes a probe that reads every frame of an eventual checkpoint.

    `allows` tells which attempts may be the committed ones.
    """

    def probe(store: StoreId, version: int) -> WholeStore | Loss:
        try:
            head = head_at(index, store, version, allows=allows)
        except DamagedLog as error:
            return Loss(store, version, error.reason)
        loss = _find_lost_frame(storage, index, head)
        if loss is not None:
            return loss
        try:
            rebuild(storage, index, head)
        except DamagedLog as error:  # All frames are there, but a window is missing: treat the newest frame as lost.
            return Loss(store, version, error.reason)
        return WholeStore(head, first_missed(index, head))

    return probe


def _find_lost_frame(storage: Storage, index: Index, head: CommitEntry) -> Loss | None:
    """The newest frame of the head's chain that is missing or unreadable."""
    meta, missing = head.meta, _find_missing_frame(index, head)
    for entry in chain_of(index, head, missing.version + 1 if missing else None):
        try:
            if entry.meta.records:
                read_frame(storage, entry.location)
        except DamagedLog as error:
            return Loss(meta.store, entry.meta.version, str(error))
    return missing


def _find_missing_frame(index: Index, head: CommitEntry) -> Loss | None:
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


@dataclass(frozen=True, slots=True)
class FallbackCost:
    """The cost of a fallback: batches to replay, and input tuples by their footers, summed over all stores.

    `lost_footers` counts the commits whose footer is lost; their tuples are not counted.
    """

    batches: int
    inputs: int
    lost_footers: int = 0


def estimate_cost(index: Index, stores: Sequence[StoreId], base: Base, committed_batch: int) -> FallbackCost:
    """The cost of a start from `base`. `stores`: those that the log must have."""
    inputs = lost = 0
    batches = committed_batch + 1 - base.replay_from
    for store in stores:
        last = {e.meta.version: e.meta for e in index.commits(store, base.replay_from + 1, committed_batch + 1)}
        inputs += sum(meta.inputs for meta in last.values())
        lost += batches - len(last)
    return FallbackCost(batches, inputs, lost)
