"""What a log shows to readers: output rows, windows, raw records. Pure reading, as Arrow tables."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from spark_cec.checkpoint.columns import check_columns, matching
from spark_cec.checkpoint.eventual import EventualCheckpoint
from spark_cec.errors import CecError, DamagedLog, NotKept
from spark_cec.log import manifest
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import CommitMeta, Frame, Location, OutputMeta
from spark_cec.log.index import OutputEntry
from spark_cec.log.reader import commit_records, payload_table, read_frame, read_many
from spark_cec.log.record import RecordKind, decode_table
from spark_cec.log.storage import Storage

_KIND_NAMES = pa.array([None, *(kind.name for kind in sorted(RecordKind))])
"""The names of the kinds, each at its number; 0 is reserved."""


_MOVED = "another frame is there than a moment ago, as after `cec repair`: read again"

Told = Callable[[CecError], None]
"""Is told of output that was published and cannot be read: raises it, or notes it where a reader goes on without."""


def fail(lost: CecError) -> NoReturn:
    """A `Told` that goes on without nothing."""
    raise lost


def output_batches(
    storage: Storage,
    catalog: Catalog,
    first: int,
    last: int,
    whole: bool,
    published: range,
    lost: Told = fail,
    wanted: str | None = None,
    exact: bool = False,
) -> list[OutputEntry]:
    """The output frames that count in the batches `first` to `last`, in the order of batches and partitions.

    With `whole`, the batches before the newest one that replaced all output (complete mode) are left out, and those
    that are not kept any more are not asked for. `published`: the batches that had a manifest just before; every batch
    between the first and the newest has. `lost` is told of manifests and frames that are missing or damaged,
    and, without `whole`, of batches that are not kept any more: a reader that goes on from them has fallen behind.
    `wanted`: the schema that the rows will be read by, Spark's JSON: `ColumnChanged` if they were written by another;
    `exact`: names in another case are other columns.
    """
    found = list(manifest.load_between(storage, first, last))
    manifests = [each for _, each in found if isinstance(each, manifest.Manifest)]
    kept_from = manifest.retired_before(storage)
    if not whole and first < kept_from:
        lost(NotKept(first, kept_from - 1))
    newest_whole = max((each.batch for each in manifests if each.truncate), default=first) if whole else first
    for batch, each in found:
        if batch < max(newest_whole, kept_from):
            continue
        if isinstance(each, DamagedLog):
            lost(each)
        elif each is None and batch in published:
            lost(DamagedLog(manifest.manifest_path(batch), -1, f"the manifest of batch {batch} is missing"))
    begins, wanted_from = published.start, max(first, kept_from)
    if not whole and 0 < wanted_from < begins <= last:  # a stream that has read the one before it
        lost(DamagedLog(manifest.manifest_path(wanted_from), -1, f"the manifests before batch {begins} are missing"))
    counting = [each for each in manifests if each.batch >= newest_whole and each.frames]
    if wanted is not None:
        for each in counting:
            check_columns(storage.url, wanted, each.batch, each.schema_json, exact=exact)
    return _frames_of(storage, catalog, counting, lost)


def _frames_of(
    storage: Storage, catalog: Catalog, manifests: Sequence[manifest.Manifest], lost: Told
) -> list[OutputEntry]:
    entries = []
    for each in manifests:
        for frame in each.frames:
            entry = catalog.index.output(bytes.fromhex(frame))
            if entry is not None:
                entries.append(entry)
                continue
            kept_from = manifest.retired_before(storage)
            if each.batch < kept_from:  # since its manifest was read
                lost(NotKept(each.batch, kept_from - 1))
                continue
            place = f"output frame {frame} of batch {each.batch}"
            lost(DamagedLog(place, -1, "the manifest names it, but no segment holds it"))
    return entries


def first_published_since(storage: Storage, batches: Sequence[int], wall_ms: int, hint: int | None) -> int:
    """The first of the ascending `batches` that was published at or after `wall_ms`; one behind the last if none was.

    `hint`, from the timestamp index, spares a search if it is right. It may not be: the index also knows frames that no
    manifest names.
    """

    def published(position: int) -> int:
        return manifest.load(storage, batches[position]).wall_ms

    guess = bisect_left(batches, hint) if hint is not None else len(batches)
    if guess < len(batches) and published(guess) >= wall_ms and (guess == 0 or published(guess - 1) < wall_ms):
        return batches[guess]
    found = bisect_left(range(len(batches)), wall_ms, key=published)
    return batches[found] if found < len(batches) else batches[-1] + 1


def output_rows(
    storage: Storage,
    frames: Mapping[bytes, Location],
    columns: Sequence[str] | None,
    recent: Callable[[bytes], memoryview | None] = lambda _: None,
    lost: Told = fail,
    exact: bool = False,
) -> pa.Table:
    """The rows of output frames, by their ids, as the sink wrote them, in the order given.

    `recent`: the payload of a frame that need not be read from storage. `lost` is told of frames that are damaged, or
    not where they were a moment ago.
    """
    known = {frame: decode_table(payload) for frame in frames if (payload := recent(frame)) is not None}
    for location, frame in _sound(storage, [at for each, at in frames.items() if each not in known], lost):
        meta = frame.meta
        if isinstance(meta, OutputMeta) and frames.get(meta.frame_id) == location:
            known[meta.frame_id] = payload_table(frame)
        else:
            lost(DamagedLog(location.segment, location.offset, _MOVED))
    return _together([known[frame] for frame in frames if frame in known], columns, exact)


def log_records(
    storage: Storage, locations: Sequence[Location], columns: Sequence[str] | None, lost: Told = fail
) -> pa.Table:
    """The control records of commit frames, each with its place. `lost` is told of frames that are damaged."""
    tables = []
    for location, frame in _sound(storage, locations, lost):
        assert isinstance(frame.meta, CommitMeta)
        tables.append(_with_place(commit_records(frame), frame.meta, location))
    return _together(tables, columns)


def _together(tables: Sequence[pa.Table], columns: Sequence[str] | None, exact: bool = False) -> pa.Table:
    # Each by itself: a column that is not asked for may be of several types.
    asked = tables if columns is None else [_project(table, columns, exact) for table in tables]
    return pa.concat_tables(asked, promote_options="default") if asked else pa.table({})


def _sound(storage: Storage, locations: Sequence[Location], lost: Told) -> list[tuple[Location, Frame]]:
    """The frames that are sound, read together where all are."""
    try:
        return list(zip(locations, read_many(storage, locations), strict=True))
    except DamagedLog as error:
        lost(error)
    found = []
    for location in locations:
        try:
            found.append((location, read_frame(storage, location)))
        except DamagedLog as error:
            lost(error)
    return found


def _project(rows: pa.Table, columns: Sequence[str], exact: bool) -> pa.Table:
    """The named columns; one that these frames lack is null. No columns at all still keeps the number of rows."""
    if not columns:
        return pa.table({"": pa.nulls(rows.num_rows, pa.int8())})
    there = {name: matching(name, rows.column_names, exact=exact) for name in columns}
    return pa.table({name: pa.nulls(rows.num_rows) if own is None else rows[own] for name, own in there.items()})


def _with_place(records: pa.Table, meta: CommitMeta, location: Location) -> pa.Table:
    def every(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), records.num_rows)

    keys = records["key"] if "key" in records.column_names else records["window"]
    return pa.table(
        {
            "segment": every(location.segment, pa.string()),
            "offset": every(location.offset, pa.int64()),
            "operator": every(meta.store.operator, pa.int64()),
            "partition": every(meta.store.partition, pa.int32()),
            "store": every(meta.store.name, pa.string()),
            "version": every(meta.version, pa.int64()),
            "kind": _KIND_NAMES.take(records["kind"].combine_chunks()),
            "window": records["window"],
            "key": keys,
            "value": records["value"],
        }
    )


def window_rows(checkpoint: EventualCheckpoint) -> pa.Table:
    """One row per state key of an EC: key, value, footprint, partition, and whether it may be older than the state.

    `dirty` is false where the row is certainly the window's state at that version, and null where the window may have
    changed since its footprint: the log does not say which windows are dirty, only how many.
    """
    meta, records = checkpoint.head.meta, checkpoint.records
    if not records.num_rows:
        return records
    key = records["key"] if "key" in records.column_names else records["window"]
    certain = pc.or_(pc.equal(records["footprint"], meta.version), pa.scalar(meta.dirty_windows == 0))
    return pa.table(
        {
            "key": key,
            "value": records["value"],
            "partition": pa.repeat(pa.scalar(meta.store.partition, pa.int32()), records.num_rows),
            "footprint_version": records["footprint"],
            "dirty": pc.if_else(certain, pa.scalar(False), pa.scalar(None, pa.bool_())),
        }
    )
