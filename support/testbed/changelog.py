"""The rows of a table, by the changelog alone that `apply_changes` keeps."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any


def fold_changes(database: sqlite3.Connection, table: str, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """The rows after all changes. Raises `AssertionError` if a row goes that is not there."""
    rows = Counter[tuple[Any, ...]]()
    query = f"SELECT _change_type, {', '.join(columns)} FROM {table}_changes ORDER BY _change"
    for kind, *row in database.execute(query).fetchall():
        comes = kind in ("insert", "update_postimage")
        assert comes or kind in ("delete", "update_preimage"), kind
        assert comes or rows[tuple(row)] > 0, (kind, row)
        rows[tuple(row)] += 1 if comes else -1
    return +rows
