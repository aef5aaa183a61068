"""Watermarks over several instances of a flow: that of the slowest counts, so each channel has one of its own.

One watermark over all of them would follow the fastest, and what the others bring would be late, and dropped.
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
    """`FlowError` where a watermark stands above a union of streams, in a flow that reads several instances.

    Which union is ours and which the user's the plan does not tell, and both have the flaw.
    """
    above = [each for each in _nodes(made._jdf.queryExecution().analyzed()) if _name(each) == _WATERMARK]
    if any(_name(below) == _MERGE for each in above for below in _nodes(each)):
        read = ", ".join(flow.channels)
        raise FlowError(
            f"flow {flow.node.name} has a watermark over the instances of {read}, which would follow the fastest of "
            f"them, so that rows of the others would be late and dropped: give each its own, "
            f"watermarks={{{next(iter(flow.channels))!r}: ('<column>', '<delay>')}}, in the place of withWatermark"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    """A node of Spark's plan, and all below it."""
    left = [plan]
    while left:
        node = left.pop()
        yield node
        below = node.children()
        left.extend(below.apply(i) for i in range(below.size()))


def _name(node: Any) -> str:
    return str(node.nodeName())
