"""Reads a flow of a pipeline in replicas from outside of the pipeline."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from spark_cec.availability.union import Member, Union
from spark_cec.errors import SettingsError
from spark_cec.pipeline.changes_table import EPOCH, KIND
from spark_cec.pipeline.cluster import use_storage_settings
from spark_cec.pipeline.graph import GraphError, nearest
from spark_cec.pipeline.options import join_or
from spark_cec.pipeline.replicas import Replica, list_columns, list_replicas, read_newest_record, read_record
from spark_cec.settings import duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_replicas(
    spark: SparkSession, home: str, flow: str, time: str, *, bucket: str = "1s", tentative: str | None = None
) -> DataFrame:
    """The rows of a flow as a stream, from one replica of its pipeline or from the other one. Each row comes once.

        rows = read_replicas(spark, "/data/shop", "per_minute", time="time")

    The stream goes on in the other replica if the one that it has read has no more, or is far behind. It reads whole
    buckets. So the flow needs `kept=True`, and `time` is a column for which it tells which rows come no more: the end
    of its windows, `window_time(window)`.

    `home`: of the pipeline. `bucket`: the length of a bucket. `tentative`: the flow's alpha times X, such as "27s"; the
    stream then has tentative rows, too, with the columns `_kind` and `_epoch`. None: stable rows alone, with a
    watermark at the end of their bucket.

    Errors: `GraphError` for a home without replicas, a flow or a column that cannot be read so, or a wrong duration.
    """
    from pyspark.sql.types import StringType, StructType

    use_storage_settings(spark)
    replicas = list_replicas(home.rstrip("/") or home)  # as the pipeline takes it
    if not replicas:
        raise GraphError(flow, [f"{home} has no replicas: give the home of a pipeline that runs with --replica"])
    # Either may be read, so both must be fit for that, also one that is gone.
    column = [_find_column(each, flow, time) for each in replicas][-1]
    bucket_ms = _parse_length(flow, "bucket", bucket)
    wait_ms = 0 if tentative is None else _parse_length(flow, "tentative", tentative)
    copies = replicas[0].copies(flow)
    member = Member(flow, copies[0].path, column, 0, copies=copies, wait_ms=wait_ms)
    union = Union(bucket_ms, (member,), replicated=True, notes=False)
    options = {"waitForLog": "true", "newColumns": "true", "union": json.dumps(asdict(union)), "own": "0"}
    schema = StructType.fromJson(json.loads(list_columns(read_newest_record(replicas))[flow]))
    if tentative is not None:
        options["tentative"] = "true"
        schema = schema.add(KIND, StringType()).add(EPOCH, StringType())
    rows = spark.readStream.format("cec").options(**options).schema(schema).load(copies[0].path)
    # The rows come by buckets, so none is behind its watermark. Tentative rows must not move one.
    return rows.withWatermark(column, "0 seconds") if tentative is None else rows


def _find_column(replica: Replica, flow: str, time: str) -> str:
    """The column with the time, as a replica's record spells it. Raises `GraphError` if the flow cannot be read by it.
    """
    record = read_record(replica)
    flows, name = record["flows"], str(record["name"])
    if flow not in flows or flows[flow]["sink"]:
        readable = [each for each, known in flows.items() if not known["sink"]]
        raise GraphError(name, [f"it has no flow {flow!r}: {nearest(flow, readable)}"])
    if not flows[flow]["kept"]:  # its channel keeps batches for the readers in the pipeline alone
        mend = "declare it with @flow(kept=True), and start both replicas once"
        why = f"flow {flow} is read from outside, and replica {replica.name} does not keep it"
        raise GraphError(name, [f"{why}: {mend}"])
    bounded = record["reads"][flow].get("bounded", []) if flows[flow]["inputs"] else []
    for each in bounded:
        if each.lower() == time.lower():
            return str(each)
    known = f"give {join_or(bounded)}" if bounded else "read a flow that aggregates over windows"
    raise GraphError(name, [f"flow {flow} does not tell below which {time!r} no row will come: {known}"])


def _parse_length(flow: str, option: str, value: str) -> int:
    """A duration in ms, 1 at least. Raises `GraphError`."""
    try:
        found = int(duration_ms("", value))
    except SettingsError:
        found = 0
    if found < 1:
        raise GraphError(flow, [f"{option}={value!r} of its reader: give a duration such as 1s"])
    return found
