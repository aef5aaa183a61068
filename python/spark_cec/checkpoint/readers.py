"""Reads output rows, windows and raw records of a log, as Arrow tables, without a write."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from spark_cec.checkpoint.columns import check_columns, find_column
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
"""The name of each record kind at its number; 0 is reserved."""


_FRAME_MOVED = "another frame is there than a moment ago, as after `cec repair`: read again"

LossHandler = Callable[[CecError], None]
"""Handles published output that is unreadable: it raises the error, or records it if the reader continues without."""


def raise_loss(lost: CecError) -> NoReturn:
    """A `LossHandler` for readers that accept no loss: raises the error."""
    raise lost


def output_batches(
    storage: Storage,
    catalog: Catalog,
    first: int,
    last: int,
    whole: bool,
    published: range,
    lost: LossHandler = raise_loss,
    wanted: str | None = None,
    exact: bool = False,
    takes: Callable[[manifest.Manifest], bool] = lambda _: True,
) -> list[OutputEntry]:
    """The output frames that count in the batches `first` to `last`, ordered by batch and partition.

    If `whole`, the result omits the batches before the newest one that replaced all output (complete mode). Then
    batches that are no longer kept are no loss. `published` are the batches that had a manifest just before; batches
    between the first and the newest have no gap.

    `lost` gets an error for each missing or damaged manifest and frame. Unless `whole`, it also gets an error for
    batches that are no longer kept: the reader has fallen behind. `wanted` is the schema of the reader, Spark's JSON.
    Raises `ColumnChanged` if a batch has other types. `exact` as in `find_column`. `takes`: whether the reader needs
    rows of a batch.
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
    if not whole and 0 < wanted_from < begins <= last:  # A stream that has read the batch before the first wanted one.
        lost(DamagedLog(manifest.manifest_path(wanted_from), -1, f"the manifests before batch {begins} are missing"))
    counting = [each for each in manifests if each.batch >= newest_whole and each.frames and takes(each)]
    if wanted is not None:
        for each in counting:
            check_columns(storage.url, wanted, each.batch, each.schema_json, exact=exact)
    return _find_frames(storage, catalog, counting, lost)


def _find_frames(
    storage: Storage, catalog: Catalog, manifests: Sequence[manifest.Manifest], lost: LossHandler
) -> list[OutputEntry]:
    entries = []
    known = catalog.ask_twice(partial(_look_up, catalog, manifests), lambda found: None in found.values())
    for each in manifests:
        for frame in each.frames:
            entry = known[frame]
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


def _look_up(catalog: Catalog, manifests: Sequence[manifest.Manifest]) -> dict[str, OutputEntry | None]:
    return {frame: catalog.index.output(bytes.fromhex(frame)) for each in manifests for frame in each.frames}


def first_published_since(storage: Storage, batches: Sequence[int], wall_ms: int, hint: int | None) -> int:
    """The first of the ascending `batches` published at or after `wall_ms`; the last batch + 1 if none was.

    A correct `hint`, from the timestamp index, spares a search. The hint may be wrong, because the index also has
    frames that no manifest names.
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
    lost: LossHandler = raise_loss,
    exact: bool = False,
) -> pa.Table:
    """The rows of output frames, as the sink wrote them, in the order of `frames`; the rest as in `output_tables`."""
    return concat_tables(list(output_tables(storage, frames, recent, lost).values()), columns, exact)


def output_tables(
    storage: Storage,
    frames: Mapping[bytes, Location],
    recent: Callable[[bytes], memoryview | None] = lambda _: None,
    lost: LossHandler = raise_loss,
) -> dict[bytes, pa.Table]:
    """The rows of each output frame, in the order of `frames`.

    `recent` returns the payload of a frame if it is in memory. `lost` gets an error for each frame that is damaged or
    has moved since the index was asked.
    """
    known = {frame: decode_table(payload) for frame in frames if (payload := recent(frame)) is not None}
    for location, frame in _read_sound(storage, [at for each, at in frames.items() if each not in known], lost):
        meta = frame.meta
        if isinstance(meta, OutputMeta) and frames.get(meta.frame_id) == location:
            known[meta.frame_id] = payload_table(frame)
        else:
            lost(DamagedLog(location.segment, location.offset, _FRAME_MOVED))
    return {frame: known[frame] for frame in frames if frame in known}


def log_records(
    storage: Storage, locations: Sequence[Location], columns: Sequence[str] | None, lost: LossHandler = raise_loss
) -> pa.Table:
    """The records of commit frames, each with its place. `lost` gets an error for each damaged frame."""
    tables = []
    for location, frame in _read_sound(storage, locations, lost):
        assert isinstance(frame.meta, CommitMeta)
        tables.append(_add_place(commit_records(frame), frame.meta, location))
    return concat_tables(tables, columns)


def concat_tables(tables: Sequence[pa.Table], columns: Sequence[str] | None, exact: bool = False) -> pa.Table:
    """One table with the named columns, None for all; null where a table lacks one. `exact` as in `find_column`."""
    # Project each table before: a column outside `columns` may have several types.
    asked = tables if columns is None else [project_columns(table, columns, exact) for table in tables]
    return pa.concat_tables(asked, promote_options="default") if asked else pa.table({})


def _read_sound(storage: Storage, locations: Sequence[Location], lost: LossHandler) -> list[tuple[Location, Frame]]:
    """The sound frames; a single read if all are sound."""
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


def project_columns(rows: pa.Table, columns: Sequence[str], exact: bool) -> pa.Table:
    """The named columns, null if the rows lack them. Without columns, the table still has the number of rows."""
    if not columns:
        return pa.table({"": pa.nulls(rows.num_rows, pa.int8())})
    there = {name: find_column(name, rows.column_names, exact=exact) for name in columns}
    return pa.table({name: pa.nulls(rows.num_rows) if own is None else rows[own] for name, own in there.items()})


def _add_place(records: pa.Table, meta: CommitMeta, location: Location) -> pa.Table:
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
    """One row per state key of an EC: key, value, footprint version, partition, and `dirty`.

    If the row is certainly the window's state at that version, `dirty` is false. Else `dirty` is null: the log has the
    number of dirty windows, but not their names.
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
