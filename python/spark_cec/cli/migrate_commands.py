"""`cec import`, `cec export` and `cec rescale`: their help and options."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_cec.cli.failures import explain_errors
from spark_cec.cli.options import AsJson
from spark_cec.extras import need

_COMMON_HELP = """The query must be stopped. The old checkpoint is read only; a new one is made beside it, read back and
compared, and cannot be started before it is whole. Spark's own reader and rewriter of state do the work, in a local
Spark session of this command (`--conf` for what that needs). A state of transformWithState cannot be carried. Output of
the `cec` sink stays in the old one.

\b
Exit codes:
  0  done: start the query with the new checkpoint
  2  refused, with the reason; nothing is left behind
"""

_IMPORT = f"""Take a query over from Spark's own state stores (RocksDB or HDFS-backed), with its state.

{_COMMON_HELP}
\b
Examples:
  cec import --from /checkpoints/clicks --to /checkpoints/clicks-cec
"""

_EXPORT = f"""Give a query back to one of Spark's own state stores, with its state.

After a crash, start the query once more and stop it first: its state must be in the log.

{_COMMON_HELP}
\b
Examples:
  cec export --from /checkpoints/clicks-cec --to /checkpoints/clicks --provider rocksdb
"""

_RESCALE = f"""Give a query another number of partitions (spark.sql.shuffle.partitions), with its state.

Spark fixes that number at the first start of a query.

{_COMMON_HELP}
\b
Examples:
  cec rescale --from /checkpoints/clicks --to /checkpoints/clicks-64 --partitions 64
"""

Source = Annotated[str, typer.Option("--from", metavar="CHECKPOINT", help="The checkpoint of the stopped query.")]
Target = Annotated[str, typer.Option("--to", metavar="CHECKPOINT", help="The new one: a directory that is not there.")]
Confs = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]


def register(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command("import", help=_IMPORT, short_help="Take a query over from Spark's own state stores.")(import_)
    app.command(help=_EXPORT, short_help="Give a query back to one of Spark's own state stores.")(export)
    app.command(help=_RESCALE, short_help="Give a query another number of partitions.")(rescale)


def import_(
    source: Source,
    target: Target,
    quiet: Annotated[
        float,
        typer.Option(
            "--quiet-for", metavar="SECONDS", min=0.0, help="A query that has written nothing for so long is stopped."
        ),
    ] = 20.0,
    confs: Confs = None,
    as_json: AsJson = False,
) -> None:
    """Migrates from Spark's provider to ours."""
    _run_migration("import", source, target, "cec", None, quiet, confs, as_json)


def export(
    source: Source,
    target: Target,
    provider: Annotated[str, typer.Option("--provider", metavar="rocksdb|hdfs", help="Which of them.")] = "rocksdb",
    confs: Confs = None,
    as_json: AsJson = False,
) -> None:
    """Migrates from our provider to Spark's."""
    _run_migration("export", source, target, provider, None, 0.0, confs, as_json)


def rescale(
    source: Source,
    target: Target,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1, help="How many, from then on.")],
    confs: Confs = None,
    as_json: AsJson = False,
) -> None:
    """Migrates to another number of partitions, on our provider."""
    _run_migration("rescale", source, target, "cec", partitions, 0.0, confs, as_json)


def _run_migration(
    command: str,
    source: str,
    target: str,
    provider: str,
    partitions: int | None,
    quiet: float,
    confs: list[str] | None,
    as_json: bool,
) -> None:
    with explain_errors(command, source, "read and write"):
        need(f"`cec {command}`", "spark")
        from spark_cec.cli.migrate import migrate_and_show, provider_class
        from spark_cec.migration.migrate import Request
        from spark_cec.settings import PROVIDER

        wanted = PROVIDER if command != "export" else provider_class(provider)
        migrate_and_show(command, Request(source, target, wanted, partitions, quiet), confs or [], as_json=as_json)
