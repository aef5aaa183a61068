"""Keeps a table of a sink's rows right, stable and tentative ones, in SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.changes_table import EPOCH, KIND, ChangesError, ChangesTable, is_known, own_names
from spark_cec.pipeline.graph import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PATIENCE_S = 60.0
_QUERY_ID = "sql.streaming.queryId"


def apply_changes(
    database: str, table: str, keys: Sequence[str], *, changes: bool = False
) -> Callable[[DataFrame, int], None]:
    """A function for Spark's `foreachBatch` that keeps a table of SQLite right.

        @shop.sink(tentative=True)
        def board(per_minute):
            return per_minute.writeStream.foreachBatch(apply_changes("/data/board.db", "board", keys=["time", "page"]))

    `database`: a file on the driver's machine. `keys`: the columns that tell the rows of the table apart. The view
    `table` has one row for each key: the stable one, or else the newest tentative one; the column `tentative` says
    which. Rows lie in the table `<table>_rows`. `changes`: the table `<table>_changes` says how each row of the view
    changed, with the column `_change_type` of Delta's change data feed: `insert`, `update_preimage`,
    `update_postimage`, `delete`. `_change` counts them, and `_batch` is the number of Spark's batch.

    A batch is one transaction, and may come again. Times are ISO 8601 in UTC. Rows with `_kind = 'undo'` must not be
    filtered out before. Raises `ChangesError` for keys that are none; the function raises it for columns that SQLite
    cannot have, and for a table that was made otherwise.
    """
    taken = _check_keys(table, keys)

    def apply(rows: DataFrame, batch: int) -> None:
        types = {each.name: each.dataType.simpleString() for each in rows.schema}
        columns = check_columns(table, types, taken, changes=changes)
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        changed = (row.asDict(recursive=False) for row in rows.toLocalIterator())
        try:
            with contextlib.closing(sqlite3.connect(database, _PATIENCE_S, isolation_level=None)) as connection:
                made = ChangesTable(connection, table, columns, taken, changes=changes)
                made.apply(changed, batch, query, lambda: _is_over(rows, batch, query))
        except sqlite3.Error as error:
            raise ChangesError(f"the table {table} in {database} cannot be written: {error}{_mend(error)}") from error

    return apply


def _is_over(rows: DataFrame, batch: int, query: str) -> bool:
    """Whether the query has planned a later batch, by Spark's offset log as it is now.

    True if the query is not known, or has ended meanwhile: then its batch comes again.
    """
    if not query:
        return True
    session: Any = rows.sparkSession
    id_of = session._jvm.java.util.UUID.fromString(query)
    running = session._jsparkSession.sharedState().activeStreamingQueries().get(id_of)
    if running is None:
        return True
    newest = running.offsetLog().getLatestBatchId()
    return bool(newest.isDefined()) and int(newest.get()) > batch


def _mend(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return f"; another connection has held it for {_PATIENCE_S:g} s: end its transaction"
    if "is full" in str(error):
        return "; the batch has changed nothing and comes again: make room there, and start the query again"
    return ""


def _check_keys(table: str, keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str) or not keys:
        raise ChangesError(f"keys={keys!r} for {table}: give a list of the columns that tell its rows apart")
    return list(keys)


def check_columns(
    table: str, types: Mapping[str, str], keys: Sequence[str], *, changes: bool = False
) -> dict[str, str]:
    """The columns of the table among those of the rows, with their types in Spark. Raises `ChangesError`."""
    if not {KIND, EPOCH} <= types.keys():
        raise ChangesError(
            f"the rows for {table} lack the columns {KIND} and {EPOCH}: declare the sink with @sink(tentative=True), "
            f"and keep both columns"
        )
    found = {name: kind for name, kind in types.items() if name not in (KIND, EPOCH)}
    for key in keys:
        if key not in found:
            raise ChangesError(f"key {key!r} is no column of the rows for {table}: {nearest(key, found)}")
    for name, kind in found.items():
        if not is_known(kind):
            raise ChangesError(
                f"column {name} of the rows for {table} is {kind}, which SQLite does not have: select its fields, or "
                f"cast it"
            )
    names = [*own_names(changes=changes), *found]
    twice = sorted({name for name in found if sum(name.lower() == each.lower() for each in names) > 1})
    if twice:
        raise ChangesError(
            f"column {twice[0]} of the rows for {table} has a name that the table needs, or has twice, because SQLite "
            f"ignores case: give it another name"
        )
    return found
