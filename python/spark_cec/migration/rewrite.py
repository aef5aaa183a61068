"""Rewriting state: each store of one checkpoint is read by Spark's own reader, and written as one of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.recovery.spark_logs import STORES_OF_A_JOIN

_KEY_IS_PARTITIONED_BUT_FOR = {
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
"""The stores that are known to be read whole, and to be written as a query finds them again: the operator's kind, the
store, and how many columns at the end of its key have no part in how its rows are spread over partitions."""


_PLACES = {name: place for place, name in enumerate(STORES_OF_A_JOIN)}

_PREFIX = "_numColsPrefixKey"


@dataclass(frozen=True, slots=True)
class Store:
    """One store of one operator, over all partitions, as Spark's metadata has it.

    `prefix_columns`: columns of the key that scans are for.
    """

    operator: int
    kind: str
    name: str
    prefix_columns: int


@dataclass(frozen=True, slots=True)
class StoreSums:
    """A store's rows, and the sum of their hashes, whatever their order."""

    store: Store
    rows: int
    digest: int


class Rewriting:
    """From the checkpoint `source` to `target`, both as Spark resolves them, of the state that `batch` left."""

    def __init__(self, spark: SparkSession, source: str, target: str, batch: int) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._batch = batch
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        self._carrier = jvm.org.apache.spark.sql.cec.migration.StateMigration

    def stores(self) -> list[Store]:
        """The stores of the source, as Spark orders them."""
        found = self._spark.read.format("state-metadata").load(self._source)
        stores = [
            Store(int(row.operatorId), str(row.operatorName), str(row.stateStoreName), int(row[_PREFIX]))
            for row in found.select("operatorId", "operatorName", "stateStoreName", _PREFIX).distinct().collect()
        ]
        return sorted(stores, key=lambda store: (store.operator, _PLACES.get(store.name, 0)))

    def has_keys(self, store: Store) -> bool:
        """Whether the rows of a store have something to be spread by."""
        key = self._state(self._source, store).schema["key"].dataType
        return isinstance(key, StructType) and bool(key.fields)

    def write(
        self, store: Store, conf: Mapping[str, str], partitions: int | None
    ) -> tuple[StoreSums, list[str | None]]:
        """Makes a store of the target; answers what was written, and the id of each partition's state."""
        state = self._state(self._source, store)
        if partitions is not None:
            state = _spread(state, store, partitions)
        portions = self._carrier.write(
            state._jdf,
            self._target,
            dict(conf),
            store.operator,
            store.name,
            store.prefix_columns,
            self._batch,
            partitions is not None,
        )
        rows = sum(int(each.rows()) for each in portions)
        return StoreSums(store, rows, _signed(sum(int(each.digest()) for each in portions))), [
            each.checkpointId() for each in portions
        ]

    def read_back(self, store: Store) -> StoreSums:
        """What the target has of a store."""
        portion = self._carrier.sums(self._state(self._target, store)._jdf)
        return StoreSums(store, int(portion.rows()), int(portion.digest()))

    def _state(self, checkpoint: str, store: Store) -> DataFrame:
        reader = self._spark.read.format("statestore")
        return reader.options(batchId=self._batch, operatorId=store.operator, storeName=store.name).load(checkpoint)


def refuse_what_is_not_known(stores: Iterable[Store]) -> None:
    """`UnsuitableCheckpoint` if it is not known that Spark's reader shows all of a store, and how its keys are spread.

    Of some (a join whose stores are column families) it shows a part, and the part that is read back is the same.
    """
    for store in stores:
        if (store.kind, store.name) not in _KEY_IS_PARTITIONED_BUT_FOR:
            raise UnsuitableCheckpoint(
                f"operator {store.operator} is {store.kind} with a store {store.name}: that such a state is carried "
                f"whole is not known, so it stays where it is. Let the query run on as it is, or begin a new checkpoint"
            )


def ids_of(written: Mapping[Store, list[str | None]]) -> dict[str, Any] | None:
    """The ids of the state by operator, partition and store, as Spark's commit log has them; None where it has none."""
    found: dict[str, Any] = {}
    for store, ids in written.items():
        if None in ids:
            return None
        partitions = found.setdefault(str(store.operator), [[] for _ in ids])
        for partition, each in enumerate(ids):
            partitions[partition].append(each)
    return found


def _spread(state: DataFrame, store: Store, partitions: int) -> DataFrame:
    """Each row in the partition where the query will look for it."""
    schema = state.schema["key"].dataType
    assert isinstance(schema, StructType)
    spread = len(schema.fields) - _KEY_IS_PARTITIONED_BUT_FOR[store.kind, store.name]
    if not spread:
        return state.coalesce(1)  # what is grouped by nothing is all in partition 0
    # By place: Spark gives several unnamed grouping expressions one name.
    renamed = StructType([StructField(f"k{place}", field.dataType) for place, field in enumerate(schema.fields)])
    key = state["key"].cast(renamed)
    return state.repartition(partitions, *(key[f"k{place}"] for place in range(spread)))


def _signed(number: int) -> int:
    """As the JVM adds: modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
