"""Writes the Scala classes of the agent's messages: `python -m shim_messages` (`make messages`).

The schema is `spark_cec.agent.messages`. Each request becomes a case class with its JSON and the class of its answer.
Each answer becomes a case class that is read from JSON. The JSON is Jackson's tree, as Spark brings it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from spark_cec.agent import messages

TARGET = Path(__file__).resolve().parents[1] / "jvm-shim/src/main/scala/org/apache/spark/sql/cec/agent/Messages.scala"

_HEAD = """\
// `make messages` writes this file from python/spark_cec/agent/messages.py, which explains the fields. Do not edit it.
package org.apache.spark.sql.cec.agent

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
"""

_REQUEST = '''
/** A request to the agent: the name of its call, its fields, and how its answer is read. */
private[cec] sealed abstract class AgentRequest(val call: String) {
  type Answer
  def toJson: ObjectNode
  def parse(answer: JsonNode): Answer
}
'''


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. `default` is a Scala expression, empty for a field without a default."""

    name: str
    type: Any
    default: str

    @property
    def scala(self) -> str:
        """The name in Scala, in camel case."""
        return re.sub(r"_(\w)", lambda found: found[1].upper(), self.name)


def write_scala() -> str:
    """The text of the Scala file."""
    nested = [each for each in _nested_types() if not issubclass(each, messages.Request)]
    parts = [_HEAD, _REQUEST]
    parts += [_write_request(each) for each in messages.REQUESTS.values()]
    parts += [_write_value(each) for each in nested]
    return "".join(parts)


def _write_request(cls: type[messages.Request]) -> str:
    fields = [each for each in _fields(cls) if each.name != "retry"]
    answer = "Unit" if cls.answer is messages.Done else cls.answer.__name__
    parse = "()" if answer == "Unit" else f"{answer}.of(answer)"
    return f"""
{_comment(cls)}private[cec] final case class {cls.__name__}({_parameters(fields)})
    extends AgentRequest("{cls.call()}") {{
  override type Answer = {answer}
  override def toJson: ObjectNode = {_to_object(fields, "  ")}
  override def parse(answer: JsonNode): {answer} = {parse}
}}
"""


def _write_value(cls: type) -> str:
    fields, name = _fields(cls), cls.__name__
    is_sent, is_read = name in _names_in(sent=True), name in _names_in(sent=False)
    text = f"\n{_comment(cls)}private[cec] final case class {name}({_parameters(fields)})"
    if is_sent:
        text += f" {{\n  def toJson: ObjectNode = {_to_object(fields, '  ')}\n}}"
    text += "\n"
    if is_read:
        reads = [_read(each.type, _place(cls, index, each)) for index, each in enumerate(fields)]
        text += (
            f"\nprivate[cec] object {name} {{\n  def of(node: JsonNode): {name} = {name}(\n    "
            + ",\n    ".join(reads)
            + ")\n}\n"
        )
    return text


def _place(cls: type, index: int, field: Field) -> str:
    is_array = issubclass(cls, msgspec.Struct) and cls.__struct_config__.array_like
    return f"node.get({index})" if is_array else f'node.get("{field.name}")'


def _to_object(fields: list[Field], indent: str) -> str:
    if not fields:
        return "Json.obj()"
    lines = "".join(f"\n{indent}  {_write(each)}" for each in fields)
    return f"{{\n{indent}  val node = Json.obj(){lines}\n{indent}  node\n{indent}}}"


def _write(field: Field) -> str:
    inner, is_optional = _without_none(field.type)
    value = _encode(inner, field.scala if not is_optional else "value")
    if is_optional:
        return f'node.set[JsonNode]("{field.name}", Json.orNull({field.scala})(value => {value}))'
    if inner in (str, int, float, bool):
        return f'node.put("{field.name}", {field.scala})'
    return f'node.set[JsonNode]("{field.name}", {value})'


def _encode(of: Any, value: str) -> str:
    """A Scala expression for the JSON node of `value`."""
    if of in (str, int, float, bool):
        return f"Json.node({value})"
    if of == messages.Opaque:
        return value
    if _is_pair(of):
        return f"Json.arr().add({value}._1).add({value}._2)"
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin in _MAPS:
        return f"{'Json.map' if arguments[1] is str else 'Json.longMap'}({value})"
    if origin is tuple:
        each = arguments[0]
        simple = {str: "Json.strings", int: "Json.longs"}.get(each)
        return f"{simple}({value})" if simple else f"Json.list({value})(each => {_encode(each, 'each')})"
    return f"{value}.toJson"


def _read(of: Any, node: str) -> str:
    """A Scala expression for the value in `node`."""
    inner, is_optional = _without_none(of)
    if is_optional:
        return f"Json.option({node})(value => {_read(inner, 'value')})"
    if inner in _AS:
        return f"{node}.{_AS[inner]}"
    if inner == messages.Opaque:
        return node
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin in _MAPS:
        return f"Json.entries({node})(value => {_read(arguments[1], 'value')})"
    if origin is tuple:
        return f"Json.elements({node})(value => {_read(arguments[0], 'value')})"
    return f"{inner.__name__}.of({node})"


_MAPS = (dict, collections.abc.Mapping)
_AS = {str: "asText", int: "asLong", float: "asDouble", bool: "asBoolean"}
_SCALA = {str: "String", int: "Long", float: "Double", bool: "Boolean"}


def _scala_type(of: Any) -> str:
    inner, is_optional = _without_none(of)
    if is_optional:
        return f"Option[{_scala_type(inner)}]"
    if inner in _SCALA:
        return _SCALA[inner]
    if inner == messages.Opaque:
        return "JsonNode"
    if _is_pair(inner):
        return "(Long, Long)"
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin in _MAPS:
        return f"Map[String, {_scala_type(arguments[1])}]"
    if origin is tuple:
        return f"Seq[{_scala_type(arguments[0])}]"
    return str(inner.__name__)


def _without_none(of: Any) -> tuple[Any, bool]:
    """The type without None, and whether it had None."""
    if typing.get_origin(of) in (typing.Union, types.UnionType):
        (inner,) = (each for each in typing.get_args(of) if each is not type(None))
        return inner, True
    return of, False


def _is_pair(of: Any) -> bool:
    return typing.get_args(of) == (int, int)


def _fields(cls: type) -> list[Field]:
    """The fields of a message or a dataclass, in order."""
    hints = typing.get_type_hints(cls)
    if issubclass(cls, msgspec.Struct):
        known = [(each.name, each.default) for each in msgspec.structs.fields(cls)]
        missing: object = msgspec.NODEFAULT
    else:
        known = [(each.name, each.default) for each in dataclasses.fields(cast(Any, cls))]
        missing = dataclasses.MISSING
    return [
        Field(name, hints[name], "" if default is missing else _scala_default(default)) for name, default in known
    ]


def _scala_default(value: object) -> str:
    if value is None:
        return "None"
    if value == ():
        return "Nil"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}L"


def _parameters(fields: list[Field]) -> str:
    described = [
        f"{each.scala}: {_scala_type(each.type)}{f' = {each.default}' if each.default else ''}" for each in fields
    ]
    if len(", ".join(described)) <= 90:
        return ", ".join(described)
    lines = ["   "]
    for each in described:
        if len(lines[-1]) + len(each) > 120:
            lines.append("   ")
        lines[-1] += f" {each},"
    return "\n" + "\n".join(lines).removesuffix(",")


def _comment(cls: type) -> str:
    """The first sentence of the docstring."""
    words = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    line = f"/** {words} */"
    if len(line) <= 120:
        return line + "\n"
    return "/**\n" + textwrap.fill(words, 120, initial_indent=" * ", subsequent_indent=" * ") + "\n */\n"


def _nested_types() -> list[type]:
    """All messages and dataclasses that are reached from the requests, each once, in the order of their names."""
    found: dict[str, type] = {}
    for request in messages.REQUESTS.values():
        for each in (request, request.answer):
            for cls in _reach(each):
                found[cls.__name__] = cls
    found.pop("Done", None)
    return [found[name] for name in sorted(found)]


def _names_in(*, sent: bool) -> set[str]:
    """The names of the classes that the shim sends, or that it reads."""
    starts = [each if sent else each.answer for each in messages.REQUESTS.values()]
    return {cls.__name__ for start in starts for cls in _reach(start)}


def _reach(of: Any) -> Iterator[type]:
    if isinstance(of, type) and (issubclass(of, msgspec.Struct) or dataclasses.is_dataclass(of)):
        yield of
        for field in _fields(of):
            yield from _reach(field.type)
        return
    for each in typing.get_args(of):
        yield from _reach(each)


def main() -> int:
    """Writes the file."""
    TARGET.write_text(write_scala())
    print(TARGET.relative_to(Path.cwd()) if TARGET.is_relative_to(Path.cwd()) else TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
