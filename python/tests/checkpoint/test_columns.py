"""Columns of output that were written with another type are told from those that came, went, or may be null now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_cec.checkpoint.columns import (
    changed_columns,
    check_columns,
    find_column,
    first_type_change,
    with_former_columns,
)
from spark_cec.errors import ColumnChanged


def schema(**columns: Any) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def struct(**columns: Any) -> Any:
    return json.loads(schema(**columns))


def array(element: Any, *, nulls: bool = True) -> Any:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def mapped(key: Any, value: Any, *, nulls: bool = True) -> Any:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}


POINT, SWAPPED = struct(x="long", y="long"), struct(y="long", x="long")
UDT = {"type": "udt", "class": "a.B", "sqlType": "string"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("long", "timestamp", ("BIGINT", "TIMESTAMP")),
        ("timestamp", "timestamp_ntz", ("TIMESTAMP", "TIMESTAMP_NTZ")),
        ("integer", "long", ("INT", "BIGINT")),
        ("decimal(10,2)", "decimal(10,3)", ("DECIMAL(10,2)", "DECIMAL(10,3)")),
        (POINT, SWAPPED, ("STRUCT<x: BIGINT, y: BIGINT>", "STRUCT<y: BIGINT, x: BIGINT>")),
        (POINT, struct(x="long"), ("STRUCT<x: BIGINT, y: BIGINT>", "STRUCT<x: BIGINT>")),
        (array("integer"), array("date"), ("ARRAY<INT>", "ARRAY<DATE>")),
        (mapped("string", POINT), mapped("string", SWAPPED), (
            "MAP<STRING, STRUCT<x: BIGINT, y: BIGINT>>", "MAP<STRING, STRUCT<y: BIGINT, x: BIGINT>>",
        )),
        (UDT, "string", ('{"type": "udt", "class": "a.B", "sqlType": "string"}', "STRING")),
    ],
)  # fmt: skip
def test_another_type_is_named(before: Any, after: Any, said: tuple[str, str]) -> None:
    written, wanted = schema(n="long", c=before), schema(c=after, n="long")
    assert changed_columns(written, wanted) == [("c", *said)]
    with pytest.raises(ColumnChanged) as told:
        check_columns("/log", wanted, 7, written)
    assert f"/log: column c was written as {said[0]} with batch 7, and is wanted as {said[1]}" in str(told.value)


def test_another_spelling_is_the_same_column_unless_it_is_there_itself() -> None:
    """As Spark has it, where `spark.sql.caseSensitive` is off."""
    assert [find_column(name, ["Id", "n"]) for name in ("Id", "id", "ID", "N", "x")] == ["Id", "Id", "Id", "n", None]
    assert [find_column(name, ["Id", "id"]) for name in ("Id", "id", "ID")] == ["Id", "id", None]
    assert [find_column(name, ["Id"], exact=True) for name in ("Id", "id")] == ["Id", None]
    before, after = schema(Id="long"), schema(id="string")
    assert changed_columns(before, after) == [("id", "BIGINT", "STRING")]
    assert changed_columns(before, after, exact=True) == []
    assert changed_columns(before, schema(ID="long")) == []


def test_columns_that_went_are_remembered() -> None:
    """Rows that have them may be unread when they come back as something else."""
    kept = with_former_columns(schema(n="long"), schema(N="long", gone="string"))
    assert changed_columns(kept, schema(gone="long")) == [("gone", "STRING", "BIGINT")]
    assert with_former_columns(schema(n="long"), schema(n="string")) == schema(n="long")


@pytest.mark.parametrize(
    ("kinds", "end"),
    [
        ([], None),
        (["long", "long", None, "long"], None),
        (["long", "string"], 1),
        (["long", None, "string", "string"], 2),
        (["string", "long", "string"], 1),
    ],
)
def test_where_the_types_end(kinds: list[str | None], end: int | None) -> None:
    """A column that goes and comes back with another type is another one, too."""
    schemas = [schema(n="long", c=kind) if kind else schema(n="long") for kind in kinds]
    assert first_type_change(enumerate(schemas)) == end


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (schema(n="long"), schema(n="long", m="string")),
        (schema(n="long", m="string"), schema(n="long")),
        (schema(n="long", m="string"), schema(m="string", n="long")),
        (schema(n="long").replace("true", "false"), schema(n="long")),
        (schema(n=array("long", nulls=False)), schema(n=array("long"))),
        (schema(n=mapped("long", POINT, nulls=False)), schema(n=mapped("long", POINT))),
        (schema(n="string"), schema(n="string").replace("{}", '{"comment": "of n"}')),
        (schema(n=POINT), schema(n=json.loads(json.dumps(POINT).replace("true", "false")))),
    ],
)
def test_what_may_differ(before: str, after: str) -> None:
    for one, other in ((before, after), (after, before)):
        assert changed_columns(one, other) == []
        check_columns("/log", one, 0, other)
