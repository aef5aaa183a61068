"""How far Spark has come, as the checkpoint's files tell it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from spark_cec.cli.place import OWN_DIRECTORY, Place, spark_commits
from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage
from spark_cec.recovery.plan import REPLAY_FILE, Recording


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest batch V that counts, -1 if there is none. `replayed_from`: the first batch of a replay under way."""

    batch: int
    replayed_from: int | None = None

    @property
    def version(self) -> int | None:
        """The store version that batch V made, V + 1; None before the first commit."""
        return self.batch + 1 if self.batch >= 0 else None


def committed(place: Place) -> Committed | None:
    """The last committed batch, None where no checkpoint is known.

    During a replay Spark's commit log is cut back: V is then the recorded one (design, section 6, step 2).
    Errors: `UnsuitableCheckpoint` if `replay.json` cannot be read.
    """
    if place.checkpoint is None:
        return None
    last = spark_commits(place.checkpoint)
    recording = _recording(place.checkpoint)
    if recording is not None and recording.rewound_to <= last < recording.committed_batch:
        return Committed(recording.committed_batch, recording.rewound_to + 1)
    return Committed(last)


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


def _recording(checkpoint: Storage) -> Recording | None:
    path = f"{OWN_DIRECTORY}/{REPLAY_FILE}"
    try:
        text = checkpoint.read(path)
    except FileNotFoundError:
        return None
    return Recording.from_json(text.decode(errors="replace"))
