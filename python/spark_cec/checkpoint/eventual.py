"""The eventual checkpoint EC(v): for every window open at v, its newest footprint at or below v.

It is rebuilt from the tail of the log: frame by frame backwards along the chain of checkpoint ids, in large reads,
until N footprints are found (Sebepou & Magoutis, section III). No Python loop runs over records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.index import CommitEntry, Index
from spark_cec.log.reader import commit_records, read_many
from spark_cec.log.record import RecordKind
from spark_cec.log.storage import Storage

READ_BYTES = 64 << 20
"""Stored bytes read and decoded together; bounds the memory of a rebuild beside its result."""


@dataclass(frozen=True, slots=True)
class EventualCheckpoint:
    """EC of one store.

    `records` has one row per state key: `window` and `value` (binary), `key` (binary, grouped stores only), `family`
    (int16, stores with column families only) and `footprint` (int64, the version tau). `scanned` counts records read.
    """

    head: CommitEntry
    records: pa.Table
    scanned: int
    chain: tuple[CommitEntry, ...]

    def live(self) -> dict[int, int]:
        """Open windows per footprint version."""
        if not self.records.num_rows:
            return {}
        versions, counts = np.unique(_one_row_per_window(self.records)["footprint"].to_numpy(), return_counts=True)
        return dict(zip(versions.tolist(), counts.tolist(), strict=True))


def head_at(index: Index, store: StoreId, version: int, checkpoint_id: bytes | None = None) -> CommitEntry:
    """The commit frame that stands for `store` at `version`: the one named, or else the newest run's last attempt.

    Raises `DamagedLog` if there is none: Spark says the version was committed, so its frame is lost.
    """
    attempts = [e for e in index.newest(store, version) if e.meta.version == version]
    if checkpoint_id is not None:
        attempts = [e for e in attempts if e.meta.checkpoint_id == checkpoint_id]
    if attempts:
        return attempts[-1]
    known = [e.meta.version for e in index.newest(store, version)]
    wanted = f" with checkpoint id {checkpoint_id.hex()}" if checkpoint_id else ""
    raise DamagedLog(
        f"store {store}",
        -1,
        f"no commit frame of version {version}{wanted}; newest at or below it: {known[-1] if known else 'none'}",
    )


def chain_of(index: Index, head: CommitEntry, oldest: int | None = None) -> list[CommitEntry]:
    """The commits that `head` rests on, newest first, back to version `oldest` (default: its oldest footprint)."""
    back_to = head.meta.oldest_footprint if oldest is None else oldest
    chain = [head]
    while chain[-1].meta.version > max(back_to, 1):
        meta = chain[-1].meta
        base = index.commit(meta.store, meta.version - 1, meta.base_checkpoint_id)
        if base is None:
            raise DamagedLog(
                f"store {meta.store}",
                -1,
                f"the commit frame of version {meta.version - 1}, which version {meta.version} rests on, is lost",
            )
        chain.append(base)
    return chain


def rebuild(storage: Storage, index: Index, head: CommitEntry) -> EventualCheckpoint:
    """EC at the version of `head`; raises `DamagedLog` if the log does not hold a footprint for each open window."""
    chain = chain_of(index, head)
    wanted, found, scanned = head.meta.open_windows, 0, 0
    parts: list[pa.Table] = []
    decided: list[pa.Table] = []
    for records in _newest_first(storage, chain):
        if found >= wanted:
            break
        scanned += records.num_rows
        newest = _not_decided(_newest_per_window(records), decided)
        decided.append(_one_row_per_window(newest).select(_identity(newest)))
        footprints = newest.filter(pc.not_equal(newest["kind"], int(RecordKind.CLOSE)))
        found += _one_row_per_window(footprints).num_rows
        parts.append(footprints.drop_columns(["kind"]))
    if found != wanted:
        raise DamagedLog(
            head.location.segment, head.location.offset,
            f"store {head.meta.store} has {wanted} open windows at version {head.meta.version}, but the log holds "
            f"footprints of {found}",
        )  # fmt: skip
    records = pa.concat_tables(parts) if parts else pa.table({"window": pa.array([], pa.binary())})
    return EventualCheckpoint(head, records, scanned, tuple(chain))


def _newest_first(storage: Storage, chain: Sequence[CommitEntry]) -> Iterator[pa.Table]:
    """Records of the chain in large pieces, newest piece first; inside a piece oldest first, with `version` added."""
    for piece in _pieces([entry for entry in chain if entry.meta.records]):
        frames = read_many(storage, [entry.location for entry in piece])
        tables = [
            commit_records(frame).append_column(
                "footprint", pa.repeat(pa.scalar(entry.meta.version, pa.int64()), entry.meta.records)
            )
            for entry, frame in zip(piece, frames, strict=True)
        ]
        yield pa.concat_tables(reversed(tables))


def _pieces(chain: Sequence[CommitEntry]) -> Iterator[list[CommitEntry]]:
    piece: list[CommitEntry] = []
    stored = 0
    for entry in chain:
        piece.append(entry)
        stored += entry.location.length
        if stored >= READ_BYTES:
            yield piece
            piece, stored = [], 0
    if piece:
        yield piece


def _identity(records: pa.Table) -> list[str]:
    return [name for name in ("family", "window") if name in records.column_names]


def _window_codes(records: pa.Table) -> tuple[np.ndarray, int]:
    """A dense integer per row, equal for rows of the same window, and how many there are."""
    windows = records["window"].dictionary_encode().combine_chunks()
    windows = windows.chunk(0) if isinstance(windows, pa.ChunkedArray) else windows
    codes = windows.indices.to_numpy().astype(np.int64)
    distinct = len(windows.dictionary)
    if "family" in records.column_names:
        codes += records["family"].to_numpy().astype(np.int64) * distinct
        return np.unique(codes, return_inverse=True)[1], int(codes.max(initial=0)) + 1
    return codes, distinct


def _newest_per_window(records: pa.Table) -> pa.Table:
    """The rows of each window's newest version; `records` are oldest first."""
    if not records.num_rows:
        return records
    codes, distinct = _window_codes(records)
    versions = records["footprint"].to_numpy()
    newest = np.zeros(distinct, dtype=np.int64)
    np.maximum.at(newest, codes, versions)
    return records.filter(pa.array(versions == newest[codes]))


def _one_row_per_window(records: pa.Table) -> pa.Table:
    """The first row of each window; all of them where every window has one row."""
    if "key" not in records.column_names or not records.num_rows:
        return records
    codes, _ = _window_codes(records)
    return records.take(pa.array(np.unique(codes, return_index=True)[1]))


def _not_decided(records: pa.Table, decided: Sequence[pa.Table]) -> pa.Table:
    """The rows whose window no newer piece of the log has spoken of."""
    for newer in decided:
        if not newer.num_rows or not records.num_rows:
            continue
        if "family" in records.column_names:
            records = records.join(newer, keys=_identity(records), join_type="left anti")
        else:
            records = records.filter(pc.invert(pc.is_in(records["window"], value_set=newer["window"].combine_chunks())))
    return records
