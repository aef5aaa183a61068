"""The state store providers that are compared, and the conf that turns each on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from spark_cec.session import JARS_KEY, PYTHON_KEY
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY
from spark_cec_lab.bench.hashmap import PROVIDER as HASHMAP_PROVIDER

_STATE = "org.apache.spark.sql.execution.streaming.state."
_STORE = "spark.sql.streaming.stateStore."
_ZSTD = {_STORE + "compression.codec": "zstd"}
"""Of changelog, delta and snapshot files, those of RocksDB's own excepted. Spark's default is lz4, ours is zstd."""

_ROCKSDB = {
    PROVIDER_KEY: _STATE + "RocksDBStateStoreProvider",
    _STORE + "rocksdb.changelogCheckpointing.enabled": "true",
}
_TUNED = {
    _STORE + "rocksdb.boundedMemoryUsage": "true",
    _STORE + "rocksdb.trackTotalNumberOfRows": "false",
}
"""What Spark's guide recommends: one cache of 500 MB for all stores in place of 8 MB for each, and no look-up of a key
before each write, for a count of the rows.
"""

_HDFS = {PROVIDER_KEY: _STATE + "HDFSBackedStateStoreProvider"}

_Any = TypeVar("_Any")


class Provider(str, Enum):
    """The stores that are compared.

    Ours with its defaults; with everything written at every commit (`cec-eager`), and with only what Q and U ask for
    (`cec-lazy`). RocksDB with changelog checkpointing and the HDFS-backed store, each with Spark's default codec, and
    with zstd; `rocksdb-tuned` has the other settings that Spark's guide recommends, too. A hash map of rows that keeps
    nothing. `stateless`: the same rows, shuffled by key, in a query that has no state.
    Flink's backends: objects on the heap, and RocksDB with the changelog; each as it comes, and in
    mini-batches.
    """

    CEC = "cec"
    EAGER = "cec-eager"
    LAZY = "cec-lazy"
    ROCKSDB = "rocksdb"
    ROCKSDB_ZSTD = "rocksdb-zstd"
    ROCKSDB_TUNED = "rocksdb-tuned"
    HDFS = "hdfs"
    HDFS_ZSTD = "hdfs-zstd"
    HASHMAP = "hashmap"
    STATELESS = "stateless"
    FLINK_HASHMAP = "flink-hashmap"
    FLINK_HASHMAP_MINI = "flink-hashmap-mini-batch"
    FLINK_ROCKSDB = "flink-rocksdb"
    FLINK_ROCKSDB_MINI = "flink-rocksdb-mini-batch"

    @property
    def is_ours(self) -> bool:
        """Whether the state is kept by Spark CEC."""
        return self in OURS

    @property
    def is_flink(self) -> bool:
        """Whether it is not Spark that runs."""
        return self in FLINK

    @property
    def counts_rows(self) -> bool:
        """Whether its progress says how many rows the state has."""
        return self not in (Provider.ROCKSDB_TUNED, Provider.STATELESS)


class Rival(Enum):
    """What ours is compared with: a store in one setting or several, the best of which counts."""

    ROCKSDB = (Provider.ROCKSDB, Provider.ROCKSDB_ZSTD, Provider.ROCKSDB_TUNED)
    HDFS = (Provider.HDFS, Provider.HDFS_ZSTD)
    HASHMAP = (Provider.HASHMAP,)
    STATELESS = (Provider.STATELESS,)
    FLINK_HASHMAP = (Provider.FLINK_HASHMAP,)
    FLINK_HASHMAP_MINI = (Provider.FLINK_HASHMAP_MINI,)
    FLINK_ROCKSDB = (Provider.FLINK_ROCKSDB,)
    FLINK_ROCKSDB_MINI = (Provider.FLINK_ROCKSDB_MINI,)

    @property
    def peers(self) -> tuple[Provider, ...]:
        """Its settings, the default first, which it is named after."""
        peers: tuple[Provider, ...] = self.value
        return peers


PEERS = (Provider.CEC, Provider.EAGER, *Rival.ROCKSDB.peers, *Rival.HDFS.peers, Provider.HASHMAP)
"""What is compared where nothing else is asked for."""

FLINK = (Provider.FLINK_HASHMAP, Provider.FLINK_HASHMAP_MINI, Provider.FLINK_ROCKSDB, Provider.FLINK_ROCKSDB_MINI)

OURS: Mapping[Provider, Mapping[str, str]] = {
    Provider.CEC: {},
    Provider.EAGER: {PREFIX + "mode": "eager"},
    Provider.LAZY: {PREFIX + "effort": "0"},
}
"""Ours, each by what it has besides our provider."""

_SPARKS: Mapping[Provider, Mapping[str, str]] = {
    Provider.STATELESS: {},
    Provider.ROCKSDB: _ROCKSDB,
    Provider.ROCKSDB_ZSTD: {**_ROCKSDB, **_ZSTD},
    Provider.ROCKSDB_TUNED: {**_ROCKSDB, **_ZSTD, **_TUNED},
    Provider.HDFS: _HDFS,
    Provider.HDFS_ZSTD: {**_HDFS, **_ZSTD},
}


def conf_of(provider: Provider, jar: str) -> Mapping[str, str]:
    """Spark conf that turns `provider` on; `jar` is the shim's, or the hash map's: Spark's own stores need none."""
    if provider.is_ours:
        return {PROVIDER_KEY: PROVIDER, JARS_KEY: jar, PYTHON_KEY: sys.executable, **OURS[provider]}
    if provider is Provider.HASHMAP:
        return {PROVIDER_KEY: HASHMAP_PROVIDER, JARS_KEY: jar}
    return _SPARKS[provider]


def in_turn(providers: tuple[_Any, ...], round_number: int) -> tuple[_Any, ...]:
    """The order in one round, rotated from round to round, so that a drift of the machine favours nobody."""
    shift = round_number % len(providers)
    return providers[shift:] + providers[:shift]
