"""Tables of stable and tentative rows, compared with a model: stable rows, and those of the newest epoch.

The changelog of such a table, folded, is the table after each batch.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cec.pipeline import changes as changes_module
from spark_cec.pipeline.changes import apply_changes, check_columns
from spark_cec.pipeline.changes_table import ChangesError, ChangesTable
from testbed.changelog import fold_changes

COLUMNS = {"page": "string", "n": "bigint"}
SHOWN = ["page", "n", "tentative"]
QUERY = "6f0c"

Change = dict[str, Any]


def row(kind: str, epoch: str | None, page: str | None = None, n: int | None = None) -> Change:
    return {"_kind": kind, "_epoch": epoch, "page": page, "n": n}


def shown(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    found = connection.execute("SELECT page, n, tentative FROM board").fetchall()
    assert len(found) == len(set(found))
    return set(found)


def logged(connection: sqlite3.Connection, batch: int) -> list[tuple[Any, ...]]:
    query = "SELECT _change_type, page, n, tentative FROM board_changes WHERE _batch = ? ORDER BY _change"
    return connection.execute(query, [batch]).fetchall()


@pytest.fixture
def connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def table_of(connection: sqlite3.Connection, *, changes: bool = False) -> ChangesTable:
    return ChangesTable(connection, "board", COLUMNS, ["page"], changes=changes)


def test_a_tentative_row_shows_until_the_stable_one_is_there(connection: sqlite3.Connection) -> None:
    board = table_of(connection)
    first = [row("tentative", "f/1", "a", 3), row("tentative", "f/1", "b", 1), row("stable", None, "z", 9)]
    board.apply(first, 0, QUERY)
    assert shown(connection) == {("a", 3, 1), ("b", 1, 1), ("z", 9, 0)}
    board.apply([row("stable", None, "a", 4)], 1, QUERY)
    assert shown(connection) == {("a", 4, 0), ("b", 1, 1), ("z", 9, 0)}
    board.apply([row("undo", "f/1"), row("tentative", "f/2", "c", 5)], 2, QUERY)
    assert shown(connection) == {("a", 4, 0), ("c", 5, 1), ("z", 9, 0)}


class Model:
    """Draws the batches of a stream, and knows the right answer. Keys may be null."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._stable: dict[str | None, int] = {}
        self._tentative: dict[str | None, int] = {}
        self._epoch: int | None = None
        self._number = 0

    def draw(self) -> list[Change]:
        pages, chance, changes = [None, *"abcdefgh"], self.chance, list[Change]()
        new = {page: chance.randrange(9) for page in pages if page not in self._stable and chance.random() < 0.1}
        self._stable |= new
        changes += [row("stable", None, page, n) for page, n in new.items()]
        if self._epoch is not None and chance.random() < 0.4:
            changes.append(row("undo", f"f/{self._epoch}"))
            self._epoch, self._tentative = None, {}
        if self._epoch is None and chance.random() < 0.5:  # in the same batch, too
            self._epoch = self._number = self._number + 1
        if self._epoch is not None:
            left = [page for page in pages if page not in self._tentative and chance.random() < 0.3]
            more = {page: chance.randrange(9) for page in left}
            self._tentative |= more
            changes += [row("tentative", f"f/{self._epoch}", page, n) for page, n in more.items()]
        chance.shuffle(changes)
        return changes

    def begin_again(self) -> None:
        """Another query has read no tentative row."""
        self._epoch, self._tentative = None, {}

    @property
    def rows(self) -> set[tuple[Any, ...]]:
        tentative = {(page, n, 1) for page, n in self._tentative.items() if page not in self._stable}
        return tentative | {(page, n, 0) for page, n in self._stable.items()}


@pytest.mark.parametrize("seed", range(40))
def test_random_changes_as_the_model(seed: int, connection: sqlite3.Connection) -> None:
    """Batches come again, whole or without tentative rows that are gone; old ones, too; another query begins."""
    model, board, batches, query = Model(seed), table_of(connection, changes=True), list[list[Change]](), 0
    for _ in range(40):
        if batches and model.chance.random() < 0.05:
            model.begin_again()
            batches, query = [], query + 1
        batches.append(model.draw())
        number = len(batches) - 1
        board.apply(batches[-1], number, f"query {query}")
        if model.chance.random() < 0.3:
            fewer = [each for each in batches[-1] if each["_kind"] != "tentative" or model.chance.random() < 0.5]
            board.apply(fewer, number, f"query {query}")
        if model.chance.random() < 0.2:
            old = model.chance.randrange(len(batches))
            board.apply(batches[old], old, f"query {query}")
        assert shown(connection) == model.rows, f"seed={seed} batch={number} of query {query}"
        assert fold_changes(connection, "board", SHOWN) == Counter(model.rows), f"seed={seed} batch={number}"


def test_the_changelog_says_how_each_key_changed(connection: sqlite3.Connection) -> None:
    board = table_of(connection, changes=True)

    def changed(batch: int, *rows: Change) -> list[tuple[Any, ...]]:
        for _ in range(2):  # the second time it changes nothing
            board.apply(rows, batch, QUERY)
        return logged(connection, batch)

    first = [row("tentative", "f/1", page, n) for page, n in (("a", 3), ("b", 1), ("c", 2))]
    assert changed(4, *first) == [("insert", "a", 3, 1), ("insert", "b", 1, 1), ("insert", "c", 2, 1)]
    assert changed(5, row("stable", None, "a", 3), row("stable", None, "b", 2)) == [
        ("update_preimage", "a", 3, 1), ("update_postimage", "a", 3, 0),
        ("update_preimage", "b", 1, 1), ("update_postimage", "b", 2, 0),
    ]  # fmt: skip
    assert changed(6, row("undo", "f/1"), row("tentative", "f/2", "c", 2), row("tentative", "f/2", "d", 7)) == [
        ("insert", "d", 7, 1)
    ]
    assert changed(7, row("undo", "f/2")) == [("delete", "c", 2, 1), ("delete", "d", 7, 1)]
    assert changed(8, row("undo", "f/2")) == []


def test_of_two_epochs_of_a_key_the_one_that_came_last_shows(connection: sqlite3.Connection) -> None:
    board = table_of(connection, changes=True)
    for batch, (change, expected) in enumerate([
        (row("tentative", "f/1", "a", 1), {("a", 1, 1)}),
        (row("tentative", "g/1", "a", 2), {("a", 2, 1)}),
        (row("undo", "g/1"), {("a", 1, 1)}),
    ]):  # fmt: skip
        board.apply([change], batch, QUERY)
        assert shown(connection) == expected
        assert fold_changes(connection, "board", SHOWN) == Counter(expected)


def test_a_changelog_that_begins_later_has_the_whole_table_and_does_not_stop(connection: sqlite3.Connection) -> None:
    table_of(connection).apply([row("stable", None, "z", 1), row("tentative", "f/1", "a", 1)], 0, QUERY)
    table_of(connection, changes=True).apply([row("stable", None, "a", 2)], 1, QUERY)
    assert fold_changes(connection, "board", SHOWN) == Counter(shown(connection))
    table_of(connection).apply([row("stable", None, "b", 3)], 2, QUERY)
    assert fold_changes(connection, "board", SHOWN) == Counter({("z", 1, 0): 1, ("a", 2, 0): 1, ("b", 3, 0): 1})


@pytest.mark.parametrize("changes", [False, True])
def test_a_batch_that_fails_changes_nothing(changes: bool, connection: sqlite3.Connection) -> None:
    board = table_of(connection, changes=changes)
    board.apply([row("stable", None, "a", 1)], 0, QUERY)
    with pytest.raises(KeyError):
        board.apply([row("stable", None, "b", 2), {"_kind": "stable"}], 1, QUERY)
    assert shown(connection) == {("a", 1, 0)}
    board.apply([row("stable", None, "b", 3)], 1, QUERY)
    assert shown(connection) == {("a", 1, 0), ("b", 3, 0)}


class Disk:
    """A database with a bound for its size, and what `foreachBatch` hands over."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.most_pages, self._connect = path, 1 << 30, sqlite3.connect
        self._apply: Any = apply_changes(str(path), "board", ["page"], changes=True)
        patch.setattr(changes_module, "sqlite3", SimpleNamespace(connect=self._open, Error=sqlite3.Error))

    def _open(self, database: str, patience_s: float, isolation_level: None) -> sqlite3.Connection:
        connection = self._connect(database, patience_s, isolation_level=isolation_level)
        connection.execute(f"PRAGMA max_page_count = {self.most_pages}")
        return connection

    def apply(self, rows: list[Change], batch: int) -> None:
        kinds = {"_kind": "string", "_epoch": "string", **COLUMNS}
        schema = [SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
                  for name, kind in kinds.items()]  # fmt: skip
        context = SimpleNamespace(getLocalProperty=lambda _: QUERY)
        taken = [SimpleNamespace(asDict=lambda recursive, row=row: row) for row in rows]
        self._apply(SimpleNamespace(
            schema=schema, sparkSession=SimpleNamespace(sparkContext=context), toLocalIterator=lambda: iter(taken)
        ), batch)  # fmt: skip

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self._connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    @property
    def content(self) -> list[list[tuple[Any, ...]]]:
        tables = ("board_rows", "board_changes", "board_sink")
        return [self.read(f"SELECT * FROM {each} ORDER BY 1, 2") for each in tables]


def test_a_full_disk_is_named_and_the_batch_may_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever statement finds no room. The second batch has stable and tentative rows, and takes others back."""
    many = [row("tentative", "f/2", f"{each:0200}", each) for each in range(300)]
    batches = [
        [row("stable", None, "a", 1), *(row("tentative", "f/1", f"{each:0200}", 7) for each in range(40))],
        [row("undo", "f/1"), row("stable", None, f"{5:0200}", 2), *many],
        [row("undo", "f/2"), row("stable", None, "b", 3)],
    ]
    with monkeypatch.context() as patch:
        calm = Disk(tmp_path / "calm.db", patch)
        contents, pages = [], []
        for number, rows in enumerate(batches):
            calm.apply(rows, number)
            contents.append(calm.content)
            pages.append(calm.read("PRAGMA page_count")[0][0])
    full = Disk(tmp_path / "full.db", monkeypatch)
    refused = 0
    for number, rows in enumerate(batches):
        before = [] if number == 0 else contents[number - 1]
        for full.most_pages in range(1 if number == 0 else pages[number - 1], pages[number], 7):
            with pytest.raises(ChangesError, match=r"table board in .*full\.db cannot be written: .*full; .*make room"):
                full.apply(rows, number)
            refused += 1
            there = full.read("SELECT count(*) FROM sqlite_master")[0][0]
            assert full.content == before if before else there == 0, f"at {full.most_pages} pages"
        full.most_pages = 1 << 30
        for _ in range(2):
            full.apply(rows, number)
            assert full.content == contents[number]
    assert refused > 10


@pytest.mark.parametrize("takes_back", [False, True])
def test_what_does_not_fit_is_taken_back_once(takes_back: bool, connection: sqlite3.Connection) -> None:
    """If a whole disk is full, SQLite may take a transaction back by itself, and then there is none to take back."""
    table_of(connection).apply([row("stable", None, "a", 1)], 0, QUERY)

    def fill() -> Iterator[Change]:
        yield row("stable", None, "b", 1)
        if takes_back:
            connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        table_of(connection).apply(fill(), 1, QUERY)
    assert shown(connection) == {("a", 1, 0)} and not connection.in_transaction


def test_a_query_that_begins_anew_has_no_tentative_row_of_an_earlier_one(connection: sqlite3.Connection) -> None:
    board = table_of(connection)
    board.apply([row("tentative", "f/7", "a", 1), row("stable", None, "b", 2)], 9, "the first")
    board.apply([row("tentative", "f/1", "c", 1)], 0, "the second")
    assert shown(connection) == {("b", 2, 0), ("c", 1, 1)}
    board.apply([row("tentative", "f/1", "d", 1)], 1, "the second")
    assert shown(connection) == {("b", 2, 0), ("c", 1, 1), ("d", 1, 1)}


def test_a_query_without_a_known_id_begins_with_batch_0(connection: sqlite3.Connection) -> None:
    board = table_of(connection)
    board.apply([row("tentative", "f/7", "a", 1)], 9, "")
    board.apply([row("tentative", "f/7", "b", 1)], 10, "")
    assert shown(connection) == {("a", 1, 1), ("b", 1, 1)}
    board.apply([row("tentative", "f/1", "c", 1)], 0, "")
    assert shown(connection) == {("c", 1, 1)}


def test_tentative_rows_of_a_batch_that_comes_too_late_do_not_count(connection: sqlite3.Connection) -> None:
    """A driver was paused in it, and another one has gone on meanwhile. Stable rows are the same each time."""
    board = table_of(connection)
    late = [row("tentative", "f/1", "a", 1), row("stable", None, "b", 2)]
    board.apply(late, 5, QUERY)
    board.apply([row("undo", "f/1"), row("tentative", "f/2", "c", 3)], 6, QUERY)
    board.apply(late, 5, QUERY)
    assert shown(connection) == {("b", 2, 0), ("c", 3, 1)}
    board.apply([row("undo", "f/2")], 5, QUERY, lambda: False)
    assert shown(connection) == {("b", 2, 0)}, "a checkpoint that was taken back says it in another batch"


def test_a_batch_that_comes_too_late_takes_nothing_back(connection: sqlite3.Connection) -> None:
    """An epoch may be read again after it was taken back: by buckets, or in the other replica."""
    board, late = table_of(connection, changes=True), [row("undo", "f/1"), row("stable", None, "b", 2)]
    board.apply([row("tentative", "f/1", "a", 1)], 4, QUERY)
    board.apply(late, 5, QUERY)
    board.apply([row("tentative", "f/1", "c", 3)], 6, QUERY)
    board.apply(late, 5, QUERY)
    assert shown(connection) == {("b", 2, 0), ("c", 3, 1)}
    assert fold_changes(connection, "board", SHOWN) == Counter(shown(connection))


def test_a_checkpoint_that_was_taken_back_brings_new_tentative_rows(connection: sqlite3.Connection) -> None:
    """No batch takes back the epoch that only the batches since have read."""
    board = table_of(connection, changes=True)
    board.apply([row("stable", None, "z", 9), row("tentative", "f/2", "x", 1)], 7, QUERY)
    board.apply([row("tentative", "f/2", "y", 2)], 9, QUERY)
    board.apply([row("tentative", "f/3", "c", 3)], 5, QUERY, lambda: False)
    assert shown(connection) == {("z", 9, 0), ("c", 3, 1)}
    board.apply([row("undo", "f/3"), row("tentative", "f/4", "d", 4)], 6, QUERY, lambda: False)
    assert shown(connection) == {("z", 9, 0), ("d", 4, 1)}
    assert fold_changes(connection, "board", SHOWN) == Counter(shown(connection))


def test_a_batch_that_spark_computes_holds_nobody_back(tmp_path: Path) -> None:
    def write(name: str) -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / name, timeout=0, isolation_level=None)

    def compute() -> Iterator[Change]:
        yield row("stable", None, "a", 1)
        other = write("board.db")
        other.execute("CREATE TABLE mine (x)")
        other.execute("INSERT INTO mine VALUES (1)")
        other.close()
        yield row("stable", None, "b", 1)

    connection = write("board.db")
    table_of(connection).apply(compute(), 0, QUERY)
    assert shown(connection) == {("a", 1, 0), ("b", 1, 0)}
    connection.close()


def test_a_batch_reads_no_more_rows_than_it_changes(connection: sqlite3.Connection) -> None:
    board, done = table_of(connection, changes=True), list[str]()
    board.apply([row("stable", None, "z", 1)], 0, QUERY)
    connection.set_trace_callback(done.append)
    board.apply([row("undo", "f/1"), row("stable", None, "a", 1), row("tentative", "f/2", "b", 2)], 1, QUERY)
    board.apply([row("tentative", "g/1", "b", 2)], 0, "another query")
    connection.set_trace_callback(None)
    told = 0
    for sql in done:
        if '"board_rows"' in sql and sql.startswith(("INSERT", "DELETE", "SELECT")):
            for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall():
                told += step[3].startswith("SEARCH")
                assert not re.match(r"SCAN (r|s|board_rows)\b", step[3]) or "board_epochs" in step[3], (sql, step[3])
    assert told > 5


def test_names_and_values_of_all_kinds(connection: sqlite3.Connection) -> None:
    columns = {
        'a "b"': "string", "t": "timestamp_ntz", "d": "date", "m": "decimal(20,10)", "x": "double", "y": "binary",
        "z": "boolean", "r": "string",
    }  # fmt: skip
    noon = datetime(2026, 11, 28, 12, 0, 0, 5)
    values = ["é'", noon, noon.date(), Decimal("0E-10"), 0.5, bytearray(b"\0"), True]
    board = ChangesTable(connection, "my board", columns, ['a "b"', "y"], changes=True)
    board.apply([{"_kind": "stable", "_epoch": None, **dict(zip(columns, [*values, None], strict=True))}], 0, QUERY)
    found = connection.execute('SELECT * FROM "my board"').fetchall()
    assert found == [("é'", "2026-11-28T12:00:00.000005", "2026-11-28", "0.0000000000", 0.5, b"\0", 1, None, 0)]
    assert connection.execute('SELECT * FROM "my board_changes"').fetchall() == [(1, "insert", 0, *found[0])]


def test_columns_of_any_name(connection: sqlite3.Connection) -> None:
    names = ["kind", "place", "key", "rowid", "oid", "batch", "k", "w", "n", "s", "r"]
    board = ChangesTable(connection, "staged", dict.fromkeys(names, "bigint"), ["key"], changes=True)
    for batch, (kind, epoch, value) in enumerate([("tentative", "f/1", 7), ("stable", None, 8)]):
        values = {**dict.fromkeys(names, value), "key": 1, "rowid": 5}
        board.apply([{"_kind": kind, "_epoch": epoch, **values}], batch, QUERY)
    found = connection.execute(f"SELECT {', '.join(names)}, tentative FROM main.staged").fetchall()
    assert found == [(8, 8, 1, 5, 8, 8, 8, 8, 8, 8, 8, 0)]
    log = connection.execute(f"SELECT _change_type, {', '.join(names)}, tentative FROM staged_changes").fetchall()
    old, new = (7, 7, 1, 5, 7, 7, 7, 7, 7, 7, 7, 1), found[0]
    assert log == [("insert", *old), ("update_preimage", *old), ("update_postimage", *new)]


def test_keys_that_spark_takes_for_one_and_those_that_it_tells_apart(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", {"x": "double", "n": "bigint"}, ["x"], changes=True)
    for batch, (x, n) in enumerate([(0.0, 1), (-0.0, 2), (math.nan, 3), (None, 4), (math.inf, 5)]):
        board.apply([{"_kind": "stable", "_epoch": None, "x": x, "n": n}], batch, QUERY)
    found = Counter(connection.execute("SELECT x, n FROM board").fetchall())
    assert found == Counter([(0.0, 2), (None, 3), (None, 4), (math.inf, 5)])
    assert fold_changes(connection, "board", ["x", "n"]) == found


@pytest.mark.parametrize(
    ("columns", "keys", "why"),
    [
        ({"a": "string"}, ["b"], r"key 'b' is no column of the rows for board"),
        ({"a": "struct<b:int>"}, ["a"], r"column a of the rows for board is struct<b:int>, which SQLite does not have"),
        ({"a": "string", "A": "int"}, ["a"], r"column A of the rows for board has a name"),
        ({"a": "string", "_KEY": "int"}, ["a"], r"column _KEY of the rows for board has a name"),
        ({"a": "string", "_batch": "int"}, ["a"], r"column _batch of the rows for board has a name"),
        ({"a": "string", "tentative": "int"}, ["a"], r"column tentative of the rows for board has a name"),
    ],
)
def test_rows_that_no_table_can_have_are_named(columns: dict[str, str], keys: list[str], why: str) -> None:
    with pytest.raises(ChangesError, match=why):
        check_columns("board", {**columns, "_kind": "string", "_epoch": "string"}, keys, changes=True)


def test_a_column_may_have_a_name_of_the_changelog_if_there_is_none() -> None:
    types = {"a": "string", "_batch": "int", "_kind": "string", "_epoch": "string"}
    assert check_columns("board", types, ["a"]) == {"a": "string", "_batch": "int"}


@pytest.mark.parametrize("keys", ["page", [], ""])
def test_keys_that_are_none_are_named_at_once(keys: Any) -> None:
    with pytest.raises(ChangesError, match=re.escape(f"keys={keys!r} for board: give a list")):
        apply_changes("/tmp/board.db", "board", keys)


def test_rows_without_a_kind_are_named() -> None:
    with pytest.raises(ChangesError, match="lack the columns _kind and _epoch"):
        check_columns("board", {"a": "string"}, ["a"])


@pytest.mark.parametrize(("kind", "epoch"), [("tentative", None), ("undo", None), ("Stable", None), (None, "f/1")])
def test_rows_of_no_known_kind_are_named(kind: str | None, epoch: str | None, connection: sqlite3.Connection) -> None:
    with pytest.raises(ChangesError, match=f"a row for board has _kind={kind!r} and _epoch={epoch!r}"):
        table_of(connection).apply([{**row("", epoch, "a", 1), "_kind": kind}], 0, QUERY)
    assert made(connection) == []


def made(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY 1").fetchall()


@pytest.mark.parametrize(
    ("columns", "keys", "why"),
    [
        ({"page": "string"}, ["page"], "board_rows is there as CREATE TABLE"),
        ({**COLUMNS, "price": "double"}, ["page"], "board_rows is there as CREATE TABLE"),
        ({"page": "string", "n": "string"}, ["page"], "board_rows is there as CREATE TABLE"),
        (COLUMNS, ["page", "n"], "board was made with the keys page, and its sink has n, page: give the sink another"),
    ],
)
def test_a_table_that_was_made_otherwise_is_named(
    columns: dict[str, str], keys: list[str], why: str, connection: sqlite3.Connection
) -> None:
    table_of(connection).apply([row("stable", None, "a", 1)], 0, QUERY)
    before = made(connection)
    with pytest.raises(ChangesError, match=why):
        ChangesTable(connection, "board", columns, keys, changes=True).apply([], 1, QUERY)
    assert made(connection) == before and shown(connection) == {("a", 1, 0)}


def test_the_order_of_keys_does_not_count(connection: sqlite3.Connection) -> None:
    for batch, keys in enumerate((["page", "n"], ["n", "page"])):
        ChangesTable(connection, "board", COLUMNS, keys).apply([row("stable", None, "a", 1)], batch, QUERY)
    assert shown(connection) == {("a", 1, 0)}


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE board (page, n, tentative)",
        "CREATE VIEW Board AS SELECT 1 AS page, 2 AS n, 0 AS tentative",
        "CREATE TABLE board_epochs (x)",
        "CREATE TABLE board_rows (page, n)",
        "CREATE TABLE board_sink (x)",
        "CREATE TABLE board_changes (page TEXT, n INTEGER)",
    ],
)
def test_names_that_are_taken_are_named_and_nothing_is_made(other: str, connection: sqlite3.Connection) -> None:
    connection.execute(other)
    before = made(connection)
    with pytest.raises(ChangesError, match=re.escape(f"is there as {other}, and the sink")) as error:
        table_of(connection, changes=True).apply([row("stable", None, "a", 1)], 0, QUERY)
    assert "give the sink another table, or drop " in str(error.value)
    assert made(connection) == before


def test_what_was_dropped_is_named(connection: sqlite3.Connection) -> None:
    table_of(connection).apply([row("stable", None, "a", 1)], 0, QUERY)
    connection.execute("DROP INDEX board_epochs")
    with pytest.raises(ChangesError, match="board_epochs is missing, which the sink of the table board has made"):
        table_of(connection).apply([row("stable", None, "b", 1)], 1, QUERY)


def test_two_sinks_whose_tables_have_the_same_names(connection: sqlite3.Connection) -> None:
    for first, second in (("board", "board_rows"), ("board_rows", "board"), ("board", "Board")):
        there = sqlite3.connect(":memory:", isolation_level=None)
        ChangesTable(there, first, COLUMNS, ["page"]).apply([row("stable", None, "a", 1)], 0, QUERY)
        with pytest.raises(ChangesError, match="is there as CREATE"):
            ChangesTable(there, second, COLUMNS, ["page"]).apply([row("stable", None, "b", 1)], 0, QUERY)
        there.close()
