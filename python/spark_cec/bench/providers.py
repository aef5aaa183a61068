"""The state store providers that are compared, and the conf that turns each on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum

from spark_cec.session import JARS_KEY, PROVIDER, PROVIDER_KEY, PYTHON_KEY

_STATE = "org.apache.spark.sql.execution.streaming.state."
_CHANGELOG_KEY = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class Provider(str, Enum):
    """Ours with its defaults, RocksDB with changelog checkpointing, and the HDFS-backed one."""

    CEC = "cec"
    ROCKSDB = "rocksdb"
    HDFS = "hdfs"


def conf_of(provider: Provider, jar: str) -> Mapping[str, str]:
    """Spark conf that turns `provider` on; `jar` is the shim's, which only ours needs."""
    if provider is Provider.CEC:
        return {PROVIDER_KEY: PROVIDER, JARS_KEY: jar, PYTHON_KEY: sys.executable}
    if provider is Provider.ROCKSDB:
        return {PROVIDER_KEY: _STATE + "RocksDBStateStoreProvider", _CHANGELOG_KEY: "true"}
    return {PROVIDER_KEY: _STATE + "HDFSBackedStateStoreProvider"}


def in_turn(providers: tuple[Provider, ...], round_number: int) -> tuple[Provider, ...]:
    """The order in one round, rotated from round to round, so that a drift of the machine favours nobody."""
    shift = round_number % len(providers)
    return providers[shift:] + providers[:shift]
