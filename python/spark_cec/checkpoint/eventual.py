"""The eventual checkpoint EC(v): for every window open at v, its newest footprint at or below v.

A rebuild reads the tail of the log in large reads, frame by frame backwards along the chain of checkpoint ids. It stops
at N footprints (Sebepou & Magoutis, section III). No Python loop runs over records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_cec.errors import DamagedLog
from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.byte_planes import sort_word, varying_words
from spark_cec.log.index import CommitEntry, Index, first_of
from spark_cec.log.meta import CommitFlags, CommitMeta
from spark_cec.log.reader import commit_records, read_many
from spark_cec.log.record import RecordKind
from spark_cec.log.storage import Storage

_ANY_GENERATION = 1 << 63

READ_BYTES, READ_RECORDS = 64 << 20, 10_000_000
"""The stored bytes, and the records, that one piece reads and decodes; they bound a rebuild's memory beside its result.
"""

_MOST_WORDS = 3
"""Window keys of at most this many words are compared word by word: integers hash faster than bytes."""


@dataclass(frozen=True, slots=True)
class EventualCheckpoint:
    """The EC of one store.

    `records` has one row per state key: `window` and `value` (binary), `key` (binary, grouped stores only), `family`
    (int16, stores with column families only) and `footprint` (int64, the version tau). `scanned` counts the records
    read.
    """

    head: CommitEntry
    records: pa.Table
    scanned: int
    chain: tuple[CommitEntry, ...]

    def live(self) -> dict[int, int]:
        """The number of open windows per footprint version."""
        if not self.records.num_rows:
            return {}
        versions, counts = np.unique(_keep_one_row(self.records)["footprint"].to_numpy(), return_counts=True)
        return dict(zip(versions.tolist(), counts.tolist(), strict=True))


def head_at(
    index: Index,
    store: StoreId,
    version: int,
    checkpoint_id: bytes | None = None,
    allows: Callable[[CommitEntry], bool] = lambda _: True,
) -> CommitEntry:
    """The frame of `store` at `version`: the commit `checkpoint_id`, else the newest run's last attempt, or its flush.

    `allows` tells which attempts Spark may have committed. Raises `DamagedLog` if there is no such frame: Spark
    committed the version, so the frame is lost.
    """
    left = [e for e in index.newest(store, version) if e.meta.version == version]
    if checkpoint_id is not None:
        left = [e for e in left if e.meta.checkpoint_id == checkpoint_id]
    attempts = [e for e in left if allows(e)]
    if attempts:
        return completed(index, attempts[-1])
    if left:
        raise DamagedLog(
            f"store {store}",
            -1,
            f"the commit frame of version {version} is lost: what is there of that version was written by run "
            f"{left[-1].meta.generation}, and Spark has not committed that attempt, but another one",
        )
    known = [e.meta.version for e in index.newest(store, version)]
    wanted = f" with checkpoint id {checkpoint_id.hex()}" if checkpoint_id else ""
    raise DamagedLog(
        f"store {store}",
        -1,
        f"no commit frame of version {version}{wanted}; newest at or below it: {known[-1] if known else 'none'}",
    )


def completed(index: Index, commit: CommitEntry) -> CommitEntry:
    """The flush of a commit, which has the windows that the commit left dirty; the commit itself without a flush.

    A flush by an earlier run belongs to the frame that this commit replaced.
    """
    return _find_flush(commit, index.frames(commit.meta.store, commit.meta.version, commit.meta.version))


def _find_flush(commit: CommitEntry, frames: Sequence[CommitEntry]) -> CommitEntry:
    flush = first_of(frames, commit.meta.checkpoint_id, flush=True)
    return flush if flush is not None and flush.meta.generation >= commit.meta.generation else commit


def _find_known_flush(commit: CommitEntry, frames: Sequence[CommitEntry], child: CommitMeta) -> CommitEntry:
    """The flush of `commit` if `child`, which builds on that commit, knew of it; else the commit itself.

    A flush leaves no window dirty, so D of a commit that knew of it is not before it. A flush that was written later,
    or whose answer was lost, would make windows clean that are dirty in the books of `child`.
    """
    if child.dirty_from < commit.meta.version:
        return commit
    flush = _find_flush(commit, frames)
    if child.flags & CommitFlags.ON_FLUSH and flush is commit:
        raise DamagedLog(
            f"store {child.store}",
            -1,
            f"the flush of version {commit.meta.version}, which version {child.version} rests on, is lost",
        )
    return flush


def base_of(index: Index, commit: CommitMeta) -> CommitEntry | None:
    """The commit that `commit` builds on; None if the log lacks it.

    It usually made the version before. If a protocol tells the stores when to write, it is the store's previous write.
    """
    version = commit.version
    while version > 1 and commit.base_checkpoint_id != NO_CHECKPOINT:
        attempts = index.newest(commit.store, version - 1)
        if not attempts:
            return None
        version = attempts[-1].meta.version
        found = first_of(attempts, commit.base_checkpoint_id, flush=False)
        if found is not None:
            return found
    return None


def chain_of(index: Index, head: CommitEntry, oldest: int | None = None) -> list[CommitEntry]:
    """The frames that `head` builds on, newest first, back to version `oldest` (default: its oldest footprint).

    A commit's flush stands right before the commit.
    """
    meta = head.meta
    back_to = max(meta.oldest_footprint if oldest is None else oldest, 1)
    chain: list[CommitEntry] = []
    by_version: dict[int, list[CommitEntry]] = {}
    for entry in index.frames(meta.store, back_to, meta.version):
        by_version.setdefault(entry.meta.version, []).append(entry)
    version, checkpoint_id = meta.version, meta.checkpoint_id
    newest = _ANY_GENERATION
    child: CommitMeta | None = None
    while True:
        frames = [entry for entry in by_version.get(version, []) if entry.meta.generation <= newest]
        commit = head if head.meta.version == version and not meta.is_flush else None
        commit = commit or first_of(frames, checkpoint_id, flush=False)
        if commit is None:
            above = chain[-1].meta.version if chain else version
            raise DamagedLog(
                f"store {meta.store}",
                -1,
                f"the commit frame of version {version}, which version {above} rests on, is lost",
            )
        flush = _find_flush(commit, frames) if child is None else _find_known_flush(commit, frames, child)
        chain += [flush, commit] if flush is not commit else [commit]
        if version <= back_to:
            return chain
        checkpoint_id = commit.meta.base_checkpoint_id
        if not any(entry.meta.checkpoint_id == checkpoint_id for entry in by_version.get(version - 1, [])):
            base = base_of(index, commit.meta)
            if base is not None and base.meta.version < back_to:
                return chain
            version = base.meta.version + 1 if base is not None else version
        version -= 1
        newest, child = commit.meta.generation, commit.meta


def rebuild(storage: Storage, index: Index, head: CommitEntry) -> EventualCheckpoint:
    """EC at the version of `head`; raises `DamagedLog` if the log lacks a footprint of an open window."""
    chain = chain_of(index, head)
    wanted, found, scanned = head.meta.open_windows, 0, 0
    parts: list[pa.Table] = []
    decided: list[pa.Table] = []
    for records in _read_newest_first(storage, chain):
        if found >= wanted:
            break
        scanned += records.num_rows
        newest = _drop_decided(_keep_newest(records), decided)
        decided.append(_keep_one_row(newest).select(_identity_columns(newest)))
        is_open = pc.not_equal(newest["kind"], int(RecordKind.CLOSE))
        footprints = newest if pc.all(is_open).as_py() else newest.filter(is_open)  # a filter copies all rows
        found += _keep_one_row(footprints).num_rows
        parts.append(footprints.drop_columns(["kind"]))
    if found != wanted:
        raise DamagedLog(
            head.location.segment, head.location.offset,
            f"store {head.meta.store} has {wanted} open windows at version {head.meta.version}, but the log holds "
            f"footprints of {found}",
        )  # fmt: skip
    records = pa.concat_tables(parts) if parts else pa.table({"window": pa.array([], pa.binary())})
    return EventualCheckpoint(head, records, scanned, tuple(chain))


def _read_newest_first(storage: Storage, chain: Sequence[CommitEntry]) -> Iterator[pa.Table]:
    """The chain's records in large pieces, newest frame first; the column `footprint` is the version of their frame."""
    for piece in _split_chain([entry for entry in chain if entry.meta.records]):
        frames = read_many(storage, [entry.location for entry in piece])
        tables = [
            commit_records(frame).append_column(
                "footprint", pa.repeat(pa.scalar(entry.meta.version, pa.int64()), entry.meta.records)
            )
            for entry, frame in zip(piece, frames, strict=True)
        ]
        yield pa.concat_tables(tables)


def _split_chain(chain: Sequence[CommitEntry]) -> Iterator[list[CommitEntry]]:
    piece: list[CommitEntry] = []
    stored = records = 0
    for entry in chain:
        piece.append(entry)
        stored, records = stored + entry.location.length, records + entry.meta.records
        if stored >= READ_BYTES or records >= READ_RECORDS:
            yield piece
            piece, stored, records = [], 0, 0
    if piece:
        yield piece


def _identity_columns(records: pa.Table) -> list[str]:
    return [name for name in ("family", "window") if name in records.column_names]


def _number_windows(records: pa.Table) -> tuple[np.ndarray, int]:
    """A number for each row's window, in order of first appearance, and the number of windows."""
    words = varying_words(records["window"])
    if words is not None and 0 < len(words) <= _MOST_WORDS:
        codes, distinct = _encode_values(pa.array(words[0]))
        for word in words[1:]:
            more, count = _encode_values(pa.array(word))
            codes, distinct = _encode_values(pa.array(codes * count + more))
    else:
        codes, distinct = _encode_values(records["window"])
    if "family" in records.column_names:
        return _encode_values(pa.array(records["family"].to_numpy().astype(np.int64) * distinct + codes))
    return codes, distinct


def _mark_first_rows(codes: np.ndarray) -> np.ndarray:
    """Whether each row is the first of its window; `codes` number the windows in order of first appearance."""
    seen = np.maximum.accumulate(codes)
    first = np.ones(len(codes), dtype=bool)
    np.greater(seen[1:], seen[:-1], out=first[1:])
    return first


def _mark_first_of_word(word: np.ndarray) -> np.ndarray:
    """Whether each row is the first with its word. A sort takes less than half the time of Arrow's hash table."""
    order = sort_word(word)
    in_order = word[order]
    begins = np.ones(len(word), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=begins[1:])
    first = np.zeros(len(word), dtype=bool)
    first[order[begins]] = True
    return first


def _widen(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Binary values with offsets of 64 bits, so that a hash table of them may exceed 2 GiB; not a copy."""
    return values.cast(pa.large_binary()) if pa.types.is_binary(values.type) else values


def _encode_values(values: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, int]:
    encoded = _widen(values).dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _keep_newest(records: pa.Table) -> pa.Table:
    """The rows of each window's newest version; `records` are newest first."""
    if not records.num_rows:
        return records
    if _identity_columns(records) == ["window"] and "key" not in records.column_names:
        words = varying_words(records["window"], most=2)
        if words is not None and len(words) == 1:
            return records.filter(pa.array(_mark_first_of_word(words[0])))
    codes, _ = _number_windows(records)
    first = _mark_first_rows(codes)
    if "key" in records.column_names:  # a window has several rows, all in one frame
        versions = records["footprint"].to_numpy()
        first = versions == versions[first][codes]
    return records.filter(pa.array(first))


def _keep_one_row(records: pa.Table) -> pa.Table:
    """Identity and footprint of each window's first row."""
    if "key" not in records.column_names or not records.num_rows:
        return records
    codes, _ = _number_windows(records)
    return records.select([*_identity_columns(records), "footprint"]).filter(pa.array(_mark_first_rows(codes)))


def _drop_decided(records: pa.Table, decided: Sequence[pa.Table]) -> pa.Table:
    """The rows of windows that no newer piece of the log contains."""
    for newer in decided:
        if not newer.num_rows or not records.num_rows:
            continue
        if "family" in records.column_names:
            records = records.filter(_mark_others(records.select(_identity_columns(records)), newer))
        else:
            is_known = pc.is_in(_widen(records["window"]), value_set=_widen(newer["window"]))
            records = records.filter(pc.invert(is_known))
    return records


def _mark_others(records: pa.Table, newer: pa.Table) -> pa.Array:
    """Whether each row's identity is not in `newer`.

    The join has places of rows, and no values: it mixes the rows, and 32,768 long values exceed its batches.
    """
    placed = records.append_column("place", pa.array(np.arange(records.num_rows)))
    others = placed.join(newer, keys=records.column_names, join_type="left anti")["place"]
    marks = np.zeros(records.num_rows, dtype=bool)
    marks[others.to_numpy()] = True
    return pa.array(marks)
