"""How far Spark has come, as the checkpoint's files tell it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from spark_cec.cli.place import OWN_DIRECTORY, Place, committed_batch
from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage
from spark_cec.recovery.report import ReplayProgress, read_progress


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest batch V that Spark has committed, -1 if there is none. `replay`: how far one is, if there is one."""

    batch: int
    replay: ReplayProgress | None = None

    @property
    def version(self) -> int | None:
        """The store version that batch V made, V + 1; None before the first commit."""
        return self.batch + 1 if self.batch >= 0 else None


def committed(place: Place) -> Committed | None:
    """The last committed batch, None where no checkpoint is known."""
    if place.checkpoint is None:
        return None
    runs = place.checkpoint.list(f"{OWN_DIRECTORY}/generations")
    newest = max((int(file.name.removesuffix(".json")) for file in runs), default=0)
    return Committed(committed_batch(place.checkpoint), read_progress(place.checkpoint, newest, OWN_DIRECTORY))


def all_stores(place: Place, known: Iterable[StoreId]) -> list[StoreId]:
    """The stores in the log, and those that must be there by Spark's operator metadata; sorted.

    A store of which not one frame is left is known from that metadata only. It counts partitions that an aggregation
    without keys, which has one, does not use: so beyond partition 0 it is believed where the log has another one.
    """
    stores = set(known)
    spread = {store.operator for store in stores if store.partition > 0}
    named = _stores_of_spark(place.checkpoint) if place.checkpoint is not None else ()
    return sorted(stores.union(store for store in named if store.partition == 0 or store.operator in spread))


def recoveries(place: Place) -> int:
    """How many recoveries have left a report."""
    if place.checkpoint is None:
        return 0
    return sum(file.name.endswith(".json") for file in place.checkpoint.list(f"{OWN_DIRECTORY}/recoveries"))


def _stores_of_spark(checkpoint: Storage) -> Iterator[StoreId]:
    for operator in count():
        path = f"state/{operator}/_metadata/metadata"
        if not checkpoint.exists(path):
            return
        yield from _stores_in(operator, checkpoint.read(path))


def _stores_in(operator: int, metadata: bytes) -> list[StoreId]:
    """The stores in a metadata file of Spark's version 1: a line with the version, then JSON. None of any other."""
    version, _, text = metadata.partition(b"\n")
    try:
        infos = json.loads(text)["stateStoreInfo"] if version == b"v1" else []
        sizes = [(str(info["storeName"]), int(info["numPartitions"])) for info in infos]
    except (ValueError, KeyError, TypeError):
        return []
    return [StoreId(operator, partition, name) for name, partitions in sizes for partition in range(partitions)]
