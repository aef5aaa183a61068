"""Reads Spark's own files in a checkpoint: V, the stores that must exist, and the checkpoint ids of V's state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count

from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage

Partition = tuple[int, int]
"""An operator and one of its partitions."""

_VERSION = re.compile(r"([0-9]+)[._]")
"""A file of a store's version, such as `12.delta` or `12_<id>.zip`."""

STORES_OF_A_JOIN = (
    *("left-keyToNumValues", "left-keyWithIndexToValue"),
    *("right-keyToNumValues", "right-keyWithIndexToValue"),
)
"""The names of the four stores of a join's partition, in Spark's order. Other operators have one store."""


def committed_batch(checkpoint: Storage) -> int:
    """V, the newest batch that Spark does not run again, -1 if there is none; the shim's `SparkLogs` has the same rule.

    Reads the commits first. If the query plans a newer batch meanwhile, the batch before that one is committed.
    """
    return batch_not_run_again(*list_logs(checkpoint))


def list_logs(checkpoint: Storage) -> tuple[list[int], list[int]]:
    """The batches in Spark's offset log, and those in its commit log, in any order.

    Reads the commits first: a query that runs plans a batch before it commits it.
    """
    committed = _list_batches(checkpoint, "commits")
    return planned_batches(checkpoint), committed


def find_strays(planned: Iterable[int], committed: Iterable[int]) -> list[int]:
    """The commits of batches behind the newest planned one, ascending. Spark itself leaves none.

    A run that has lost its lease may write one, if its request was under way; or entries of the offset log are gone.
    """
    newest = max(planned, default=-1)
    return sorted(each for each in committed if each > newest)


def batch_before_strays(planned: Iterable[int], committed: Iterable[int]) -> int:
    """V as it would be without stray commits; -1 if there is none."""
    known = list(planned)
    newest = max(known, default=-1)
    return batch_not_run_again(known, [each for each in committed if each <= newest])


def batch_not_run_again(planned: Iterable[int], committed: Iterable[int]) -> int:
    """V, as Spark computes it at a start from the batches in its offset log and commit log; -1 if there is none.

    If the newest planned batch is the newest commit, V is that batch. Else V is the batch before it, whatever other
    commits exist.
    """
    newest = max(planned, default=-1)
    return newest if newest == max(committed, default=-1) else max(newest - 1, -1)


def committed_ids(checkpoint: Storage, batch: int) -> dict[Partition, tuple[str, ...]]:
    """The checkpoint ids, in hex digits, that Spark records for the state after `batch`, by partition.

    A join's partition has several ids, in the order of `STORES_OF_A_JOIN`. Empty in checkpoint format 1, or if the
    entry is gone.
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


def all_stores(checkpoint: Storage | None, known: Iterable[StoreId], *, is_ours: bool) -> list[StoreId]:
    """The stores that the log must have: those `known` to it and those in Spark's operator metadata, sorted.

    None, unless the query's state `is_ours`: Spark names the stores of any provider in its metadata.
    If a store has lost all its frames, only the metadata knows it. The metadata also counts partitions that an
    aggregation without keys does not use; such an aggregation has one partition. So beyond partition 0 a store of the
    metadata counts only if the log has another such partition.
    """
    if not is_ours:
        return []
    stores = set(known)
    spread = {store.operator for store in stores if store.partition > 0}
    named = named_stores(checkpoint) if checkpoint is not None else ()
    return sorted(stores.union(store for store in named if store.partition == 0 or store.operator in spread))


def planned_batches(checkpoint: Storage) -> list[int]:
    """The batches in Spark's offset log, in any order."""
    return _list_batches(checkpoint, "offsets")


def has_state(checkpoint: Storage) -> bool:
    """Whether Spark has recorded a stateful operator. Before Spark 3.5, whether a store has files."""
    return any(operator_files(checkpoint)) or bool(checkpoint.list("state/0/0"))


def recorded_conf(checkpoint: Storage) -> dict[str, str]:
    """The settings that Spark recorded with its newest planned batch; empty if there is none."""
    newest = max(planned_batches(checkpoint), default=-1)
    try:
        text = checkpoint.read(f"offsets/{newest}").decode(errors="replace").split("\n")[1]
        conf = json.loads(text).get("conf") or {}
        return {str(key): str(value) for key, value in conf.items()}
    except (FileNotFoundError, IndexError, ValueError, AttributeError):
        return {}


def operator_files(checkpoint: Storage) -> Iterator[str]:
    """Spark's files on the query's operators and their state schemas, first to last."""
    for operator in count():
        of_operator = f"state/{operator}/_metadata"
        found = [*_list_files(checkpoint, of_operator), *_list_files(checkpoint, f"{of_operator}/v2")]
        if not found:
            return
        yield from found
        for store in ("", *(f"/{name}" for name in STORES_OF_A_JOIN)):
            yield from _list_files(checkpoint, f"state/{operator}/0{store}/_metadata")


def source_files(checkpoint: Storage, sources: int) -> Iterator[str]:
    """The files of the first `sources` sources: where each began, and which files it read in which batch."""
    for source in range(sources):
        yield from _list_files(checkpoint, f"sources/{source}")


def _read_operators(checkpoint: Storage) -> Iterator[tuple[int, list[StoreId]]]:
    """The operators in Spark's metadata, each with its stores."""
    for operator in count():
        found = _read_metadata(checkpoint, operator)
        if found is None:
            return
        yield operator, _parse_stores(operator, *found)


def _read_metadata(checkpoint: Storage, operator: int) -> tuple[bytes, bytes] | None:
    """Spark's metadata of an operator, and the version that it must have; None without it.

    `transformWithState` has that of version 2, in several files, of which the newest counts.
    """
    place = f"state/{operator}/_metadata"
    try:
        return checkpoint.read(f"{place}/metadata"), b"v1"
    except FileNotFoundError:
        batches = _list_batches(checkpoint, f"{place}/v2")
        return (checkpoint.read(f"{place}/v2/{max(batches)}"), b"v2") if batches else None


def _list_files(checkpoint: Storage, directory: str) -> list[str]:
    """The files of a directory, without Hadoop's checksums, which Hadoop can do without."""
    return [f"{directory}/{each.name}" for each in checkpoint.list(directory) if not each.name.startswith(".")]


def _list_batches(checkpoint: Storage, log: str) -> list[int]:
    names = [file.name for file in checkpoint.list(log)]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def named_stores(checkpoint: Storage) -> Iterator[StoreId]:
    """The stores in Spark's operator metadata, which may list too many: see `all_stores`."""
    for _, stores in _read_operators(checkpoint):
        yield from stores


def files_of_later_batches(checkpoint: Storage, batch: int) -> list[str]:
    """The files of Spark's own stores that batches after `batch` have left, by their names.

    A store that goes back would write its changes anew, but not its snapshots, and later read those of the old history.
    The metadata of `transformWithState` have the number of a batch, and would not be written anew either.
    """
    later = []
    for operator, stores in _read_operators(checkpoint):
        for directory in map(_directory_of, stores):
            versions = [(each.name, _VERSION.match(each.name)) for each in checkpoint.list(directory)]
            later += [f"{directory}/{name}" for name, found in versions if found and int(found[1]) > batch + 1]
        of_batches = f"state/{operator}/_metadata/v2"
        later += [f"{of_batches}/{each}" for each in _list_batches(checkpoint, of_batches) if each > batch]
    return later


def stores_without_version(checkpoint: Storage, version: int) -> list[StoreId]:
    """The stores of Spark's own providers that have files of other versions but none of `version`, by file name."""
    missing = []
    for store in named_stores(checkpoint):
        files = [each.name for each in checkpoint.list(_directory_of(store))]
        of_versions = [each for each in files if each[:1].isdigit()]
        if of_versions and not any(each.startswith((f"{version}.", f"{version}_")) for each in of_versions):
            missing.append(store)
    return missing


def _directory_of(store: StoreId) -> str:
    """Where Spark's own providers keep a store."""
    return f"state/{store.operator}/{store.partition}" + ("" if store.name == "default" else f"/{store.name}")


def _parse_stores(operator: int, metadata: bytes, wanted: bytes) -> list[StoreId]:
    """The stores in Spark's metadata of an operator: a version line, then JSON. Empty for another version."""
    version, _, text = metadata.partition(b"\n")
    try:
        infos = json.loads(text)["stateStoreInfo"] if version == wanted else []
        sizes = [(str(info["storeName"]), int(info["numPartitions"])) for info in infos]
    except (ValueError, KeyError, TypeError):
        return []
    return [StoreId(operator, partition, name) for name, partitions in sizes for partition in range(partitions)]
