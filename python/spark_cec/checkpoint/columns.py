"""Columns of output: those of one name are one column only as long as they have one type.

The bytes of a frame do not say how they are meant: a timestamp read as a number is a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from spark_cec.errors import ColumnChanged

_NOT_THE_TYPE = ("nullable", "containsNull", "valueContainsNull", "metadata")


def check_columns(place: str, wanted: str, batch: int, written: str) -> None:
    """`ColumnChanged` if a column that is wanted was written as another type with a batch; one that was not is fine.

    `wanted`, `written`: schemas, as Spark's JSON. `place` is for the message.
    """
    for name, before, now in changed_columns(written, wanted):
        raise ColumnChanged(place, name, batch, before, now)


def changed_columns(written: str, wanted: str) -> list[tuple[str, str, str]]:
    """The columns that are of another type in the second schema: their names, and both types, as SQL has them."""
    if wanted == written:
        return []
    there = _columns(written)
    found = [(name, there.get(name, kind), kind) for name, kind in _columns(wanted).items()]
    return [(name, _said(before), _said(now)) for name, before, now in found if before != now]


def end_of_types(schemas: Iterable[tuple[int, str]]) -> int | None:
    """Of batches and their schemas in order, the first one that has a column by another type than one before it."""
    seen: list[str] = []
    for batch, schema in schemas:
        if schema not in seen:
            if any(changed_columns(before, schema) for before in seen):
                return batch
            seen.append(schema)
    return None


@lru_cache(maxsize=256)
def _columns(schema_json: str) -> dict[str, Any]:
    return {field["name"]: _bare(field["type"]) for field in json.loads(schema_json)["fields"]}


def _bare(kind: Any) -> Any:
    """A type without what two batches of one column may differ in: whether there can be nulls, and remarks."""
    if isinstance(kind, dict):
        return {key: _bare(value) for key, value in kind.items() if key not in _NOT_THE_TYPE}
    return [_bare(each) for each in kind] if isinstance(kind, list) else kind


def _said(kind: Any) -> str:
    """As Spark's SQL has it."""
    match kind:
        case {"type": "struct", "fields": fields}:
            named = [f"{each['name']}: {_said(each['type'])}" for each in fields]
            return f"STRUCT<{', '.join(named)}>"
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{_said(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{_said(key)}, {_said(value)}>"
        case str():
            return _SQL.get(kind, kind.upper())
    return json.dumps(kind)


_SQL = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
