"""Reads the joins and unions of a flow from Spark's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.availability.joins import Channel, Join, Merge, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WITHOUT_RIGHT = ("LEFT OUTER", "LEFT ANTI", "FULL OUTER")
_WITHOUT_LEFT = ("RIGHT OUTER", "FULL OUTER")
"""The types of joins, in Spark's words, that give out rows of one side while the other one has none."""


def read_plan(made: DataFrame, channels: Mapping[str, str]) -> Plan:
    """The joins and unions of a flow's DataFrame. `channels`: the inputs by the path that Spark reads."""
    return _read(made._jdf.queryExecution().analyzed(), channels)


def _read(node: Any, channels: Mapping[str, str]) -> Plan:
    below, name = node.children(), str(node.nodeName())
    plans = tuple(_read(below.apply(i), channels) for i in range(below.size()))
    if name.endswith("Join") and len(plans) == 2:
        kind = str(node.joinType().sql())
        return Join(*plans, kind not in _WITHOUT_LEFT, kind not in _WITHOUT_RIGHT)
    if len(plans) == 1:
        return plans[0]
    if not plans and name == "StreamingRelationV2":
        found = channels.get(str(node.extraOptions().get("path")))
        return Merge(()) if found is None else Channel(found)
    return Merge(plans)
