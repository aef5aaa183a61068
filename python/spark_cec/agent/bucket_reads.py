"""Reads the rows of a range of buckets from output frames, and keeps late rows aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from spark_cec.agent.messages import BucketRange
from spark_cec.availability.bucket_rows import sort_by_time, take_range
from spark_cec.availability.replicas import find_floors
from spark_cec.checkpoint.columns import find_column
from spark_cec.checkpoint.readers import concat_tables, project_columns
from spark_cec.errors import BucketError
from spark_cec.log.index import OutputEntry
from spark_cec.log.late import keep_late
from spark_cec.log.manifest import Manifest, load_between
from spark_cec.log.storage import Storage
from spark_cec.log.times import TimeRange


def may_have_rows(buckets: BucketRange | None, batch: Manifest, *, exact: bool) -> bool:
    """Whether a batch may have rows that a read of these buckets needs. `exact` as in `find_column`."""
    if buckets is None or not batch.rows:
        return True
    times = _find_times(buckets, batch, exact=exact)
    if times is None:  # a batch of an earlier release, or one without that column
        return True
    if batch.batch >= buckets.fresh_from:
        may_be_late = buckets.replicated or (times.first_ms is not None and times.first_ms < buckets.until_ms)
        return may_be_late or bool(times.nulls)
    is_before = times.last_ms is None or times.last_ms < buckets.after_ms
    return not is_before and times.first_ms is not None and times.first_ms < buckets.until_ms


def read_floors(
    storage: Storage, first: int, last: int, buckets: BucketRange, *, exact: bool
) -> dict[int, int]:
    """By batch from `first` to `last`, the time below which its rows are late in each replica; none without replicas.

    Raises `BucketError` for a batch of a release that noted no times.
    """
    if not buckets.replicated:
        return {}
    found = []
    for batch, each in load_between(storage, first, last):
        if isinstance(each, Manifest) and each.rows:
            times = _find_times(buckets, each, exact=exact)
            if times is None:
                raise BucketError(
                    f"{storage.url}: batch {batch} says nothing of the times in {buckets.column}, so replicas cannot "
                    f"tell which of its rows are late: begin the pipeline anew in another home"
                )
            found.append((batch, times))
    return find_floors(found, buckets.delay_ms, buckets.bucket_ms)


def _find_times(buckets: BucketRange, batch: Manifest, *, exact: bool) -> TimeRange | None:
    return batch.times.get(find_column(buckets.column, batch.times, exact=exact) or "")


def describe_buckets(
    pieces: Sequence[dict[str, Any]], entries: Sequence[OutputEntry], buckets: BucketRange, floors: Mapping[int, int]
) -> list[dict[str, Any]]:
    """The pieces of a read, each with what `take_bucket_rows` needs to know of its frames."""
    batches, fields = {each.meta.frame_id.hex(): each.meta.batch for each in entries}, msgspec.to_builtins(buckets)
    found = []
    for piece in pieces:
        of_piece = {frame: batches[frame] for *_, frame in piece["frames"]}
        own = {str(batch): floors[batch] for batch in set(of_piece.values()) if batch in floors}
        found.append({**piece, "buckets": fields, "batches": of_piece, **({"floors": own} if own else {})})
    return found


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
        floor_ms, is_fresh = split.get("floors", {}).get(str(batch)), batch >= buckets.fresh_from
        taken, late = take_range(
            rows, time, buckets.after_ms, buckets.until_ms, fresh=is_fresh, floor_ms=floor_ms,
            replicated=buckets.replicated,
        )  # fmt: skip
        due.append(taken)
        if late.num_rows and buckets.reader is not None:
            keep_late(storage, buckets.reader, batch, frame, late)
    with_time = None if columns is None else list(dict.fromkeys([*columns, buckets.column]))
    ordered = sort_by_time(concat_tables(due, with_time, exact), buckets.column)
    return ordered if columns is None else project_columns(ordered, columns, exact)
