"""Stateful operators that Spark lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_cec.errors import CecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OPERATOR = "org.apache.spark.sql.cec.operators.CountWindow"


def count_window(
    df: DataFrame,
    keys: str | Column | Sequence[str | Column],
    size: int,
    aggregates: Column | Sequence[Column],
    order_by: str | Column | Sequence[str | Column] = (),
) -> DataFrame:
    """Windows of `size` rows for each key: one row whenever a key has had so many more, and then a new window begins.

    `df`: a stream (append mode), or a table. `keys`: columns to group by. `aggregates`: of the rows of a window, such
    as `f.sum("amount").alias("total")`; Spark's aggregate functions that work row by row (`count`, `sum`, `avg`, `min`,
    `max`, `first`, `last`, `stddev`, ...), also in expressions and with a filter. `order_by`: the order of the rows
    that one batch brings for one key; without it they come as the shuffle brings them. Batches are never put in order.

    The result has the keys and the aggregates. A window that is not full stays open, in the state; at the end of a
    table it is not in the result. It is an operator of the JVM: no row goes through Python. With any state store; with
    Spark CEC exact under kills, also when its windows are left dirty.

        full = spark_cec.count_window(events, "sensor", 1000, [f.avg("t").alias("mean"), f.max("t").alias("most")])

    Raises `ValueError` if `size` is below 1, if there is no aggregate, and for an aggregate that is not computed row by
    row (`collect_list`, `DISTINCT`, Python's own); `CecError` with Spark Connect, and in a session without Spark CEC's
    jar; Spark's `AnalysisException` for columns that are not there.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
        raise ValueError(f"count_window: a window of {size!r} rows: give a whole number from 1 to {2**31 - 1}")
    frame: Any = df
    operator, jvm = _operator(frame), frame.sparkSession._jvm
    try:
        java = operator.apply(frame._jdf, _seq(jvm, keys), size, _seq(jvm, aggregates), _seq(jvm, order_by))
    except Exception as failure:
        ours: Any = getattr(failure, "java_exception", None)
        if ours is not None and ours.getClass().getSimpleName() == "CecException":
            raise ValueError(str(ours.getMessage())) from None
        raise
    result: DataFrame = type(frame)(java, frame.sparkSession)
    return result


def _operator(frame: Any) -> Any:
    """The JVM's side."""
    if not hasattr(frame, "_jdf"):
        raise CecError("count_window: not with Spark Connect: call it in a program that has a session of its own")
    found = frame.sparkSession._jvm
    for name in _OPERATOR.split("."):
        found = getattr(found, name)
    if type(found).__name__ == "JavaPackage":  # Py4J's word for a name that it does not know
        raise CecError("count_window: this session has no jar of Spark CEC: give it one (spark_cec.configure, --jars)")
    return found


def _seq(jvm: Any, columns: Any) -> Any:
    """Columns as the JVM has them, whatever names and columns were given."""
    from pyspark.sql import Column
    from pyspark.sql.functions import col

    given = [columns] if isinstance(columns, (str, Column)) else list(columns)
    return jvm.PythonUtils.toSeq([(col(each) if isinstance(each, str) else each)._jc for each in given])
