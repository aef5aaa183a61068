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
_CHANGE, _CHANGE_TYPE, _BATCH = "_change", "_change_type", "_batch"
_SQLITE_TYPES = {
    "tinyint": "INTEGER", "smallint": "INTEGER", "int": "INTEGER", "bigint": "INTEGER", "boolean": "INTEGER",
    "float": "REAL", "double": "REAL", "string": "TEXT", "binary": "BLOB", "date": "TEXT", "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
}  # fmt: skip
"""The types that a table can have, Spark's and SQLite's. A decimal is a TEXT, too."""
_IS_TENTATIVE = f"{EPOCH} <> '{_STABLE}'"


class ChangesError(CecError):
    """Rows cannot be kept in a table: see the message."""


def apply_changes(
    database: str, table: str, keys: Sequence[str], *, changes: bool = False
) -> Callable[[DataFrame, int], None]:
    """A function for Spark's `foreachBatch` that keeps a table of SQLite right.

        @shop.sink(tentative=True)
        def board(per_minute):
            return per_minute.writeStream.foreachBatch(apply_changes("/data/board.db", "board", keys=["time", "page"]))

    `database`: a file on the driver's machine. `keys`: the columns that tell the rows of the table apart. The view
    `table` has one row for each key: the stable one, or else a tentative one; the column `tentative` says which. Rows
    lie in the table `<table>_rows`. `changes`: the table `<table>_changes` gets a row for each change of the view, with
    the column `_change_type` of Delta's change data feed: `insert`, `update_preimage`, `update_postimage`, `delete`.
    `_change` counts them, and `_batch` is the number of Spark's batch.

    A batch is one transaction, and the same batch again changes nothing. Times are ISO 8601 in UTC. The function raises
    `ChangesError` for a column that is missing, or of a type that SQLite does not have.
    """
    taken = list(keys)

    def apply(rows: DataFrame, batch: int) -> None:
        columns = check_columns(table, {each.name: each.dataType.simpleString() for each in rows.schema}, taken)
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            changed = (row.asDict(recursive=False) for row in rows.toLocalIterator())
            ChangesTable(connection, table, columns, taken, changes=changes).apply(changed, batch)

    return apply


class ChangesTable:
    """A table of stable and tentative rows. `columns`: the type of each in Spark, by name."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str,
        columns: Mapping[str, str],
        keys: Collection[str],
        *,
        changes: bool = False,
    ) -> None:
        """Makes tables and view, if there are none. Raises `ChangesError` for a table with other columns."""
        self._connection = connection
        self._columns, self._keys = dict(columns), tuple(keys)
        self._rows, view = _quote(f"{table}_rows"), _quote(table)
        names = ", ".join(map(_quote, self._columns))
        kinds = "".join(f", {_quote(name)} {_SQLITE_TYPES.get(kind, 'TEXT')}" for name, kind in columns.items())
        _make_table(
            connection, table, f"{table}_rows", {_KEY, EPOCH, *columns},
            f"{_KEY} TEXT NOT NULL, {EPOCH} TEXT NOT NULL{kinds}, PRIMARY KEY ({_KEY}, {EPOCH})",
        )  # fmt: skip
        # Without it, an undo would read all stable rows.
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS {_quote(f'{table}_epochs')} ON {self._rows} ({EPOCH}) WHERE {_IS_TENTATIVE}"
        )
        newest = (
            f"{names}, {_IS_TENTATIVE} AS {_TENTATIVE} FROM {self._rows} r WHERE ({EPOCH} = '{_STABLE}' OR NOT EXISTS "
            f"(SELECT 1 FROM {self._rows} s WHERE s.{_KEY} = r.{_KEY} AND s.{EPOCH} = '{_STABLE}'))"
        )
        connection.execute(f"CREATE VIEW IF NOT EXISTS {view} AS SELECT {newest}")
        self._changelog = None
        if changes:
            _make_table(
                connection, table, f"{table}_changes", {_CHANGE, _CHANGE_TYPE, _BATCH, _TENTATIVE, *columns},
                f"{_CHANGE} INTEGER PRIMARY KEY AUTOINCREMENT, {_CHANGE_TYPE} TEXT NOT NULL, {_BATCH} INTEGER NOT NULL"
                f"{kinds}, {_TENTATIVE} INTEGER NOT NULL",
            )  # fmt: skip
            self._changelog = _Changelog(connection, f"{table}_changes", [*columns, _TENTATIVE], newest)

    def apply(self, changes: Iterable[Mapping[str, Any]], batch: int) -> None:
        """Applies the rows of a batch. In batch 0, the first of its query, no tentative row is of this query."""
        places = ", ".join("?" * (2 + len(self._columns)))
        names = ", ".join([_KEY, EPOCH, *map(_quote, self._columns)])
        put, undone = f"INSERT OR REPLACE INTO {self._rows} ({names}) VALUES ({places})", list[str]()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if batch == 0:  # or tentative rows of an earlier query would stay for ever
                self._drop(_IS_TENTATIVE)
            for row in changes:
                if row[KIND] == "undo":
                    undone.append(row[EPOCH])
                    continue
                values = {name: _to_sqlite(row[name], kind) for name, kind in self._columns.items()}
                key = json.dumps([values[name] for name in self._keys], default=repr)
                epoch = _STABLE if row[KIND] == "stable" else row[EPOCH]
                if self._changelog is not None:
                    self._changelog.note(key)
                self._connection.execute(put, [key, epoch, *values.values()])
            # Last, because rows come in any order.
            for epoch in undone:
                self._drop(f"{_IS_TENTATIVE} AND {EPOCH} = ?", epoch)
            if self._changelog is not None:
                self._changelog.write(batch)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def _drop(self, condition: str, *values: str) -> None:
        if self._changelog is not None:
            keys = self._connection.execute(f"SELECT {_KEY} FROM {self._rows} WHERE {condition}", values).fetchall()
            for (key,) in keys:
                self._changelog.note(key)
        self._connection.execute(f"DELETE FROM {self._rows} WHERE {condition}", values)


class _Changelog:
    """Writes what a batch changes in the rows that count. `newest`: SQL that selects those, up to its condition.

    It compares each key before and after the batch. So a batch that comes again writes nothing.
    """

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str], newest: str) -> None:
        self._connection = connection
        self._before = dict[str, list[tuple[Any, ...]]]()
        names = ", ".join([_CHANGE_TYPE, _BATCH, *map(_quote, columns)])
        self._insert = f"INSERT INTO {_quote(table)} ({names}) VALUES ({', '.join('?' * (2 + len(columns)))})"
        self._newest = f"SELECT {newest} AND r.{_KEY} = ? ORDER BY {EPOCH}"

    def note(self, key: str) -> None:
        """Keeps the rows of a key, before the batch changes them."""
        if key not in self._before:
            self._before[key] = self._find(key)

    def write(self, batch: int) -> None:
        """Writes the changes of all keys that were noted."""
        before, self._before = self._before, {}
        for key, was in before.items():
            for kind, row in _compare(was, self._find(key)):
                self._connection.execute(self._insert, [kind, batch, *row])

    def _find(self, key: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._newest, [key]).fetchall()


def _compare(was: list[tuple[Any, ...]], now: list[tuple[Any, ...]]) -> list[tuple[str, tuple[Any, ...]]]:
    """The changes of a key's rows. A key has two rows at most while one epoch takes the place of another."""
    gone, new = [row for row in was if row not in now], [row for row in now if row not in was]
    kinds = ("update_preimage", "update_postimage") if len(gone) == len(new) == 1 else ("delete", "insert")
    return [*((kinds[0], row) for row in gone), *((kinds[1], row) for row in new)]


def _make_table(connection: sqlite3.Connection, view: str, table: str, columns: set[str], declared: str) -> None:
    """Makes a table, if there is none. Raises `ChangesError` for one with other columns."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {_quote(table)} ({declared})")
    there = {str(name) for _, name, *_ in connection.execute(f"PRAGMA table_info({_quote(table)})")}
    if there != columns:
        own = {_KEY, EPOCH, _CHANGE, _CHANGE_TYPE, _BATCH, _TENTATIVE}
        raise ChangesError(
            f"the table {table} has the columns {', '.join(sorted(there - own))}, and the rows have "
            f"{', '.join(sorted(columns - own))}: give another table, or drop {table} and the view {view}"
        )


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
    names = [_KEY, KIND, EPOCH, _TENTATIVE, _CHANGE, _CHANGE_TYPE, _BATCH, *found]
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
