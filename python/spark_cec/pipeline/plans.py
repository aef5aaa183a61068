"""Reads the joins and unions of a flow, and the servers of its sources, from Spark's plan."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.availability.joins import Channel, Join, Merge, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG = logging.getLogger(__name__)

_SERVERS = "kafka.bootstrap.servers"
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


def list_servers(made: DataFrame) -> tuple[str, ...]:
    """The addresses of the Kafka servers that a flow's DataFrame reads; none if the plan cannot be read."""
    try:
        found = _list_servers(made._jdf.queryExecution().analyzed())
        return tuple(sorted({each.strip() for servers in found for each in servers.split(",")}))
    except Exception:
        _LOG.warning("the servers of a flow cannot be read from Spark's plan", exc_info=True)
        return ()


def _list_servers(node: Any) -> Iterator[str]:
    if str(node.nodeName()) == "StreamingRelationV2":
        servers = node.extraOptions().get(_SERVERS)
        if servers is not None:
            yield str(servers)
    below = node.children()
    for i in range(below.size()):
        yield from _list_servers(below.apply(i))


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
