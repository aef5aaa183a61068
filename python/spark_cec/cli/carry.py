"""`cec import`, `cec export` and `cec rescale`: a new checkpoint beside the old one, with the same state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from spark_cec.cli.show import console, counted, print_json
from spark_cec.errors import SettingsError
from spark_cec.migration.carry import Carried, Request, carry
from spark_cec.session import PROVIDER, PROVIDER_KEY, configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARKS = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "rocksdb": f"{_SPARKS}RocksDBStateStoreProvider",
    "hdfs": f"{_SPARKS}HDFSBackedStateStoreProvider",
    "cec": PROVIDER,
}
"""The providers that a state can be carried to, by their names on the command line."""


def provider_class(name: str) -> str:
    """The class of one of Spark's own providers. `SettingsError` for another name."""
    if name not in PROVIDERS or name == "cec":
        raise SettingsError("--provider", name, "give rocksdb or hdfs")
    return PROVIDERS[name]


def carry_and_show(command: str, request: Request, confs: Sequence[str], *, as_json: bool) -> None:
    """Does it in a Spark session of its own, and says what came of it."""
    pairs = _pairs(confs)
    with _session(command, pairs) as spark, Console(stderr=True).status(f"cec {command}") as status:
        carried = carry(spark, request, lambda doing: status.update(f"cec {command}: {doing}"))
        version = str(spark.version)
    if as_json:
        print_json(_json(request, carried))
    else:
        _print(console(), request, carried, version)


def _pairs(confs: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for conf in confs:
        key, separator, value = conf.partition("=")
        if not separator or not key:
            raise SettingsError("--conf", conf, "give KEY=VALUE")
        pairs[key] = value
    return pairs


@contextmanager
def _session(command: str, confs: dict[str, str]) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    defaults = {
        "spark.master": "local[*]",
        "spark.app.name": f"cec {command}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder
    for key, value in {**defaults, **confs}.items():
        builder = builder.config(key, value)
    spark = configure(builder).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _json(request: Request, carried: Carried) -> dict[str, Any]:
    return {
        "from": request.source,
        "to": request.target,
        "provider": request.provider,
        "partitions": request.partitions or carried.found.partitions,
        "committed_batch": carried.found.batch,
        "stores": [
            {"operator": each.store.operator, "kind": each.store.kind, "store": each.store.name, "rows": each.rows}
            for each in carried.stores
        ],
        "seconds": round(carried.seconds, 3),
    }


def _print(out: Console, request: Request, carried: Carried, version: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("operator", "kind", "store", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for each in carried.stores:
        table.add_row(str(each.store.operator), each.store.kind, each.store.name, f"{each.rows:,}")
    out.print(table)
    rows = sum(each.rows for each in carried.stores)
    out.print(
        f"ok: the state after batch {carried.found.batch}, {counted(rows, 'row')}, read back from {request.target} and "
        f"found the same, after {carried.seconds:.0f} s"
    )
    out.print(
        f"start the query with checkpointLocation {request.target} and {PROVIDER_KEY}={request.provider}; "
        f"{request.source} is as it was, and must not be started any more (Spark {version})"
    )
