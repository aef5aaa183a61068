"""Compares columns of output frames: columns of one name are one column only if they have one type.

The bytes of a frame do not tell their meaning: a timestamp that is read as a number is a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from spark_cec.errors import ColumnChanged

_NOT_THE_TYPE = ("nullable", "containsNull", "valueContainsNull", "metadata")


def find_column(name: str, names: Iterable[str], *, exact: bool = False) -> str | None:
    """The element of `names` that means the column `name`; None if none does.

    Spark ignores case in column names, so another spelling is the same column. With `exact` it is another column.
    """
    known = list(names)
    if name in known or exact:
        return name if name in known else None
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def check_columns(place: str, wanted: str, batch: int, written: str, *, exact: bool = False) -> None:
    """Raises `ColumnChanged` if a wanted column had another type in a batch; a column that the batch lacks is fine.

    `wanted`, `written`: schemas, as Spark's JSON. `exact` as in `find_column`. The error message names `place`.
    """
    for name, before, now in changed_columns(written, wanted, exact=exact):
        raise ColumnChanged(place, name, batch, before, now)


def changed_columns(written: str, wanted: str, *, exact: bool = False) -> list[tuple[str, str, str]]:
    """The columns with another type in the schema `wanted`: name, written type and wanted type, the types as Spark SQL.
    """
    if wanted == written:
        return []
    there, changed = _parse_columns(written), []
    for name, kind in _parse_columns(wanted).items():
        before = find_column(name, there, exact=exact)
        if before is not None and there[before] != kind:
            changed.append((name, _sql_type(there[before]), _sql_type(kind)))
    return changed


def column_names(schema_json: str) -> frozenset[str]:
    """The column names of a schema (Spark's JSON), case-folded."""
    return frozenset(name.casefold() for name in _parse_columns(schema_json))


def with_former_columns(now: str, before: str) -> str:
    """The schema `now` and the columns that only `before` has, because rows with these columns may be unread still."""
    fields, former = json.loads(now), json.loads(before)["fields"]
    names = [field["name"] for field in fields["fields"]]
    gone = [field for field in former if find_column(field["name"], names) is None]
    return json.dumps({**fields, "fields": fields["fields"] + gone}) if gone else now


def first_type_change(schemas: Iterable[tuple[int, str]], *, exact: bool = False) -> int | None:
    """The first batch with a column whose type differs from an earlier batch; `schemas` are (batch, schema) in order.
    """
    seen: list[str] = []
    for batch, schema in schemas:
        if schema not in seen:
            if any(changed_columns(before, schema, exact=exact) for before in seen):
                return batch
            seen.append(schema)
    return None


@lru_cache(maxsize=256)
def _parse_columns(schema_json: str) -> dict[str, Any]:
    return {field["name"]: _strip_nullability(field["type"]) for field in json.loads(schema_json)["fields"]}


def _strip_nullability(kind: Any) -> Any:
    """A type without nullability and metadata, in which two batches of one column may differ."""
    if isinstance(kind, dict):
        return {key: _strip_nullability(value) for key, value in kind.items() if key not in _NOT_THE_TYPE}
    return [_strip_nullability(each) for each in kind] if isinstance(kind, list) else kind


def _sql_type(kind: Any) -> str:
    """The type in Spark SQL's notation."""
    match kind:
        case {"type": "struct", "fields": fields}:
            named = [f"{each['name']}: {_sql_type(each['type'])}" for each in fields]
            return f"STRUCT<{', '.join(named)}>"
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{_sql_type(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{_sql_type(key)}, {_sql_type(value)}>"
        case str():
            return _SQL.get(kind, kind.upper())
    return json.dumps(kind)


_SQL = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
