"""Refuses one watermark over several instances of a flow: each channel needs its own, and the slowest counts.

One watermark over all instances would follow the fastest. The rows of the others would be late, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.declare import Flow, FlowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WATERMARK = "EventTimeWatermark"
_MERGE = "Union"


def refuse_common_watermarks(flow: Flow, made: DataFrame) -> None:
    """Raises `FlowError` if a flow that reads several instances has a watermark above a union of streams.

    The plan does not tell our union from the user's; both have the flaw.
    """
    above = [each for each in _nodes(made._jdf.queryExecution().analyzed()) if _name(each) == _WATERMARK]
    if any(_name(below) == _MERGE for each in above for below in _nodes(each)):
        read = ", ".join(flow.channels)
        raise FlowError(
            f"flow {flow.node.name} has one watermark over the instances of {read}. It would follow the fastest "
            f"instance, and the rows of the others would be late and dropped: replace withWatermark by a watermark for "
            f"each instance, watermarks={{{next(iter(flow.channels))!r}: ('<column>', '<delay>')}}"
        )


def refuse_lost_delay(flow: Flow, made: DataFrame) -> None:
    """Raises `FlowError` if a flow by buckets drops duplicates within the watermark's delay.

    Its watermark has no delay: the buckets wait for that long. So Spark would forget a row with its bucket.
    """
    if any(_name(each) == "DeduplicateWithinWatermark" for each in _nodes(made._jdf.queryExecution().analyzed())):
        raise FlowError(
            f"flow {flow.node.name} reads by buckets, and has dropDuplicatesWithinWatermark, which would find no "
            "duplicate in a later bucket: use dropDuplicates with the time among its columns, or read without buckets"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    """A node of Spark's plan, and all nodes below it."""
    left = [plan]
    while left:
        node = left.pop()
        yield node
        below = node.children()
        left.extend(below.apply(i) for i in range(below.size()))


def _name(node: Any) -> str:
    return str(node.nodeName())
