"""`cec import`, `cec export` and `cec rescale`: a new checkpoint beside the old one, with the same state."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from spark_cec.admin.find_log import OWN_DIRECTORY, open_to_read
from spark_cec.agent.lease import is_held
from spark_cec.cli.show import console, counted, print_json
from spark_cec.errors import SettingsError
from spark_cec.migration.checkpoint import PLANNED, no_checkpoint, running, taken
from spark_cec.migration.migrate import Carried, Request, carry
from spark_cec.recovery.rollback import refuse_if_under_way
from spark_cec.session import configure
from spark_cec.settings import PROVIDER, PROVIDER_KEY

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
    _refuse_at_once(request)
    with _told(command) as say:
        say("starting Spark")
        with _session(command, pairs) as spark:
            carried = carry(spark, request, say)
            version = str(spark.version)
    if as_json:
        print_json(_json(request, carried))
    else:
        _print(console(), request, carried, version)


def _refuse_at_once(request: Request) -> None:
    """What can be seen without Spark, which takes a while to start; it is looked at again then."""
    source, target = _on_this_machine(request.source), _on_this_machine(request.target)
    if source is not None:
        if not (source / PLANNED).is_dir():
            raise no_checkpoint(str(source))
        own = open_to_read(str(source / OWN_DIRECTORY)) if (source / OWN_DIRECTORY).is_dir() else None
        if own is not None and is_held(own):
            raise running(str(source))
        if own is not None:
            refuse_if_under_way(own)
    if target is not None and os.path.lexists(target):
        raise taken(str(target))


def _on_this_machine(place: str) -> Path | None:
    return Path(place) if "://" not in place and not place.startswith("file:") else None


@contextmanager
def _told(command: str) -> Iterator[Callable[[str], None]]:
    """Says what is being done: in one line of a terminal that changes, else in a line for each thing."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(f"cec {command}") as status:
            yield lambda doing: status.update(f"cec {command}: {doing}")
        return
    told = set[str]()

    def say(doing: str) -> None:
        kind = re.sub(r"\d+ s more", "", doing)
        if kind not in told:
            told.add(kind)
            console.print(f"cec {command}: {doing}")

    yield say


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
