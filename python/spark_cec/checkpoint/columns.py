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


def matching(name: str, names: Iterable[str], *, exact: bool = False) -> str | None:
    """The one of these names that means a column; None if none does.

    Unless only an `exact` one does, another spelling in upper and lower case is the same column, as Spark has it.
    """
    known = list(names)
    if name in known or exact:
        return name if name in known else None
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def check_columns(place: str, wanted: str, batch: int, written: str, *, exact: bool = False) -> None:
    """`ColumnChanged` if a column that is wanted was written as another type with a batch; one that was not is fine.

    `wanted`, `written`: schemas, as Spark's JSON. `exact` as in `matching`. `place` is for the message.
    """
    for name, before, now in changed_columns(written, wanted, exact=exact):
        raise ColumnChanged(place, name, batch, before, now)


def changed_columns(written: str, wanted: str, *, exact: bool = False) -> list[tuple[str, str, str]]:
    """The columns that are of another type in the second schema: their names, and both types, as SQL has them."""
    if wanted == written:
        return []
    there, changed = _columns(written), []
    for name, kind in _columns(wanted).items():
        before = matching(name, there, exact=exact)
        if before is not None and there[before] != kind:
            changed.append((name, _said(there[before]), _said(kind)))
    return changed


def column_names(schema_json: str) -> frozenset[str]:
    """Of a schema, Spark's JSON, without regard to upper and lower case."""
    return frozenset(name.casefold() for name in _columns(schema_json))


def with_former_columns(now: str, before: str) -> str:
    """The schema, and the columns that are only in the one of before: rows that have them may be unread still."""
    fields, former = json.loads(now), json.loads(before)["fields"]
    names = [field["name"] for field in fields["fields"]]
    gone = [field for field in former if matching(field["name"], names) is None]
    return json.dumps({**fields, "fields": fields["fields"] + gone}) if gone else now


def end_of_types(schemas: Iterable[tuple[int, str]], *, exact: bool = False) -> int | None:
    """Of batches and their schemas in order, the first one that has a column by another type than one before it."""
    seen: list[str] = []
    for batch, schema in schemas:
        if schema not in seen:
            if any(changed_columns(before, schema, exact=exact) for before in seen):
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
