"""What the engine's tests share: a log in memory with a catalog, and stores that commit to it beside a model."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import pyarrow as pa

from spark_cec.checkpoint.commit_frames import CommitRequest, CommitResult, StoreLedgers, commit_stores
from spark_cec.checkpoint.eventual import EventualCheckpoint
from spark_cec.checkpoint.flush import flush_store
from spark_cec.ids import NO_CHECKPOINT, StoreId, new_id
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import CommitFlags, CommitMeta
from spark_cec.log.index import MemoryIndex
from spark_cec.log.record import GROUPED_SCHEMA, PLAIN_SCHEMA, RecordKind
from spark_cec.log.storage import Storage
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import Settings
from tests.log.support import LOG_ID, WRITER_ID, make_writer, memory_storage

RETAINED = 100

Rows = dict[bytes, bytes]
"""A window's rows: {key: value}; a plain window has one row, whose key is the window's id."""

State = dict[bytes, Rows]


@dataclass
class Log:
    """A log, its catalog, and a writer; `ledgers` are those of one agent."""

    storage: Storage = field(default_factory=memory_storage)
    writer_id: str = WRITER_ID
    segment_bytes: int = 1 << 20
    settings: Settings = field(default_factory=Settings)
    ledgers: StoreLedgers = field(default_factory=StoreLedgers)
    catalog: Catalog = field(init=False)
    writer: SegmentWriter = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = Catalog(self.storage, MemoryIndex(LOG_ID))
        self.catalog.refresh()
        self.writer = make_writer(self.storage, self.segment_bytes, self.writer_id)

    def commit(self, request: CommitRequest, records: pa.Table | None) -> CommitResult:
        """One commit, as the agent does it."""
        return commit_stores(
            [(request, lambda: records)], settings=self.settings, catalog=self.catalog, writer=self.writer,
            ledgers=self.ledgers,
        )[0]

    def flush(self, request: CommitRequest, records: pa.Table | None) -> CommitResult:
        """The flush of a commit, as the agent does it."""
        return flush_store(
            request, records, settings=self.settings, storage=self.storage, catalog=self.catalog, writer=self.writer,
            ledgers=self.ledgers,
        )


def record_table(grouped: bool, records: list[tuple[RecordKind, bytes, Rows]]) -> pa.Table | None:
    """Rows of records; a CLOSE has none of its own and is one row."""
    rows = [
        {"kind": kind, "window": window, "key": key, "value": value}
        for kind, window, content in records
        for key, value in (content.items() if kind is not RecordKind.CLOSE else [(window, None)])
    ]
    return pa.Table.from_pylist(rows, schema=GROUPED_SCHEMA if grouped else PLAIN_SCHEMA) if rows else None


@dataclass(frozen=True)
class Tip:
    """A store at a version: what a next commit rests on."""

    version: int = 0
    checkpoint_id: bytes = NO_CHECKPOINT
    state: Mapping[bytes, Rows] = field(default_factory=dict)
    footprints: Mapping[bytes, int] = field(default_factory=dict)
    seen: Mapping[bytes, Rows] = field(default_factory=dict)
    dirty: Mapping[bytes, int] = field(default_factory=dict)

    def next(
        self, changes: Mapping[bytes, Rows], checked: AbstractSet[bytes]
    ) -> tuple[Tip, list[tuple[RecordKind, bytes, Rows]]]:
        """The tip after a batch (a window without rows closes) that checks some windows, and its records."""
        version = self.version + 1
        state = {window: rows for window, rows in {**self.state, **changes}.items() if rows}
        opened = state.keys() - self.state.keys()
        closed = self.state.keys() - state.keys()
        checked = {window for window in checked if window in state} - opened
        records: list[tuple[RecordKind, bytes, Rows]] = [(RecordKind.CLOSE, window, {}) for window in sorted(closed)]
        records += [(RecordKind.OPEN, window, state[window]) for window in sorted(opened)]
        records += [(RecordKind.CHECK, window, state[window]) for window in sorted(checked)]
        written = opened | checked
        dirty = {**{w: self.version for w in changes if w in state}, **self.dirty}
        tip = Tip(
            version,
            new_id(),
            state,
            {w: version if w in written else self.footprints[w] for w in state},
            {w: state[w] if w in written else self.seen[w] for w in state},
            {w: since for w, since in dirty.items() if w in state and w not in written},
        )
        return tip, records

    def flushed(self) -> tuple[Tip, list[tuple[RecordKind, bytes, Rows]]]:
        """The same version when its dirty windows are written, and the records."""
        records = [(RecordKind.CHECK, window, self.state[window]) for window in sorted(self.dirty)]
        footprints = {**self.footprints, **dict.fromkeys(self.dirty, self.version)}
        return replace(self, footprints=footprints, seen=self.state, dirty={}), records


def request(
    store: StoreId,
    before: Tip,
    after: Tip,
    records: list[tuple[RecordKind, bytes, Rows]],
    grouped: bool,
    *,
    whole: bool,
    inputs: int = 1,
    generation: int = 1,
    wall_ms: int = 0,
    flags: int = 0,
) -> CommitRequest:
    """What the shim would send for this commit; with the whole ledger, or only what changed in it."""

    def counts(footprints: Mapping[bytes, int], sign: int, into: dict[int, int]) -> dict[int, int]:
        for version in footprints.values():
            into[version] = into.get(version, 0) + sign
        return into

    live = counts(after.footprints, 1, {} if whole else counts(before.footprints, -1, {}))
    kinds = [kind for kind, _, content in records for _ in (content if kind is not RecordKind.CLOSE else [0])]
    meta = CommitMeta(
        store=store,
        version=after.version,
        checkpoint_id=after.checkpoint_id,
        base_checkpoint_id=before.checkpoint_id,
        generation=generation,
        open_windows=len(after.state),
        dirty_from=min(after.dirty.values(), default=after.version),
        oldest_footprint=after.version,
        opened=kinds.count(RecordKind.OPEN),
        checked=kinds.count(RecordKind.CHECK),
        closed=kinds.count(RecordKind.CLOSE),
        records=0,
        inputs=inputs,
        dirty_windows=len(after.dirty),
        wall_ms=wall_ms,
        watermark_ms=0,
        flags=flags | (CommitFlags.GROUPED if grouped else 0),
    )
    return CommitRequest(meta, {at: count for at, count in live.items() if count}, whole, RETAINED)


def found_state(checkpoint: EventualCheckpoint, grouped: bool) -> tuple[State, dict[bytes, int]]:
    """An eventual checkpoint as windows with rows, and footprints."""
    state: State = {}
    footprints: dict[bytes, int] = {}
    for row in checkpoint.records.to_pylist():
        key = row["key"] if grouped else row["window"]
        rows = state.setdefault(row["window"], {})
        assert key not in rows, f"{key!r} comes twice"
        rows[key] = row["value"]
        assert footprints.setdefault(row["window"], row["footprint"]) == row["footprint"], "a window of two versions"
    return state, footprints
