"""Calls of the state stores: open, load, append, loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import (
    AppendAnswer,
    AppendRequest,
    CloseLogAnswer,
    CloseLogRequest,
    CommitPlan,
    Done,
    DurableCommit,
    FooterAnswer,
    FooterNumbers,
    FooterRequest,
    LoadAnswer,
    LoadedRequest,
    LoadRequest,
    OpenLogAnswer,
    OpenLogRequest,
    StoreCommit,
)
from spark_cec.agent.spool import Spool, write_rows
from spark_cec.checkpoint.commit import CommitRequest, CommitResult, LedgerMissing, adopt_commit, commit_stores
from spark_cec.checkpoint.eventual import EventualCheckpoint, chain_of, head_at, rebuild
from spark_cec.checkpoint.flush import flush_store
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.recovery_target import Forecast, load_tuning
from spark_cec.errors import GONE, DamagedLog, LogLocationError
from spark_cec.ids import NO_CHECKPOINT
from spark_cec.log.frame import CommitMeta, FrameKind, LoadedMeta
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import NO_WATERMARK_MS
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.segment import segment_path
from spark_cec.recovery.attempts import Allows, CommittedAttempts, read_attempts
from spark_cec.recovery.report import LoadedStore, loaded_payload
from spark_cec.settings import parse_settings

_RUNS_KNOWN = 64
"""The number of runs whose attempt rules are cached."""


def _decode_id(text: str | None) -> bytes:
    return bytes.fromhex(text) if text else NO_CHECKPOINT


class StoreCalls:
    """The calls of executors."""

    def __init__(self, logs: OpenLogs, spool: Spool) -> None:
        self._logs = logs
        self._spool = spool
        self._runs: dict[tuple[str, int, int], CommittedAttempts] = {}

    def open_log(self, request: OpenLogRequest) -> OpenLogAnswer:
        """Opens the log, and answers its id."""
        settings, home = parse_settings(request.conf), request.home
        if settings.autotune:
            load_tuning()
        if request.again and self._logs.existing(home, settings) is None:
            raise LogLocationError(home, GONE)
        log = self._logs.get(home, settings, request.log_id)
        if request.keep:
            self._logs.keep(home)
        return OpenLogAnswer(log_id=log.log_id)

    def close_log(self, request: CloseLogRequest) -> CloseLogAnswer:
        """Closes the log for this JVM, and answers whether it was open."""
        return CloseLogAnswer(closed=self._logs.close_log(request.home))

    def load(self, request: LoadRequest) -> LoadAnswer:
        """Answers the EC of a store at a version."""
        started = time.perf_counter()
        log = self._logs.get(request.home, parse_settings(request.conf), request.log_id)
        checkpoint_id = bytes.fromhex(request.checkpoint_id) if request.checkpoint_id else None
        log.catalog.refresh()
        with log.catalog.naming_places():
            allows = self._allowed_attempts(log, request)
            head = head_at(log.catalog.index, request.store, request.version, checkpoint_id, allows)
            checkpoint = rebuild(log.storage, log.catalog.index, head)
        meta = head.meta
        history = [(e.meta.version, e.meta.records, e.meta.inputs) for e in checkpoint.chain]
        ledger = Footprints.restore(history, checkpoint.live(), meta.dirty_from, meta.dirty_windows)
        calibration = log.ledgers.calibration(log.catalog.index, meta.store, meta.version, meta.checkpoint_id)
        forecast = Forecast.from_json(request.forecast)
        calibration.scanned = checkpoint.scanned
        return LoadAnswer(
            spool=self._write_spool(checkpoint),
            rows=checkpoint.records.num_rows,
            scanned=checkpoint.scanned,
            chain=len(checkpoint.chain),
            footer=FooterNumbers.of(meta),
            dirty_from=meta.dirty_from,
            dirty_windows=meta.dirty_windows,
            inputs=_count_inputs(log.catalog.index, head),
            plan=CommitPlan.of(calibration.plan(log.settings, forecast, ledger, request.retained)),
            recovery_estimate_ms=meta.recovery_estimate_ms,
            agent_ms=(time.perf_counter() - started) * 1000,
        )

    def footer(self, request: FooterRequest) -> FooterAnswer:
        """Answers the footer's numbers of a store's frame; its records may be damaged."""
        log = self._logs.get_known(request.home)
        log.catalog.refresh()
        store, version, allows = request.store, request.version, self._allowed_attempts(log, request)
        try:
            meta = head_at(log.catalog.index, store, version, allows=allows).meta
        except DamagedLog:
            attempts = self._read_attempts(log, request)
            return FooterAnswer(footer=None, checkpoint_id=attempts.committed_id(store, version) if attempts else None)
        return FooterAnswer(footer=FooterNumbers.of(meta), checkpoint_id=meta.checkpoint_id.hex())

    def _write_spool(self, checkpoint: EventualCheckpoint) -> str | None:
        records = checkpoint.records
        if not records.num_rows:
            return None
        path = self._spool.new_file(records.nbytes)
        write_rows(path, records)
        return path

    def append(self, request: AppendRequest) -> AppendAnswer:
        """Commits a version of each store, and answers the next plans when all commits are durable.

        1. Adopt the commits that are in the log already: an agent that died may have written them.
        2. Write the other commits together (`commit_stores`).
        3. Write the flushes, each by itself (`flush_store`).

        Raises `LedgerMissing` before it writes anything if a commit needs the whole ledger of its store.
        """
        started = time.perf_counter_ns()
        log = self._logs.get_known(request.home)
        try:
            results = self._commit_all(log, request)
        except DamagedLog:
            log.refuse_vanished_log()
            raise
        share_us = (time.perf_counter_ns() - started) // 1000 // max(len(results), 1)
        return AppendAnswer(commits=tuple([_describe_commit(result, share_us) for result in results]))

    def _commit_all(self, log: OpenLog, request: AppendRequest) -> list[CommitResult]:
        results: dict[int, CommitResult] = {}
        new: dict[int, tuple[CommitRequest, Callable[[], pa.Table | None]]] = {}
        flushes: dict[int, tuple[CommitRequest, str | None]] = {}
        is_fresh = False
        for place, sent in enumerate(request.commits):
            commit = _make_commit(sent)
            if commit.meta.is_flush:
                flushes[place] = (commit, sent.spool)
                continue
            found = None
            if request.retry or commit.live_is_whole:
                if not is_fresh:
                    log.catalog.refresh()
                    is_fresh = True
                found = _find_written(log.catalog.index, commit.meta)
            if found is None:
                new[place] = (commit, partial(_read_spool, sent.spool))
            else:
                results[place] = _adopt(log, found, commit)  # 1
        if new:
            committed = commit_stores(  # 2
                list(new.values()), settings=log.settings, catalog=log.catalog, writer=log.writer, ledgers=log.ledgers
            )
            results.update(zip(new, committed, strict=True))
        results.update({place: _flush(log, commit, spool) for place, (commit, spool) in flushes.items()})  # 3
        return [results[place] for place in range(len(request.commits))]

    def _allowed_attempts(self, log: OpenLog, request: LoadRequest | FooterRequest) -> Allows:
        if request.checkpoint is None:
            return lambda _: True
        attempts = self._read_attempts(log, request)
        if attempts is None:  # a reader
            place = request.checkpoint
            return read_attempts(open_storage(place), cec_directory(place), log.storage).allows_read
        return attempts.allows

    def _read_attempts(self, log: OpenLog, request: LoadRequest | FooterRequest) -> CommittedAttempts | None:
        """The attempt rules of a run, cached for all its stores, because they read several small files.

        None for a store that belongs to no run.
        """
        place, committed = request.checkpoint, request.committed_batch
        if place is None or committed is None:
            return None
        run = (place, committed, request.generation)
        attempts = self._runs.get(run)
        if attempts is None:
            cuts = read_cuts(log.storage).known
            attempts = CommittedAttempts(open_storage(place), cec_directory(place), cuts, committed)
            self._runs = dict([(run, attempts), *self._runs.items()][:_RUNS_KNOWN])
        return attempts

    def loaded(self, request: LoadedRequest) -> Done:
        """Records a store's load at a recovery in the log, where the driver's agent finds it."""
        log = self._logs.get_known(request.home)
        loaded = LoadedStore(
            request.store, request.version, request.ec_load_ms, request.digest_ok, request.held,
            int(time.time() * 1000), request.unsure,
        )  # fmt: skip
        log.ledgers.note_load(loaded.store, loaded.ec_load_ms, Forecast.from_json(request.forecast))
        meta = LoadedMeta(loaded.store, loaded.version, request.generation, loaded.wall_ms)
        log.catalog.note(*log.writer.append(FrameKind.LOADED, meta, loaded_payload(loaded)))
        return Done()


def _count_inputs(index: Index, head: CommitEntry) -> dict[str, int]:
    """The input tuples of each version that a replay makes again, as far as the log has them."""
    meta = head.meta
    if meta.dirty_from >= meta.version:
        return {}
    counts: dict[str, int] = {}
    for entry in chain_of(index, head, meta.dirty_from + 1):
        counts[str(entry.meta.version)] = counts.get(str(entry.meta.version), 0) + entry.meta.inputs
    return counts


def _read_spool(path: str | None) -> pa.Table | None:
    if path is None:
        return None
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def _find_written(index: Index, meta: CommitMeta) -> CommitEntry | None:
    found = index.commit(meta.store, meta.version, meta.checkpoint_id)
    return found if found is not None and found.meta.generation == meta.generation else None


def _adopt(log: OpenLog, found: CommitEntry, commit: CommitRequest) -> CommitResult:
    if not commit.live_is_whole:
        raise LedgerMissing(f"store {commit.meta.store}: the frame is there; send the whole ledger to go on from it")
    # The writer may have died before the frame was durable.
    log.storage.sync(segment_path(found.location.segment))
    return adopt_commit(found, commit, settings=log.settings, index=log.catalog.index, ledgers=log.ledgers)


def _flush(log: OpenLog, commit: CommitRequest, spool: str | None) -> CommitResult:
    return flush_store(
        commit, _read_spool(spool),
        settings=log.settings, catalog=log.catalog, writer=log.writer, ledgers=log.ledgers,
    )  # fmt: skip


def _describe_commit(result: CommitResult, agent_us: int) -> DurableCommit:
    meta = result.entry.meta
    return DurableCommit(
        plan=CommitPlan.of(result.plan),
        extent=meta.extent,
        replay=meta.replay,
        recovery_estimate_ms=meta.recovery_estimate_ms,
        bytes=result.entry.location.length,
        agent_us=agent_us,
    )


def _make_commit(request: StoreCommit) -> CommitRequest:
    meta = CommitMeta(
        store=request.store,
        version=request.version,
        checkpoint_id=_decode_id(request.checkpoint_id),
        base_checkpoint_id=_decode_id(request.base_checkpoint_id),
        generation=request.generation,
        open_windows=request.open_windows,
        dirty_from=request.dirty_from,
        oldest_footprint=request.version,
        opened=request.opened,
        checked=request.checked,
        closed=request.closed,
        records=0,
        inputs=request.inputs,
        dirty_windows=request.dirty_windows,
        wall_ms=int(time.time() * 1000),
        watermark_ms=NO_WATERMARK_MS,
        digest=int(request.digest),
        elapsed_us=request.elapsed_us,
        flags=request.flags,
        extent=0,
        replay=0,
        state_rows=request.state_rows,
    )
    timed = request.timed_batch
    return CommitRequest(
        meta,
        dict(request.live),
        request.live_is_whole,
        request.retained,
        Forecast.from_json(request.forecast),
        (timed.batch, float(timed.ms)) if timed else None,
        float(request.since_start_ms),
    )
