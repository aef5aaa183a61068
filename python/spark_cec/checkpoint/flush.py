"""The flush of a commit writes the windows that the commit left dirty, so that its eventual checkpoint is complete.

A store is flushed at the end of a replay, when its query stops, before it moves to another executor, and on request.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa

from spark_cec.checkpoint.commit_frames import CommitRequest, CommitResult, StoreLedgers
from spark_cec.checkpoint.eventual import chain_of
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.errors import DamagedLog
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.index import CommitEntry
from spark_cec.log.record import encode_commit
from spark_cec.log.segment import segment_path
from spark_cec.log.storage import Storage
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import Settings


def flush_store(
    request: CommitRequest,
    records: pa.Table | None,
    *,
    settings: Settings,
    storage: Storage,
    catalog: Catalog,
    writer: SegmentWriter,
    ledgers: StoreLedgers,
) -> CommitResult:
    """Completes the commit of the request's version and checkpoint id; when it returns, the flush is durable.

    1. Find the commit. If it has a known flush, keep that flush: both flushes have the same content. Its writer may
       have died before it was durable, so sync it.
    2. Compute q and u from the commit's chain and the request's ledger.
    3. Write the frame, and update the index.
    4. Drop the ledger: the next commit brings its own.

    Raises `DamagedLog` if the log lacks the commit.
    """
    meta = request.meta
    commit = catalog.index.commit(meta.store, meta.version, meta.checkpoint_id)  # 1
    if commit is None:
        catalog.refresh(asks_sizes=True)
        commit = catalog.index.commit(meta.store, meta.version, meta.checkpoint_id)
    if commit is None:
        raise DamagedLog(
            f"store {meta.store}", -1, f"no commit frame of version {meta.version} with id {meta.checkpoint_id.hex()}"
        )
    entry = catalog.index.flush(meta.store, meta.version, meta.checkpoint_id)
    if entry is not None:
        storage.sync(segment_path(entry.location.segment))
    rows = records.num_rows if records is not None else 0
    oldest = min([meta.version, *request.live_changes])
    chain = chain_of(catalog.index, commit, oldest)
    history = [(e.meta.version, e.meta.records, e.meta.inputs) for e in chain]
    if entry is None:
        history.append((meta.version, rows, 0))
    ledger = Footprints.restore(history, request.live_changes, meta.dirty_from, meta.dirty_windows)  # 2
    calibration = ledgers.calibration(catalog.index, meta.store, meta.version, meta.checkpoint_id)
    if entry is None:
        meta = replace(
            meta, records=rows, oldest_footprint=ledger.oldest_footprint, extent=ledger.extent, replay=ledger.replay,
            base_checkpoint_id=commit.meta.base_checkpoint_id, wall_ms=int(time.time() * 1000),
            decoded_bytes=records.nbytes if records is not None else 0,
        )  # fmt: skip
        meta = calibration.sign_footer(meta, request.forecast)
        payload, frame_flags = encode_commit(records, settings.compression)  # 3
        header, location = writer.append(FrameKind.COMMIT, meta, payload, frame_flags)
        catalog.note(header, location)
        entry = CommitEntry(meta, location)
    ledgers.forget(meta.store)  # 4
    return CommitResult(entry, calibration.plan(settings, request.forecast, ledger, request.retained_batches))
