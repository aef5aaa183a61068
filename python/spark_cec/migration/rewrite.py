"""Rewrites state: Spark's own reader reads each store, and the target's provider writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.recovery.decide import STATE_IDS
from spark_cec.recovery.spark_logs import STORES_OF_A_JOIN

FORMAT_WITHOUT_IDS, FORMAT_WITH_IDS = 1, 2
"""Spark's checkpoint formats (`STATE_IDS`)."""

_UNPARTITIONED_KEY_COLUMNS = {
    ("stateStoreSave", "default"): 0,
    ("dedupe", "default"): 0,
    ("dedupeWithinWatermark", "default"): 0,
    ("flatMapGroupsWithState", "default"): 0,
    ("applyInPandasWithState", "default"): 0,
    ("sessionWindowStateStoreSaveExec", "default"): 1,
    ("symmetricHashJoin", "left-keyToNumValues"): 0,
    ("symmetricHashJoin", "right-keyToNumValues"): 0,
    ("symmetricHashJoin", "left-keyWithIndexToValue"): 1,
    ("symmetricHashJoin", "right-keyWithIndexToValue"): 1,
}
"""The stores that Spark's reader shows completely, and that a query finds again: the operator's kind and the store. The
number counts the columns at the end of the key that do not decide a row's partition.
"""

_DESCRIPTIONS = {
    "stateStoreSave": "aggregation",
    "dedupe": "deduplication",
    "dedupeWithinWatermark": "deduplication within watermark",
    "sessionWindowStateStoreSaveExec": "aggregation",
    "symmetricHashJoin": "stream-stream join",
}

_PLACES = {name: place for place, name in enumerate(STORES_OF_A_JOIN)}

_PREFIX = "_numColsPrefixKey"


@dataclass(frozen=True, slots=True)
class Store:
    """One store of one operator, over all partitions, from Spark's metadata.

    `kind`: the operator's name there. `prefix_columns`: the key's columns for prefix scans.
    """

    operator: int
    kind: str
    name: str
    prefix_columns: int

    @property
    def description(self) -> str:
        """The operator as `cec inspect` calls it."""
        return _DESCRIPTIONS.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state of a checkpoint: the checkpoint's URL in Spark's form, its checkpoint format, and its partitions."""

    url: str
    format: int
    partitions: int


@dataclass(frozen=True, slots=True)
class StoreSums:
    """A store's rows, and the sum of their hashes, which does not depend on their order."""

    store: Store
    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Written:
    """A store of the target: its sums, and the checkpoint id of each partition, None without ids.

    `misplaced`: if rows have new partitions, those that were in another one before than the hash of their key says.
    """

    sums: StoreSums
    ids: tuple[str | None, ...]
    misplaced: int


class StateRewriter:
    """Rewrites the state after `batch` from the checkpoint `source` to `target`.

    Spark's offset log does not record the checkpoint format, and its reader takes that of the session.
    """

    def __init__(self, spark: SparkSession, source: StateAt, target: StateAt, batch: int) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._batch = batch
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        self._migration = jvm.org.apache.spark.sql.cec.migration.StateMigration

    def stores(self) -> list[Store]:
        """The stores of the source, in Spark's order."""
        found = self._spark.read.format("state-metadata").load(self._source.url)
        stores = [
            Store(int(row.operatorId), str(row.operatorName), str(row.stateStoreName), int(row[_PREFIX]))
            for row in found.select("operatorId", "operatorName", "stateStoreName", _PREFIX).distinct().collect()
        ]
        return sorted(stores, key=lambda store: (store.operator, _PLACES.get(store.name, 0)))

    def has_keys(self, store: Store) -> bool:
        """Whether the store's rows have key columns to partition by."""
        with self._read_state(self._source, store) as state:
            key = state.schema["key"].dataType
        return isinstance(key, StructType) and bool(key.fields)

    def write(self, store: Store, conf: Mapping[str, str]) -> Written:
        """Writes a store of the target, and moves its rows if the target has another number of partitions."""
        before, after = self._source.partitions, self._target.partitions
        with self._read_state(self._source, store) as state:
            portions = self._migration.write(
                (state if before == after else _repartition(state, store, after))._jdf,
                self._target.url,
                {**conf, STATE_IDS: str(self._target.format)},
                store.operator,
                store.name,
                store.prefix_columns,
                self._batch,
                _count_placing_columns(state, store),
                0 if before == after else before,
            )
        rows, digest = sum(int(each.rows()) for each in portions), sum(int(each.digest()) for each in portions)
        return Written(
            StoreSums(store, rows, _to_signed(digest)),
            tuple(each.checkpointId() for each in portions),
            sum(int(each.misplaced()) for each in portions),
        )

    def read_back(self, store: Store) -> StoreSums:
        """The sums of a store of the target."""
        with self._read_state(self._target, store) as state:
            portion = self._migration.sums(state._jdf)
        return StoreSums(store, int(portion.rows()), int(portion.digest()))

    @contextmanager
    def _read_state(self, checkpoint: StateAt, store: Store) -> Iterator[DataFrame]:
        """The rows of a store. Meanwhile the session has the checkpoint's format."""
        before = self._spark.conf.get(STATE_IDS, None)
        self._spark.conf.set(STATE_IDS, str(checkpoint.format))
        try:
            reader = self._spark.read.format("statestore")
            reader = reader.options(batchId=self._batch, operatorId=store.operator, storeName=store.name)
            yield reader.load(checkpoint.url)
        finally:
            if before is None:
                self._spark.conf.unset(STATE_IDS)
            else:
                self._spark.conf.set(STATE_IDS, before)


def refuse_unknown_stores(stores: Iterable[Store]) -> None:
    """Raises `UnsuitableCheckpoint` for a store that Spark's reader may show in part, or whose partitioning is unknown.

    For some stores (a join with column families) it shows a part, and a read of the copy shows the same part.
    """
    for store in stores:
        if (store.kind, store.name) not in _UNPARTITIONED_KEY_COLUMNS:
            raise UnsuitableCheckpoint(
                f"operator {store.operator} is {store.kind} with a store {store.name}: that such a state is carried "
                f"whole is not known, so it stays where it is. Let the query run on as it is, or begin a new checkpoint"
            )


def collect_ids(written: Iterable[Written]) -> dict[str, Any] | None:
    """The checkpoint ids by operator, partition and store, as in Spark's commit log; None if the state has none."""
    found: dict[str, Any] = {}
    for store in written:
        if None in store.ids:
            return None
        partitions = found.setdefault(str(store.sums.store.operator), [[] for _ in store.ids])
        for partition, each in enumerate(store.ids):
            partitions[partition].append(each)
    return found


def _repartition(state: DataFrame, store: Store, partitions: int) -> DataFrame:
    """Moves each row to the partition where the query will look for it."""
    schema = _key_schema(state)
    placing = _count_placing_columns(state, store)
    if not placing:
        return state.coalesce(1)  # without a grouping key all rows are in partition 0
    # Use positions: Spark gives several unnamed grouping expressions one name.
    renamed = StructType([StructField(f"k{place}", field.dataType) for place, field in enumerate(schema.fields)])
    key = state["key"].cast(renamed)
    return state.repartition(partitions, *(key[f"k{place}"] for place in range(placing)))


def _count_placing_columns(state: DataFrame, store: Store) -> int:
    """The key's first columns, whose hash decides a row's partition."""
    return len(_key_schema(state).fields) - _UNPARTITIONED_KEY_COLUMNS[store.kind, store.name]


def _key_schema(state: DataFrame) -> StructType:
    schema = state.schema["key"].dataType
    assert isinstance(schema, StructType)
    return schema


def _to_signed(number: int) -> int:
    """Wraps the sum modulo 2^64, as the JVM does."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
