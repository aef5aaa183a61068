"""Reads the rows of a range of buckets from output frames, and keeps late rows aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from spark_cec.agent.messages import BucketRange
from spark_cec.availability.bucket_rows import sort_by_time, take_range
from spark_cec.checkpoint.columns import find_column
from spark_cec.checkpoint.readers import concat_tables, project_columns
from spark_cec.log.index import OutputEntry
from spark_cec.log.late import keep_late
from spark_cec.log.manifest import Manifest
from spark_cec.log.storage import Storage


def may_have_rows(buckets: BucketRange | None, batch: Manifest, *, exact: bool) -> bool:
    """Whether a batch may have rows that a read of these buckets needs. `exact` as in `find_column`."""
    if buckets is None or not batch.rows:
        return True
    column = find_column(buckets.column, batch.times, exact=exact)
    times = batch.times.get(column or "")
    if times is None:  # a batch of an earlier release, or one without that column
        return True
    if batch.batch >= buckets.fresh_from:
        return bool(times.nulls) or (times.first_ms is not None and times.first_ms < buckets.until_ms)
    is_before = times.last_ms is None or times.last_ms < buckets.after_ms
    return not is_before and times.first_ms is not None and times.first_ms < buckets.until_ms


def describe_buckets(
    pieces: Sequence[dict[str, Any]], entries: Sequence[OutputEntry], buckets: BucketRange
) -> list[dict[str, Any]]:
    """The pieces of a read, each with what `take_bucket_rows` needs to know of its frames."""
    batches, fields = {each.meta.frame_id.hex(): each.meta.batch for each in entries}, msgspec.to_builtins(buckets)
    return [
        {**piece, "buckets": fields, "batches": {frame: batches[frame] for *_, frame in piece["frames"]}}
        for piece in pieces
    ]


def take_bucket_rows(
    storage: Storage, split: Mapping[str, Any], tables: Mapping[bytes, pa.Table], columns: Sequence[str] | None, *,
    exact: bool,
) -> pa.Table:  # fmt: skip
    """The rows of a split's buckets, by time; late ones go into the log. `exact` as in `find_column`.

    A task that runs again writes the same late rows again, over the first ones.
    """
    buckets = msgspec.convert(split["buckets"], BucketRange)
    due = []
    for frame, rows in tables.items():
        batch = split["batches"][frame.hex()]
        time = find_column(buckets.column, rows.column_names, exact=exact)
        taken, late = take_range(rows, time, buckets.after_ms, buckets.until_ms, fresh=batch >= buckets.fresh_from)
        due.append(taken)
        if late.num_rows and buckets.reader is not None:
            keep_late(storage, buckets.reader, batch, frame, late)
    with_time = None if columns is None else list(dict.fromkeys([*columns, buckets.column]))
    ordered = sort_by_time(concat_tables(due, with_time, exact), buckets.column)
    return ordered if columns is None else project_columns(ordered, columns, exact)
