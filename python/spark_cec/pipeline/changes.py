"""Keeps a table of a sink's rows right, stable and tentative ones, in SQLite."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spark_cec.errors import CecError
from spark_cec.pipeline.graph import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KIND, EPOCH = "_kind", "_epoch"
_KEY = "_key"
_TENTATIVE = "tentative"
_STABLE = ""
_SQLITE_TYPES = {
    "tinyint": "INTEGER", "smallint": "INTEGER", "int": "INTEGER", "bigint": "INTEGER", "boolean": "INTEGER",
    "float": "REAL", "double": "REAL", "string": "TEXT", "binary": "BLOB", "date": "TEXT", "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
}  # fmt: skip
"""The types that a table can have, Spark's and SQLite's. A decimal is a TEXT, too."""


class ChangesError(CecError):
    """Rows cannot be kept in a table: see the message."""


def apply_changes(database: str, table: str, keys: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """A function for Spark's `foreachBatch` that keeps a table of SQLite right.

        @shop.sink(tentative=True)
        def board(per_minute):
            return per_minute.writeStream.foreachBatch(apply_changes("/data/board.db", "board", keys=["time", "page"]))

    `database`: a file on the driver's machine. `keys`: the columns that tell the rows of the table apart. The view
    `table` has one row for each key: the stable one, or else a tentative one; the column `tentative` says which. Rows
    lie in the table `<table>_rows`.

    A batch is one transaction, and the same batch again changes nothing. Times are ISO 8601 in UTC. The function raises
    `ChangesError` for a column that is missing, or of a type that SQLite does not have.
    """
    taken = list(keys)

    def apply(rows: DataFrame, batch: int) -> None:
        columns = check_columns(table, {each.name: each.dataType.simpleString() for each in rows.schema}, taken)
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            changed = (row.asDict(recursive=False) for row in rows.toLocalIterator())
            ChangesTable(connection, table, columns, taken).apply(changed, begins=batch == 0)

    return apply


class ChangesTable:
    """A table of stable and tentative rows. `columns`: the type of each in Spark, by name."""

    def __init__(
        self, connection: sqlite3.Connection, table: str, columns: Mapping[str, str], keys: Collection[str]
    ) -> None:
        """Makes table and view, if there are none. Raises `ChangesError` for a table with other columns."""
        self._connection = connection
        self._columns, self._keys = dict(columns), tuple(keys)
        self._rows, view = _quote(f"{table}_rows"), _quote(table)
        names = ", ".join(map(_quote, self._columns))
        kinds = "".join(f", {_quote(name)} {_SQLITE_TYPES.get(kind, 'TEXT')}" for name, kind in columns.items())
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._rows} "
            f"({_KEY} TEXT NOT NULL, {EPOCH} TEXT NOT NULL{kinds}, PRIMARY KEY ({_KEY}, {EPOCH}))"
        )
        there = {str(name) for _, name, *_ in connection.execute(f"PRAGMA table_info({self._rows})")}
        if there != {_KEY, EPOCH, *columns}:
            raise ChangesError(
                f"the table {table}_rows has the columns {', '.join(sorted(there - {_KEY, EPOCH}))}, and the rows have "
                f"{', '.join(sorted(columns))}: give another table, or drop {table}_rows and the view {table}"
            )
        connection.execute(
            f"CREATE VIEW IF NOT EXISTS {view} AS "
            f"SELECT {names}, {EPOCH} <> '{_STABLE}' AS {_TENTATIVE} FROM {self._rows} r "
            f"WHERE {EPOCH} = '{_STABLE}' OR NOT EXISTS "
            f"(SELECT 1 FROM {self._rows} s WHERE s.{_KEY} = r.{_KEY} AND s.{EPOCH} = '{_STABLE}')"
        )

    def apply(self, changes: Iterable[Mapping[str, Any]], *, begins: bool) -> None:
        """Applies the rows of a batch. `begins`: it is the first of its query, so no tentative row is of this query."""
        places = ", ".join("?" * (2 + len(self._columns)))
        names = ", ".join([_KEY, EPOCH, *map(_quote, self._columns)])
        put, undone = f"INSERT OR REPLACE INTO {self._rows} ({names}) VALUES ({places})", list[str]()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if begins:  # or tentative rows of an earlier query would stay for ever
                self._connection.execute(f"DELETE FROM {self._rows} WHERE {EPOCH} <> '{_STABLE}'")
            for row in changes:
                if row[KIND] == "undo":
                    undone.append(row[EPOCH])
                    continue
                values = {name: _to_sqlite(row[name], kind) for name, kind in self._columns.items()}
                key = json.dumps([values[name] for name in self._keys], default=repr)
                epoch = _STABLE if row[KIND] == "stable" else row[EPOCH]
                self._connection.execute(put, [key, epoch, *values.values()])
            # Last, because rows come in any order.
            for epoch in undone:
                self._connection.execute(f"DELETE FROM {self._rows} WHERE {EPOCH} = ?", [epoch])
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise


def check_columns(table: str, types: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    """The columns of the table among those of the rows, with their types in Spark. Raises `ChangesError`."""
    if not keys:
        raise ChangesError(f"keys=[] for {table}: name the columns that tell its rows apart")
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
        if kind not in _SQLITE_TYPES and not kind.startswith("decimal"):
            raise ChangesError(
                f"column {name} of the rows for {table} is {kind}, which SQLite does not have: select its fields, or "
                f"cast it"
            )
    names = [_KEY, KIND, EPOCH, _TENTATIVE, *found]
    twice = sorted({name for name in found if sum(name.lower() == each.lower() for each in names) > 1})
    if twice:
        raise ChangesError(
            f"column {twice[0]} of the rows for {table} has a name that the table needs, or has twice, because SQLite "
            f"ignores case: give it another name"
        )
    return found


def _to_sqlite(value: Any, kind: str) -> Any:
    if isinstance(value, datetime) and kind == "timestamp":
        # Spark gives it in the zone of this process, and without a zone.
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return bytes(value) if isinstance(value, bytearray) else value


def _quote(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
