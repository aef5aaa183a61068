"""The flush of a commit: what it left dirty, written later, so that its eventual checkpoint is the whole state.

It is written at the end of a replay, when a query stops, when a store moves to another executor, and on request.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa

from spark_cec.checkpoint.commit import CommitRequest, CommitResult, StoreLedgers
from spark_cec.checkpoint.eventual import chain_of
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.errors import DamagedLog
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.index import CommitEntry
from spark_cec.log.record import encode_commit
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import Settings


def flush_store(
    request: CommitRequest,
    records: pa.Table | None,
    *,
    settings: Settings,
    catalog: Catalog,
    writer: SegmentWriter,
    ledgers: StoreLedgers,
) -> CommitResult:
    """Completes the commit whose version and checkpoint id the request has; when it returns, that is durable.

    1. Find the commit. One that was completed before stays as it is: both flushes say the same.
    2. Work out q and u from its chain and the ledger that the request brings.
    3. Write the frame, and tell the index.
    4. Forget the ledger: the next commit brings its own.

    Raises `DamagedLog` if there is no such commit.
    """
    meta = request.meta
    catalog.refresh()
    commit = catalog.index.commit(meta.store, meta.version, meta.checkpoint_id)  # 1
    if commit is None:
        raise DamagedLog(
            f"store {meta.store}", -1, f"no commit frame of version {meta.version} with id {meta.checkpoint_id.hex()}"
        )
    entry = catalog.index.flush(meta.store, meta.version, meta.checkpoint_id)
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
        )  # fmt: skip
        meta = calibration.signed(meta, request.forecast)
        payload, frame_flags = encode_commit(records, settings.compression)  # 3
        header, location = writer.append(FrameKind.COMMIT, meta, payload, frame_flags)
        catalog.note(header, location)
        entry = CommitEntry(meta, location)
    ledgers.forget(meta.store)  # 4
    return CommitResult(entry, calibration.plan(settings, request.forecast, ledger, request.retained_batches))
