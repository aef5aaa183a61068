"""What Spark's own files in a checkpoint say: V, the stores there must be, and the ids of the state that V left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count

from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage

Partition = tuple[int, int]
"""An operator and one of its partitions."""

STORES_OF_A_JOIN = (
    *("left-keyToNumValues", "left-keyWithIndexToValue"),
    *("right-keyToNumValues", "right-keyWithIndexToValue"),
)
"""The names of the four stores that each partition of a join has, as Spark orders them; others have one."""


def committed_batch(checkpoint: Storage) -> int:
    """V, the newest batch that Spark does not run again, -1 if there is none; the shim's `SparkLogs` has the same rule.

    The commits are read first: where the query goes on meanwhile, and has planned a newer batch by then, the batch
    before that one is committed.
    """
    committed = _batches(checkpoint, "commits")
    return batch_not_run_again(planned_batches(checkpoint), committed)


def batch_not_run_again(planned: Iterable[int], committed: Iterable[int]) -> int:
    """V, as Spark has it at a start, of the batches in the offset log and in the commit log, -1 if there is none.

    It is the newest one planned if that is the newest commit too, else the one before it, whatever other commits there
    are.
    """
    newest = max(planned, default=-1)
    return newest if newest == max(committed, default=-1) else max(newest - 1, -1)


def committed_ids(checkpoint: Storage, batch: int) -> dict[Partition, tuple[str, ...]]:
    """The checkpoint ids, as hex digits, by which Spark names the state that `batch` left: of a partition's stores, in
    the order of `STORES_OF_A_JOIN` where it has several.

    Empty in checkpoint format 1, and where the entry is gone.
    """
    try:
        text = checkpoint.read(f"commits/{batch}").decode(errors="replace").partition("\n")[2]
        named = json.loads(text).get("stateUniqueIds") or {}
        return {
            (int(operator), partition): tuple(str(each) for each in ids)
            for operator, partitions in named.items()
            for partition, ids in enumerate(partitions)
        }
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def all_stores(checkpoint: Storage | None, known: Iterable[StoreId]) -> list[StoreId]:
    """The stores in the log, and those that must be there by Spark's operator metadata; sorted.

    A store of which not one frame is left is known from that metadata only. It counts partitions that an aggregation
    without keys, which has one, does not use: so beyond partition 0 it is believed where the log has another one.
    """
    stores = set(known)
    spread = {store.operator for store in stores if store.partition > 0}
    named = named_stores(checkpoint) if checkpoint is not None else ()
    return sorted(stores.union(store for store in named if store.partition == 0 or store.operator in spread))


def planned_batches(checkpoint: Storage) -> list[int]:
    """The batches that Spark's offset log has, in any order."""
    return _batches(checkpoint, "offsets")


def has_state(checkpoint: Storage) -> bool:
    """Whether Spark has noted a stateful operator of the query, or, before 3.5, a store has files there."""
    return any(operator_files(checkpoint)) or bool(checkpoint.list("state/0/0"))


def recorded_conf(checkpoint: Storage) -> dict[str, str]:
    """The settings that Spark has recorded with the newest batch that it has planned, if it has."""
    newest = max(planned_batches(checkpoint), default=-1)
    try:
        text = checkpoint.read(f"offsets/{newest}").decode(errors="replace").split("\n")[1]
        conf = json.loads(text).get("conf") or {}
        return {str(key): str(value) for key, value in conf.items()}
    except (FileNotFoundError, IndexError, ValueError, AttributeError):
        return {}


def operator_files(checkpoint: Storage) -> Iterator[str]:
    """What Spark has noted of a query's operators and of the schemas of their state, first to last."""
    for operator in count():
        of_operator = f"state/{operator}/_metadata"
        found = [*_files(checkpoint, of_operator), *_files(checkpoint, f"{of_operator}/v2")]
        if not found:
            return
        yield from found
        for store in ("", *(f"/{name}" for name in STORES_OF_A_JOIN)):
            yield from _files(checkpoint, f"state/{operator}/0{store}/_metadata")


def source_files(checkpoint: Storage, sources: int) -> Iterator[str]:
    """What each of so many sources has noted for itself: where it began, which files it has read in which batch."""
    for source in range(sources):
        yield from _files(checkpoint, f"sources/{source}")


def _files(checkpoint: Storage, directory: str) -> list[str]:
    """Those in a directory, without what Hadoop keeps beside them, and can do without."""
    return [f"{directory}/{each.name}" for each in checkpoint.list(directory) if not each.name.startswith(".")]


def _batches(checkpoint: Storage, log: str) -> list[int]:
    names = [file.name for file in checkpoint.list(log)]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def named_stores(checkpoint: Storage) -> Iterator[StoreId]:
    """The stores that there are by Spark's operator metadata, and perhaps more than there are: see `all_stores`."""
    for operator in count():
        path = f"state/{operator}/_metadata/metadata"
        if not checkpoint.exists(path):
            return
        yield from _stores_in(operator, checkpoint.read(path))


def partitions_without(checkpoint: Storage, version: int) -> list[StoreId]:
    """The stores of Spark's own providers that have other versions, and no file of this one, by their names."""
    missing = []
    for store in named_stores(checkpoint):
        name = "" if store.name == "default" else f"/{store.name}"
        files = [each.name for each in checkpoint.list(f"state/{store.operator}/{store.partition}{name}")]
        of_versions = [each for each in files if each[:1].isdigit()]
        if of_versions and not any(each.startswith((f"{version}.", f"{version}_")) for each in of_versions):
            missing.append(store)
    return missing


def _stores_in(operator: int, metadata: bytes) -> list[StoreId]:
    """The stores in a metadata file of Spark's version 1: a line with the version, then JSON. None of any other."""
    version, _, text = metadata.partition(b"\n")
    try:
        infos = json.loads(text)["stateStoreInfo"] if version == b"v1" else []
        sizes = [(str(info["storeName"]), int(info["numPartitions"])) for info in infos]
    except (ValueError, KeyError, TypeError):
        return []
    return [StoreId(operator, partition, name) for name, partitions in sizes for partition in range(partitions)]
