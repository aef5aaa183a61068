"""The state store providers that are compared, and the conf that turns each on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from spark_cec.bench.floor import PROVIDER as FLOOR_PROVIDER
from spark_cec.session import JARS_KEY, PYTHON_KEY
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY

_STATE = "org.apache.spark.sql.execution.streaming.state."
_CHANGELOG_KEY = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

_Rival = TypeVar("_Rival")


class Provider(str, Enum):
    """Ours with its defaults, RocksDB with changelog checkpointing, the HDFS-backed one, and a bare hash map.

    Then ours with other policies, to compare them: everything at every commit, and only what Q and U ask for. Then
    Flink's backends: objects on the heap, and RocksDB with the changelog; each as it comes, and in mini-batches.
    """

    CEC = "cec"
    ROCKSDB = "rocksdb"
    HDFS = "hdfs"
    FLOOR = "floor"
    EAGER = "cec-eager"
    LAZY = "cec-lazy"
    FLINK_HASHMAP = "flink-hashmap"
    FLINK_HASHMAP_MINI = "flink-hashmap-mini-batch"
    FLINK_ROCKSDB = "flink-rocksdb"
    FLINK_ROCKSDB_MINI = "flink-rocksdb-mini-batch"

    @property
    def is_ours(self) -> bool:
        """Whether the state is kept by Spark CEC."""
        return self in (Provider.CEC, *POLICIES)

    @property
    def is_flink(self) -> bool:
        """Whether it is not Spark that runs."""
        return self in FLINK


PEERS = (Provider.CEC, Provider.ROCKSDB, Provider.HDFS, Provider.FLOOR)
"""What is compared where nothing else is asked for."""

FLINK = (Provider.FLINK_HASHMAP, Provider.FLINK_HASHMAP_MINI, Provider.FLINK_ROCKSDB, Provider.FLINK_ROCKSDB_MINI)

POLICIES = {
    Provider.EAGER: {PREFIX + "mode": "eager"},
    Provider.LAZY: {PREFIX + "effort": "0"},
}


def conf_of(provider: Provider, jar: str) -> Mapping[str, str]:
    """Spark conf that turns `provider` on; `jar` is the shim's, or the floor's: Spark's own stores need none."""
    if provider.is_ours:
        ours = {PROVIDER_KEY: PROVIDER, JARS_KEY: jar, PYTHON_KEY: sys.executable}
        return {**ours, **POLICIES.get(provider, {})}
    if provider is Provider.ROCKSDB:
        return {PROVIDER_KEY: _STATE + "RocksDBStateStoreProvider", _CHANGELOG_KEY: "true"}
    if provider is Provider.FLOOR:
        return {PROVIDER_KEY: FLOOR_PROVIDER, JARS_KEY: jar}
    return {PROVIDER_KEY: _STATE + "HDFSBackedStateStoreProvider"}


def in_turn(providers: tuple[_Rival, ...], round_number: int) -> tuple[_Rival, ...]:
    """The order in one round, rotated from round to round, so that a drift of the machine favours nobody."""
    shift = round_number % len(providers)
    return providers[shift:] + providers[:shift]
