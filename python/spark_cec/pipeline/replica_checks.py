"""Refuses flows whose replicas may give out other rows, by Spark's plan. A flow passes if it is known to be safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.declare import Flow, FlowError
from spark_cec.settings import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUIET = PREFIX + "sources.quiet"


def refuse_other_rows(flow: Flow, made: DataFrame) -> None:
    """Raises `FlowError` if two replicas of a flow may give out other rows, or if that is not known."""
    reason = str(_checks(made).against(_plan(made), not flow.node.inputs))
    if reason:
        raise FlowError(f"flow {flow.node.name} cannot run in replicas: {reason}")


def list_bounded_columns(made: DataFrame) -> frozenset[str]:
    """The columns of a flow for which it tells below which time no row will come."""
    return frozenset(str(each) for each in _checks(made).boundedColumns(_plan(made)))


def list_constants(made: DataFrame) -> tuple[str, ...]:
    """The dates, times and tables that the program of a flow has.

    If it reads one off a clock or a file, each replica may have another one.
    """
    return tuple(str(each) for each in _checks(made).constants(_plan(made)))


def refuse_other_constants(flow: str, begun: Collection[str], now: Collection[str]) -> None:
    """Raises `FlowError` if a flow starts with other constants than at the start of its replica.

    `begun`, `now`: those of `list_constants`.
    """
    if list(begun) != list(now):
        raise FlowError(
            f"flow {flow} has other dates, times or tables than at the start of this replica, and the other replica "
            "may go on with those: read them once, outside of its function, or stop both replicas and start them"
        )


def list_settings(session: SparkSession) -> dict[str, str]:
    """The settings of a session that can change the rows of a flow."""
    jvm: Any = session._jvm
    found = jvm.org.apache.spark.sql.cec.recovery.ReplicaCheck.settings(session._jsparkSession)
    return {str(key): str(found.get(key)) for key in sorted(map(str, found.keySet()))}


def refuse_unbounded(flow: Flow, read: str, column: str, bounded: Collection[str]) -> None:
    """Raises `FlowError` if a channel does not tell below which time of the column no row will come."""
    if column.lower() in {each.lower() for each in bounded}:
        return
    known = f" or {', '.join(sorted(bounded))}" if bounded else ""
    raise FlowError(
        f"flow {flow.node.name} reads {read} by buckets of {column!r}, for which {read} does not tell which rows will "
        f"come no more: in replicas give the end of its windows, window_time(window){known}"
    )


def refuse_clock(flow: str, of_session: str | None, conf: Mapping[str, str]) -> None:
    """Raises `FlowError` if the clock moves the watermarks of a flow: each replica has a clock of its own."""
    value = conf.get(_QUIET, of_session)
    if value not in (None, "hold"):
        raise FlowError(f"flow {flow} has {_QUIET}={value}, and each replica has a clock of its own: leave it out")


def _plan(made: DataFrame) -> Any:
    return made._jdf.queryExecution().analyzed()


def _checks(made: DataFrame) -> Any:
    jvm: Any = made.sparkSession._jvm
    return jvm.org.apache.spark.sql.cec.recovery.ReplicaCheck
