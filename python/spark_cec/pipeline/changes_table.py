"""A table of stable and tentative rows in SQLite: one transaction for each batch, which may come again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from spark_cec.errors import CecError

KIND, EPOCH = "_kind", "_epoch"
_STABLE, _TENTATIVE, _UNDO = "stable", "tentative", "undo"
_KEY = "_key"
_CHANGE, _CHANGE_TYPE, _BATCH = "_change", "_change_type", "_batch"
_ROW_ID = "_rowid_"
"""SQLite's own number of a row, which grows."""
_NO_EPOCH = ""
"""The epoch of a stable row."""
_IS_TENTATIVE = f"{EPOCH} <> '{_NO_EPOCH}'"
_SQLITE_TYPES = {
    "tinyint": "INTEGER", "smallint": "INTEGER", "int": "INTEGER", "bigint": "INTEGER", "boolean": "INTEGER",
    "float": "REAL", "double": "REAL", "string": "TEXT", "binary": "BLOB", "date": "TEXT", "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
}  # fmt: skip
"""The types that a table can have, Spark's and SQLite's. A decimal is a TEXT, too."""


class ChangesError(CecError):
    """Rows cannot be kept in a table: see the message."""


def is_known(kind: str) -> bool:
    """Whether a table can have a column of this type of Spark's."""
    return kind in _SQLITE_TYPES or kind.startswith("decimal")


def own_names(*, changes: bool) -> list[str]:
    """The columns that a table has beside those of the rows. `changes`: with a changelog."""
    return [_KEY, KIND, EPOCH, _TENTATIVE, _ROW_ID, *([_CHANGE, _CHANGE_TYPE, _BATCH] if changes else [])]


@dataclass(frozen=True, slots=True)
class _Schema:
    """The SQL of a table. `columns`: the type of each in Spark, by name. `keys` are sorted."""

    table: str
    columns: dict[str, str]
    keys: tuple[str, ...]

    @property
    def rows(self) -> str:
        """The name of the table of all rows."""
        return _quote(f"{self.table}_rows")

    @property
    def changes(self) -> str:
        """The name of the changelog."""
        return _quote(f"{self.table}_changes")

    @property
    def note(self) -> str:
        """The name of the table that says which keys there are, and which batch was the last one."""
        return _quote(f"{self.table}_sink")

    @property
    def names(self) -> str:
        """The columns of the rows."""
        return ", ".join(map(_quote, self.columns))

    @property
    def newest(self) -> str:
        """Selects the row that counts of each key: the stable one, or else the tentative one that came last."""
        return (
            f"SELECT {_KEY}, {self.names}, {_IS_TENTATIVE} AS {_TENTATIVE} FROM {self.rows} r WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self.rows} s WHERE s.{_KEY} = r.{_KEY} AND s.{_ROW_ID} <> r.{_ROW_ID} "
            f"AND (s.{EPOCH} = '{_NO_EPOCH}' OR r.{_IS_TENTATIVE} AND s.{_ROW_ID} > r.{_ROW_ID}))"
        )

    @property
    def declared(self) -> dict[str, str]:
        """The SQL that makes each table, view and index, by its name. The changelog is apart."""
        kinds = "".join(f", {_quote(name)} {_sqlite_type(kind)}" for name, kind in self.columns.items())
        t = self.table
        return {
            f"{t}_sink": f"CREATE TABLE {self.note} (query TEXT, batch INTEGER, keys TEXT)",
            f"{t}_rows": f"CREATE TABLE {self.rows} "
            f"({_KEY} TEXT NOT NULL, {EPOCH} TEXT NOT NULL{kinds}, PRIMARY KEY ({_KEY}, {EPOCH}))",
            # Without it, an undo would read all stable rows.
            f"{t}_epochs": f"CREATE INDEX {_quote(f'{t}_epochs')} ON {self.rows} ({EPOCH}) WHERE {_IS_TENTATIVE}",
            t: f"CREATE VIEW {_quote(t)} AS SELECT {self.names}, {_TENTATIVE} FROM ({self.newest})",
        }

    @property
    def changelog(self) -> str:
        """The SQL that makes the changelog."""
        kinds = "".join(f", {_quote(name)} {_sqlite_type(kind)}" for name, kind in self.columns.items())
        return (
            f"CREATE TABLE {self.changes} ({_CHANGE} INTEGER PRIMARY KEY AUTOINCREMENT, {_CHANGE_TYPE} TEXT NOT NULL, "
            f"{_BATCH} INTEGER{kinds}, {_TENTATIVE} INTEGER NOT NULL)"
        )


class ChangesTable:
    """A table of stable and tentative rows. `columns`: the type of each in Spark, by name. `keys` tell rows apart.

    `changes`: it gets a changelog, if it has none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str,
        columns: Mapping[str, str],
        keys: Collection[str],
        *,
        changes: bool = False,
    ) -> None:
        self._connection = connection
        self._schema = _Schema(table, dict(columns), tuple(sorted(keys)))
        self._with_changes = changes

    def apply(
        self, rows: Iterable[Mapping[str, Any]], batch: int, query: str, is_over: Callable[[], bool] = lambda: True
    ) -> None:
        """Applies the rows of a batch of a query, whose id is `query`; "" if that is not known.

        Rows of another query are taken back if they are tentative. `is_over`: whether the query has planned a later
        batch. It is asked about a batch that is older than the last one. If so, the batch is of a driver that was
        paused. Its stable rows alone count, because an epoch that it takes back may have come again. If not, the
        checkpoint was taken back. No batch will take back the tentative rows of the batches since, so all go. Raises
        `ChangesError` for a table that was made otherwise, or for rows of no known kind.
        """
        # Spark computes rows while they are read. So this comes first: no other connection waits for it.
        with _transaction(self._connection, "BEGIN"):
            self._stage(rows)
        with _transaction(self._connection, "BEGIN IMMEDIATE"):
            last_query, last_batch = self._open()
            logs = self._open_changelog(batch)
            begins = query != last_query or (query == "" and batch == 0)
            is_behind = not begins and batch < last_batch
            is_old = is_behind and is_over()
            begins = begins or (is_behind and not is_old)
            if is_old:
                self._run(f"DELETE FROM temp.staged WHERE {_IS_TENTATIVE}")
                self._run("DELETE FROM temp.undone")
            self._find_touched(begins=begins)
            self._run(f"CREATE TEMP TABLE was AS {self._find_rows()}")
            self._change(begins=begins)
            if logs:
                self._log(batch)
            self._run(f"UPDATE {self._schema.note} SET query = ?, batch = ?", query, last_batch if is_old else batch)

    def _run(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def _stage(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Reads all rows into a table of this connection."""
        schema = self._schema
        for name in ("staged", "undone", "touched", "was"):  # of the batch before
            self._run(f"DROP TABLE IF EXISTS temp.{name}")
        self._run(f"CREATE TEMP TABLE staged ({_KEY}, {EPOCH}, {schema.names}, PRIMARY KEY ({_KEY}, {EPOCH}))")
        self._run(f"CREATE TEMP TABLE undone ({EPOCH})")
        put = f"INSERT OR REPLACE INTO staged VALUES ({', '.join('?' * (2 + len(schema.columns)))})"
        for row in rows:
            kind, epoch = row[KIND], row[EPOCH]
            if kind not in (_STABLE, _TENTATIVE, _UNDO) or (kind != _STABLE and not epoch):
                raise ChangesError(
                    f"a row for {schema.table} has {KIND}={kind!r} and {EPOCH}={epoch!r}: leave both columns as they "
                    f"come"
                )
            if kind == _UNDO:
                self._run("INSERT INTO undone VALUES (?)", epoch)
                continue
            values = {name: _to_sqlite(row[name], of) for name, of in schema.columns.items()}
            key = json.dumps([values[name] for name in schema.keys], default=repr)
            self._run(put, key, _NO_EPOCH if kind == _STABLE else epoch, *values.values())

    def _open(self) -> tuple[str | None, int]:
        """Makes the tables, or checks those that are there. Answers the last query and batch; None and -1 at first."""
        schema, declared = self._schema, self._schema.declared
        there = self._find_made(declared)
        if not there:
            for sql in declared.values():
                self._run(sql)
            self._run(f"INSERT INTO {schema.note} VALUES (NULL, -1, ?)", json.dumps(schema.keys))
            return None, -1
        self._check(there, declared)
        query, batch, keys = self._run(f"SELECT query, batch, keys FROM {schema.note}").fetchone()
        if tuple(json.loads(keys)) != schema.keys:
            was = ", ".join(json.loads(keys))
            raise ChangesError(
                f"the table {schema.table} was made with the keys {was}, and its sink has {', '.join(schema.keys)}: "
                f"{self._mend(declared)}"
            )
        return query, batch

    def _open_changelog(self, batch: int) -> bool:
        """Whether there is a changelog. A new one begins with all rows, so that it has the whole view."""
        schema = self._schema
        declared = {f"{schema.table}_changes": schema.changelog}
        there = self._find_made(declared)
        if there:
            self._check(there, declared)
        elif self._with_changes:
            self._run(schema.changelog)
            self._run(
                f"INSERT INTO {schema.changes} ({_CHANGE_TYPE}, {_BATCH}, {schema.names}, {_TENTATIVE}) "
                f"SELECT 'insert', ?, * FROM main.{_quote(schema.table)}",
                batch,
            )
        return bool(there) or self._with_changes

    def _find_made(self, names: Collection[str]) -> dict[str, str]:
        """The SQL of those tables, views and indexes that are there. SQLite ignores the case of names."""
        wanted = {name.lower() for name in names}
        made = self._run("SELECT name, sql FROM sqlite_master").fetchall()
        return {name: sql for name, sql in made if name.lower() in wanted}

    def _check(self, there: Mapping[str, str], declared: Mapping[str, str]) -> None:
        """Nothing may be otherwise than this makes it: a view of another table, say, would show other rows."""
        for name, sql in there.items():
            if declared.get(name) != sql:
                own = next(own for each, own in declared.items() if each.lower() == name.lower())
                raise ChangesError(
                    f"{name} is there as {sql}, and the sink of the table {self._schema.table} makes it by {own}: "
                    f"{self._mend(there)}"
                )
        for name in declared.keys() - there.keys():
            raise ChangesError(
                f"{name} is missing, which the sink of the table {self._schema.table} has made: {self._mend(there)}"
            )

    def _mend(self, there: Collection[str]) -> str:
        return f"give the sink another table, or drop {', '.join(there)}"

    def _find_touched(self, *, begins: bool) -> None:
        """The keys that may change. `begins`: all tentative rows that are there go."""
        gone = _IS_TENTATIVE + ("" if begins else f" AND {EPOCH} IN (SELECT {EPOCH} FROM undone)")
        self._run(f"CREATE TEMP TABLE touched ({_KEY} PRIMARY KEY)")
        taken_back = f"SELECT {_KEY} FROM {self._schema.rows} WHERE {gone}"
        self._run(f"INSERT INTO touched SELECT {_KEY} FROM staged UNION {taken_back}")

    def _find_rows(self) -> str:
        """Selects the rows that count of the keys that may change."""
        return f"{self._schema.newest} AND r.{_KEY} IN (SELECT {_KEY} FROM touched)"

    def _change(self, *, begins: bool) -> None:
        schema = self._schema
        if begins:
            self._run(f"DELETE FROM {schema.rows} WHERE {_IS_TENTATIVE}")
        rows = f"SELECT {_KEY}, {EPOCH}, {schema.names} FROM staged"
        self._run(f"INSERT OR REPLACE INTO {schema.rows} ({_KEY}, {EPOCH}, {schema.names}) {rows}")
        # Last, because rows come in any order.
        undone = f"{EPOCH} IN (SELECT {EPOCH} FROM undone)"
        self._run(f"DELETE FROM {schema.rows} WHERE {_IS_TENTATIVE} AND {undone}")

    def _log(self, batch: int) -> None:
        """Compares each key before and after, so a batch that comes again adds nothing."""
        schema = self._schema
        values = [*map(_quote, schema.columns), _TENTATIVE]
        differs = "({}) IS NOT ({})".format(*(", ".join(f"{side}.{each}" for each in values) for side in ("w", "n")))

        def select(side: str, alone: str, updated: str) -> str:
            columns = ", ".join(f"{side}.{each} AS {each}" for each in values)
            other = "n" if side == "w" else "w"
            kind = f"CASE WHEN {other}.{_KEY} IS NULL THEN '{alone}' ELSE '{updated}' END"
            tables = {"w": "was", "n": f"({self._find_rows()})"}
            return (
                f"SELECT {side}.{_KEY} AS {_KEY}, {int(side == 'n')} AS {_CHANGE}, {kind} AS {_CHANGE_TYPE}, {columns} "
                f"FROM {tables[side]} {side} LEFT JOIN {tables[other]} {other} ON n.{_KEY} = w.{_KEY} WHERE {differs}"
            )

        was, now = select("w", "delete", "update_preimage"), select("n", "insert", "update_postimage")
        self._run(
            f"INSERT INTO {schema.changes} ({_CHANGE_TYPE}, {_BATCH}, {', '.join(values)}) "
            f"SELECT {_CHANGE_TYPE}, ?, {', '.join(values)} FROM ({was} UNION ALL {now}) ORDER BY {_KEY}, {_CHANGE}",
            batch,
        )


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commits at its end, or takes all back."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself takes back what does not fit on the disk
            connection.execute("ROLLBACK")
        raise


def _sqlite_type(kind: str) -> str:
    return _SQLITE_TYPES.get(kind, "TEXT")


def _to_sqlite(value: Any, kind: str) -> Any:
    if isinstance(value, datetime) and kind == "timestamp":
        # Spark gives it in the zone of this process, and without a zone.
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return value + 0.0  # Spark takes 0.0 and -0.0 for one key
    return bytes(value) if isinstance(value, bytearray) else value


def _quote(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
