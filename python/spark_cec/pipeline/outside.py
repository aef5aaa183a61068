"""Reads a flow of a pipeline in replicas from outside of the pipeline."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from spark_cec.availability.union import Member, Union
from spark_cec.errors import SettingsError
from spark_cec.pipeline.cluster import use_storage_settings
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.replicas import Replica, list_replicas
from spark_cec.settings import duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read_replicas(
    spark: SparkSession, home: str, flow: str, time: str, *, bucket: str = "1s", tentative: str | None = None,
    schema: str | StructType | None = None,
) -> DataFrame:  # fmt: skip
    """The rows of a flow as a stream, from one replica of its pipeline or from the other one. Each row comes once.

        rows = read_replicas(spark, "/data/shop", "per_minute", time="time")

    The stream goes on in the other replica if the one that it has read has no more, or is far behind. It reads whole
    buckets. So the flow needs `kept=True`, and `time` is a column for which it tells which rows come no more: the end
    of its windows, `window_time(window)`.

    `home`: of the pipeline. `bucket`: the length of a bucket. `tentative`: the flow's alpha times X, such as "27s"; the
    stream then has tentative rows, too, with the columns `_kind` and `_epoch`; None: stable rows alone, with a
    watermark at the end of their bucket. `schema`: the columns, if the flow may not have begun yet.

    Errors: `GraphError` for a home without replicas, or a wrong duration.
    """
    use_storage_settings(spark)
    known = list_replicas(home)
    if not known:
        raise GraphError(flow, [f"{home} has no replicas: give the home of a pipeline that runs with --replica"])
    copies = Replica(known[0].name, home).copies(flow)
    path = next(each.path for each in copies if each.replica == known[0].name)
    bucket_ms = _parse_length(flow, "bucket", bucket)
    wait_ms = 0 if tentative is None else _parse_length(flow, "tentative", tentative)
    union = Union(bucket_ms, (Member(flow, path, time, 0, copies=copies, wait_ms=wait_ms),), replicated=True)
    options = {"waitForLog": "true", "union": json.dumps(asdict(union)), "own": "0"}
    if tentative is not None:
        options["tentative"] = "true"
    reads = spark.readStream.format("cec").options(**options)
    rows = (reads if schema is None else reads.schema(schema)).load(path)
    # The rows come by buckets, so none is behind its watermark. Tentative rows must not move one.
    return rows.withWatermark(time, "0 seconds") if tentative is None else rows


def _parse_length(flow: str, option: str, value: str) -> int:
    """A duration in ms, 1 at least. Raises `GraphError`."""
    try:
        found = int(duration_ms("", value))
    except SettingsError:
        found = 0
    if found < 1:
        raise GraphError(flow, [f"{option}={value!r} of its reader: give a duration such as 1s"])
    return found
