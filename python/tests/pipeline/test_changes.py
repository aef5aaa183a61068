"""Tables of stable and tentative rows, compared with a model: stable rows, and those of the newest epoch.

The changelog of such a table, folded, is the table after each batch.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from spark_cec.pipeline.changes import ChangesError, ChangesTable, check_columns
from testbed.changelog import fold_changes

COLUMNS = {"page": "string", "n": "bigint"}
SHOWN = ["page", "n", "tentative"]


def row(kind: str, epoch: str | None, page: str | None = None, n: int | None = None) -> dict[str, Any]:
    return {"_kind": kind, "_epoch": epoch, "page": page, "n": n}


def shown(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return set(connection.execute("SELECT page, n, tentative FROM board").fetchall())


@pytest.fixture
def connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def test_a_tentative_row_shows_until_the_stable_one_is_there(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", COLUMNS, ["page"])
    first = [row("tentative", "f/1", "a", 3), row("tentative", "f/1", "b", 1), row("stable", None, "z", 9)]
    board.apply(first, 0)
    assert shown(connection) == {("a", 3, 1), ("b", 1, 1), ("z", 9, 0)}
    board.apply([row("stable", None, "a", 4)], 1)
    assert shown(connection) == {("a", 4, 0), ("b", 1, 1), ("z", 9, 0)}
    board.apply([row("undo", "f/1"), row("tentative", "f/2", "c", 5)], 1)
    assert shown(connection) == {("a", 4, 0), ("c", 5, 1), ("z", 9, 0)}


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_as_the_model(seed: int, connection: sqlite3.Connection) -> None:
    """Also with batches that come twice, rows in any order, and keys that are null."""
    chance = random.Random(seed)
    board = ChangesTable(connection, "board", COLUMNS, ["page"], changes=True)
    stable: dict[str | None, int] = {}
    epoch, tentative, number = None, dict[str | None, int](), 0
    pages = [None, *"abcdefgh"]
    for batch in range(40):
        changes = []
        new = {page: chance.randrange(9) for page in pages if page not in stable and chance.random() < 0.1}
        stable |= new
        changes += [row("stable", None, page, n) for page, n in new.items()]
        if epoch is not None and chance.random() < 0.4:
            changes.append(row("undo", epoch))
            epoch, tentative = None, {}
        elif epoch is None and chance.random() < 0.5:
            number += 1
            epoch = f"f/{number}"
        if epoch is not None:
            more = {page: chance.randrange(9) for page in pages if page not in tentative and chance.random() < 0.3}
            tentative |= more
            changes += [row("tentative", epoch, page, n) for page, n in more.items()]
        chance.shuffle(changes)
        for _ in range(chance.choice([1, 1, 2])):
            board.apply(changes, batch)
        expected = {(page, n, 0) for page, n in stable.items()}
        expected |= {(page, n, 1) for page, n in tentative.items() if page not in stable}
        assert shown(connection) == expected, f"seed={seed} batch={batch}"
        assert fold_changes(connection, "board", SHOWN) == Counter(expected), f"seed={seed} batch={batch}"


def test_the_changelog_says_how_each_key_changed(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", COLUMNS, ["page"], changes=True)

    def changed(batch: int, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
        for _ in range(2):  # the second time it changes nothing
            board.apply(rows, batch)
        query = "SELECT _change_type, page, n, tentative FROM board_changes WHERE _batch = ? ORDER BY _change"
        return connection.execute(query, [batch]).fetchall()

    first = [row("tentative", "f/1", page, n) for page, n in (("a", 3), ("b", 1), ("c", 2))]
    assert changed(4, *first) == [("insert", "a", 3, 1), ("insert", "b", 1, 1), ("insert", "c", 2, 1)]
    assert changed(5, row("stable", None, "a", 3), row("stable", None, "b", 2)) == [
        ("update_preimage", "a", 3, 1), ("update_postimage", "a", 3, 0),
        ("update_preimage", "b", 1, 1), ("update_postimage", "b", 2, 0),
    ]  # fmt: skip
    assert changed(6, row("undo", "f/1")) == [("delete", "c", 2, 1)]
    assert changed(7, row("undo", "f/1")) == []


def test_a_batch_that_fails_leaves_no_change(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", COLUMNS, ["page"], changes=True)
    with pytest.raises(KeyError):
        board.apply([row("stable", None, "a", 2), {"_kind": "stable"}], 3)
    assert fold_changes(connection, "board", SHOWN) == Counter()
    board.apply([row("stable", None, "a", 2)], 3)
    assert fold_changes(connection, "board", SHOWN) == Counter({("a", 2, 0): 1})


def test_an_undo_reads_no_stable_row(connection: sqlite3.Connection) -> None:
    ChangesTable(connection, "board", COLUMNS, ["page"])
    query = "EXPLAIN QUERY PLAN DELETE FROM board_rows WHERE _epoch <> '' AND _epoch = ?"
    assert "USING INDEX board_epochs" in connection.execute(query, ["f/1"]).fetchone()[3]


def test_a_batch_that_fails_changes_nothing(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", COLUMNS, ["page"])
    board.apply([row("stable", None, "a", 1)], 0)
    with pytest.raises(KeyError):
        board.apply([row("stable", None, "b", 2), {"_kind": "stable"}], 1)
    assert shown(connection) == {("a", 1, 0)}


def test_a_query_that_begins_anew_has_no_tentative_row_of_an_earlier_one(connection: sqlite3.Connection) -> None:
    board = ChangesTable(connection, "board", COLUMNS, ["page"])
    board.apply([row("tentative", "f/7", "a", 1), row("stable", None, "b", 2)], 0)
    board.apply([row("tentative", "f/1", "c", 1)], 0)
    assert shown(connection) == {("b", 2, 0), ("c", 1, 1)}


def test_names_and_values_of_all_kinds(connection: sqlite3.Connection) -> None:
    columns = {
        'a "b"': "string", "t": "timestamp_ntz", "d": "date", "m": "decimal(5,2)", "x": "double", "y": "binary",
        "z": "boolean", "r": "string",
    }  # fmt: skip
    noon = datetime(2026, 11, 28, 12, 0, 0, 5)
    values = ["é'", noon, noon.date(), Decimal("1.50"), 0.5, bytearray(b"\0"), True]
    board = ChangesTable(connection, "my board", columns, ['a "b"', "y"])
    board.apply([{"_kind": "stable", "_epoch": None, **dict(zip(columns, [*values, None], strict=True))}], 1)
    found = connection.execute('SELECT * FROM "my board"').fetchall()
    assert found == [("é'", "2026-11-28T12:00:00.000005", "2026-11-28", "1.50", 0.5, b"\0", 1, None, 0)]


@pytest.mark.parametrize(
    ("columns", "keys", "why"),
    [
        ({"a": "string"}, [], r"keys=\[\] for board: name the columns"),
        ({"a": "string"}, ["b"], r"key 'b' is no column of the rows for board"),
        ({"a": "struct<b:int>"}, ["a"], r"column a of the rows for board is struct<b:int>, which SQLite does not have"),
        ({"a": "string", "A": "int"}, ["a"], r"column A of the rows for board has a name"),
        ({"a": "string", "_KEY": "int"}, ["a"], r"column _KEY of the rows for board has a name"),
        ({"a": "string", "_change_type": "int"}, ["a"], r"column _change_type of the rows for board has a name"),
        ({"a": "string", "tentative": "int"}, ["a"], r"column tentative of the rows for board has a name"),
    ],
)
def test_rows_that_no_table_can_have_are_named(columns: dict[str, str], keys: list[str], why: str) -> None:
    with pytest.raises(ChangesError, match=why):
        check_columns("board", {**columns, "_kind": "string", "_epoch": "string"}, keys)


def test_rows_without_a_kind_are_named() -> None:
    with pytest.raises(ChangesError, match="lack the columns _kind and _epoch"):
        check_columns("board", {"a": "string"}, ["a"])


def test_a_table_with_other_columns_is_named(connection: sqlite3.Connection) -> None:
    ChangesTable(connection, "board", COLUMNS, ["page"])
    ChangesTable(connection, "board", COLUMNS, ["page"])
    for other in ({"page": "string"}, {**COLUMNS, "price": "double"}):
        with pytest.raises(ChangesError, match=r"the table board_rows has the columns n, page, and .*: give another"):
            ChangesTable(connection, "board", other, ["page"])


def test_a_changelog_with_other_columns_is_named(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE board_changes (page TEXT)")
    with pytest.raises(ChangesError, match=r"the table board_changes has the columns page, and the rows have n, page"):
        ChangesTable(connection, "board", COLUMNS, ["page"], changes=True)
