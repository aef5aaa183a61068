"""Writes the frames of commits, in the agent: the footer of each, and the records that the shim has chosen.

`CommitRecordChooser.scala` chooses the windows that a commit writes, by the plan of the commit before.
`log.meta.CommitMeta` has the fields of the footer, and `log/FORMAT.md` has the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_cec.checkpoint.eventual import base_of, chain_of, completed
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.policy import Plan
from spark_cec.checkpoint.recovery_target import NEVER_FAILED, Calibration, Forecast
from spark_cec.errors import CecError, DamagedLog
from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import CommitFlags, CommitMeta, FrameKind
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.record import encode_commit
from spark_cec.log.segment import Location
from spark_cec.log.writer import NewFrame, SegmentWriter
from spark_cec.settings import Settings


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The shim's description of a commit, besides its records.

    `meta` lacks the fields that only the agent knows (records, extent, replay). `live_changes` changes the number of
    open windows per footprint version. If `live_is_whole`, `live_changes` has the whole number per version, and the
    store's ledger begins anew. `timed_batch` is the newest batch that the driver has timed, and its time in ms.
    `since_start_ms` is the time since the query's start.
    """

    meta: CommitMeta
    live_changes: Mapping[int, int]
    live_is_whole: bool
    retained_batches: int
    forecast: Forecast = NEVER_FAILED
    timed_batch: tuple[int, float] | None = None
    since_start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The durable commit, whose footer has q, u and the recovery estimate, and the plan for the next commit."""

    entry: CommitEntry
    plan: Plan


class LedgerMissing(CecError):
    """The agent has no ledger of the store at the commit's base: send the commit again with the whole ledger."""


class StoreLedgers:
    """The ledgers of the stores whose commits this agent writes."""

    def __init__(self) -> None:
        self._ledgers: dict[StoreId, tuple[bytes, Footprints]] = {}
        self._shown: dict[StoreId, Footprints] = {}
        self._calibrations: dict[StoreId, Calibration] = {}

    def calibration(self, index: Index, store: StoreId, version: int, checkpoint_id: bytes) -> Calibration:
        """The store's measurements; at first those in the footer of the commit that made `version`."""
        known = self._calibrations.get(store)
        if known is None:
            base = index.commit(store, version, checkpoint_id) if version > 0 else None
            known = self._calibrations[store] = Calibration.of(base.meta if base is not None else None)
        return known

    def note_load(self, store: StoreId, ms: float, forecast: Forecast) -> None:
        """Records the time of an eventual checkpoint's load, by the shim's clock."""
        if store in self._calibrations:
            self._calibrations[store].note_load(ms, forecast)

    def open_ledger(self, index: Index, request: CommitRequest) -> Footprints:
        """The ledger as it was before this commit; rebuilds the history from the log if the shim sends the whole
        ledger.
        """
        meta = request.meta
        known_id, ledger = self._ledgers.pop(meta.store, (None, None))
        if ledger is not None and not request.live_is_whole and known_id == meta.base_checkpoint_id:
            return ledger
        if not request.live_is_whole:
            raise LedgerMissing(
                f"store {meta.store} version {meta.version}: this process has no ledger of it; send the whole ledger"
            )
        return Footprints.restore(
            _read_history(index, meta, request.live_changes), {}, meta.dirty_from, meta.dirty_windows
        )

    def close_ledger(self, meta: CommitMeta, ledger: Footprints) -> None:
        """Keeps the ledger for the next commit."""
        self._ledgers[meta.store] = (meta.checkpoint_id, ledger)
        self._shown[meta.store] = ledger

    @property
    def are_kept(self) -> bool:
        """Whether this agent writes any store of the log."""
        return bool(self._shown)

    def live(self) -> dict[StoreId, tuple[int, dict[int, int]]]:
        """By store, its newest version, and by version the open windows whose newest record is of that version.

        A store whose commit is under way counts, too. For people alone: the commit may change the numbers meanwhile.
        """
        return {store: (ledger.version, dict(ledger.live)) for store, ledger in list(self._shown.items())}

    def forget(self, store: StoreId) -> None:
        """Drops the store's ledger, so that the next commit must bring the whole ledger."""
        self._ledgers.pop(store, None)
        self._shown.pop(store, None)


def _read_history(index: Index, meta: CommitMeta, live: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(version, records, inputs) of the commits that this one builds on, back to the oldest footprint or D."""
    if meta.base_checkpoint_id == NO_CHECKPOINT or meta.version <= 1:
        return []
    base = base_of(index, meta)
    if base is None:
        raise DamagedLog(
            f"store {meta.store}", -1, f"the commit frame of version {meta.version - 1}, the base of a commit, is lost"
        )
    oldest = min([meta.dirty_from, base.meta.dirty_from, base.meta.oldest_footprint, *live])
    return [(e.meta.version, e.meta.records, e.meta.inputs) for e in chain_of(index, base, oldest)]


def _rests_on_flush(index: Index, meta: CommitMeta) -> bool:
    """Whether a flush completed the base, and the commit knew of it; it brings the whole ledger then."""
    if meta.base_checkpoint_id == NO_CHECKPOINT:
        return False
    base = base_of(index, meta)
    return base is not None and meta.dirty_from >= base.meta.version and completed(index, base) is not base


@dataclass(frozen=True, slots=True)
class _EncodedCommit:
    """A commit whose frame is encoded and not yet written. `encode_us`: the time that the encoding took."""

    request: CommitRequest
    meta: CommitMeta
    ledger: Footprints
    calibration: Calibration
    frame: NewFrame
    payload_bytes: int
    encode_us: float


def commit_stores(
    commits: Sequence[tuple[CommitRequest, Callable[[], pa.Table | None]]],
    *,
    settings: Settings,
    catalog: Catalog,
    writer: SegmentWriter,
    ledgers: StoreLedgers,
    beside: Sequence[NewFrame] = (),
) -> list[CommitResult]:
    """Commits a version of each store (docs/design.md, One commit, steps 6 to 9); on return all are durable.

    Each commit has a function that reads the records of its spool file. Other frames are written `beside` them.

    1. Read the spool file's records.
    2. Open the store's ledger, as it was before this commit.
    3. Bring the ledger to the new version, which gives q and u.
    4. Encode the frame.
    5. Write the frames of all stores together, and make them durable.
    6. Update the index.
    7. Calibrate the bounds by the measurements, ask the policy for the next plan, and close the ledger.

    If a step fails, the ledgers stay open, and the next commit of each store must bring the whole ledger.
    """
    encoded = [_encode(request, read, settings, catalog.index, ledgers) for request, read in commits]  # 1 to 4
    written = writer.append_all([*(each.frame for each in encoded), *beside])  # 5
    for header, location in written:
        catalog.note(header, location)  # 6
    return [  # 7
        _finish(each, location, settings, ledgers) for each, (_, location) in zip(encoded, written, strict=False)
    ]


def _encode(
    request: CommitRequest,
    read_spool: Callable[[], pa.Table | None],
    settings: Settings,
    index: Index,
    ledgers: StoreLedgers,
) -> _EncodedCommit:
    started = time.perf_counter_ns()
    records = read_spool()  # 1
    rows = records.num_rows if records is not None else 0
    ledger = ledgers.open_ledger(index, request)  # 2
    if request.live_is_whole:
        ledger.live = {}
    meta = request.meta
    ledger.commit(  # 3
        meta.version, records=rows, inputs=meta.inputs, live_changes=request.live_changes,
        dirty_from=meta.dirty_from, dirty_windows=meta.dirty_windows,
    )  # fmt: skip
    if ledger.open_windows != meta.open_windows:
        raise ValueError(
            f"store {meta.store} version {meta.version}: {meta.open_windows} open windows, "
            f"the ledger has {ledger.open_windows}"
        )
    calibration = ledgers.calibration(index, meta.store, meta.version - 1, meta.base_checkpoint_id)
    if request.timed_batch is not None:
        calibration.note_batch(*request.timed_batch)
    calibration.record_start(request.since_start_ms, request.forecast)
    on_flush = CommitFlags.ON_FLUSH if request.live_is_whole and _rests_on_flush(index, meta) else 0
    meta = replace(
        meta, records=rows, oldest_footprint=ledger.oldest_footprint, extent=ledger.extent, replay=ledger.replay,
        flags=meta.flags | on_flush, decoded_bytes=records.nbytes if records is not None else 0,
        elapsed_us=meta.elapsed_us + (time.perf_counter_ns() - started) // 1000,
    )  # fmt: skip
    meta = calibration.sign_footer(meta, request.forecast)
    encoding = time.perf_counter_ns()
    payload, frame_flags = encode_commit(records, settings.compression)  # 4
    encode_us = (time.perf_counter_ns() - encoding) / 1000
    frame = NewFrame(FrameKind.COMMIT, meta, payload, frame_flags)
    return _EncodedCommit(request, meta, ledger, calibration, frame, len(payload), encode_us)


def _finish(commit: _EncodedCommit, location: Location, settings: Settings, ledgers: StoreLedgers) -> CommitResult:
    meta, ledger, calibration, request = commit.meta, commit.ledger, commit.calibration, commit.request
    calibration.note_commit(meta, commit.encode_us, commit.payload_bytes, ledger.live.get(meta.version, 0))
    ledgers.close_ledger(meta, ledger)
    plan = calibration.plan(settings, request.forecast, ledger, request.retained_batches)
    return CommitResult(CommitEntry(meta, location), plan)


def adopt_commit(
    entry: CommitEntry,
    request: CommitRequest,
    *,
    settings: Settings,
    index: Index,
    ledgers: StoreLedgers,
) -> CommitResult:
    """The result of a commit that is already in the log, because its agent died before it answered.

    The request must bring the whole ledger after the commit.
    """
    meta = entry.meta
    chain = chain_of(index, entry, min(meta.oldest_footprint, meta.dirty_from))
    history = [(e.meta.version, e.meta.records, e.meta.inputs) for e in chain]
    ledger = Footprints.restore(history, request.live_changes, meta.dirty_from, meta.dirty_windows)
    ledgers.close_ledger(meta, ledger)
    calibration = ledgers.calibration(index, meta.store, meta.version, meta.checkpoint_id)
    return CommitResult(entry, calibration.plan(settings, request.forecast, ledger, request.retained_batches))
