"""Refuses sinks that cannot take a tentative row back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.options import join_or

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FREE = ("foreachBatch", "foreach")
"""The sinks of Spark in which the user's own code writes, and so can take rows back."""

_SHOWING = ("memory", "console", "noop")
"""The sinks of Spark that keep nothing."""


def refuse_final_sink(name: str, writer: DataStreamWriter) -> None:
    """Raises `FlowError` if a sink of tentative rows writes to where rows stay, as in files and in Kafka's topics."""
    source = _read_source(writer)
    if source in (*_FREE, *_SHOWING):
        return
    raise FlowError(
        f"sink {name} reads tentative rows, and writes to {source!r}, where no row can be taken back: write by "
        f"{join_or(_FREE)}, as apply_changes does, or leave tentative=True out"
    )


def _read_source(writer: DataStreamWriter) -> str:
    """The format of a writer. Spark has no method that answers it."""
    writes: Any = writer._jwrite
    field = writes.getClass().getDeclaredField("source")
    field.setAccessible(True)
    return str(field.get(writes))
