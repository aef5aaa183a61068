"""Reads the joins and unions of a flow from Spark's plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.availability.joins import Channel, Join, Merge, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG = logging.getLogger(__name__)

_WITHOUT_RIGHT = ("LEFT OUTER", "LEFT ANTI", "FULL OUTER")
_WITHOUT_LEFT = ("RIGHT OUTER", "FULL OUTER")
"""The types of joins, in Spark's words, that give out rows of one side while the other one has none."""


def read_plan(made: DataFrame, channels: Mapping[str, str]) -> Plan:
    """The joins and unions of a flow's DataFrame. `channels`: the inputs by the path that Spark reads.

    A plan that cannot be read has no joins: the status then names no input that waits in one.
    """
    try:
        return _read(made._jdf.queryExecution().analyzed(), channels)
    except Exception:
        _LOG.warning("the joins of a flow cannot be read from Spark's plan", exc_info=True)
        return Merge(())


def _read(node: Any, channels: Mapping[str, str]) -> Plan:
    below = node.children()
    while below.size() == 1:  # a plan may have hundreds of columns, one above the other
        node = below.apply(0)
        below = node.children()
    name = str(node.nodeName())
    plans = tuple(_read(below.apply(i), channels) for i in range(below.size()))
    if name.endswith("Join") and len(plans) == 2:
        kind = str(node.joinType().sql())
        return Join(*plans, kind not in _WITHOUT_LEFT, kind not in _WITHOUT_RIGHT)
    if not plans and name == "StreamingRelationV2":
        found = channels.get(str(node.extraOptions().get("path")))
        return Merge(()) if found is None else Channel(found)
    return Merge(plans)
