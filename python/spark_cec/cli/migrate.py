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
from spark_cec.migration.migrate import Migrated, Request, migrate_state
from spark_cec.recovery.migrated_away import refuse_migrated_query
from spark_cec.recovery.rollback import refuse_during_rollback
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
"""The providers that can get a migrated state, by their names on the command line."""


def provider_class(name: str) -> str:
    """The class of one of Spark's own providers. `SettingsError` for another name."""
    if name not in PROVIDERS or name == "cec":
        raise SettingsError("--provider", name, "give rocksdb or hdfs")
    return PROVIDERS[name]


def migrate_and_show(command: str, request: Request, confs: Sequence[str], *, as_json: bool) -> None:
    """Migrates the state in a Spark session of its own, and prints the result."""
    pairs = _parse_confs(confs)
    _refuse_early(request)
    with _report_steps(command) as say:
        say("starting Spark")
        with _open_session(command, pairs) as spark:
            migrated = migrate_state(spark, request, say)
            version = str(spark.version)
    if as_json:
        print_json(_result_json(request, migrated))
    else:
        _print_result(console(), request, migrated, version)


def _refuse_early(request: Request) -> None:
    """Refuses what needs no Spark to see, because Spark starts slowly; the migration checks all of it again."""
    source, target = _local_path(request.source), _local_path(request.target)
    if source is not None:
        if not (source / PLANNED).is_dir():
            raise no_checkpoint(str(source))
        own = open_to_read(str(source / OWN_DIRECTORY)) if (source / OWN_DIRECTORY).is_dir() else None
        if own is not None and is_held(own):
            raise running(str(source))
        if own is not None:
            refuse_migrated_query(own)
            refuse_during_rollback(own)
    if target is not None and os.path.lexists(target):
        raise taken(str(target))


def _local_path(place: str) -> Path | None:
    return Path(place) if "://" not in place and not place.startswith("file:") else None


@contextmanager
def _report_steps(command: str) -> Iterator[Callable[[str], None]]:
    """Reports the steps: in one changing line on a terminal, else in a line for each kind of step."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(f"cec {command}") as status:
            yield lambda doing: status.update(f"cec {command}: {doing}")
        return
    reported = set[str]()

    def say(doing: str) -> None:
        kind = re.sub(r"\d+ s more", "", doing)
        if kind not in reported:
            reported.add(kind)
            console.print(f"cec {command}: {doing}")

    yield say


def _parse_confs(confs: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for conf in confs:
        key, separator, value = conf.partition("=")
        if not separator or not key:
            raise SettingsError("--conf", conf, "give KEY=VALUE")
        pairs[key] = value
    return pairs


@contextmanager
def _open_session(command: str, confs: dict[str, str]) -> Iterator[SparkSession]:
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


def _result_json(request: Request, migrated: Migrated) -> dict[str, Any]:
    return {
        "from": request.source,
        "to": request.target,
        "provider": request.provider,
        "partitions": request.partitions or migrated.found.partitions,
        "committed_batch": migrated.found.batch,
        "stores": [
            {"operator": each.store.operator, "kind": each.store.kind, "store": each.store.name, "rows": each.rows}
            for each in migrated.stores
        ],
        "seconds": round(migrated.seconds, 3),
    }


def _print_result(out: Console, request: Request, migrated: Migrated, version: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("operator", "kind", "store", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for each in migrated.stores:
        table.add_row(str(each.store.operator), each.store.description, each.store.name, f"{each.rows:,}")
    out.print(table)
    rows, batch = sum(each.rows for each in migrated.stores), migrated.found.batch
    out.print(
        f"ok: the state after batch {batch}, {counted(rows, 'row')}, read back from {request.target} and "
        f"found the same, after {migrated.seconds:.0f} s"
    )
    out.print(
        f"start the query with checkpointLocation {request.target} and {PROVIDER_KEY}={request.provider}; "
        f"{request.source} is as it was, and must not be started any more (Spark {version})"
    )
