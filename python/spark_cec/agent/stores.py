"""Calls of the state stores: open, load, append, loaded."""

from __future__ import annotations

import time

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.loads import Loads
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import (
    CloseLogAnswer,
    CloseLogRequest,
    CommitPlan,
    Done,
    FooterAnswer,
    FooterNumbers,
    FooterRequest,
    LoadAnswer,
    LoadedRequest,
    LoadRequest,
    OpenLogAnswer,
    OpenLogRequest,
)
from spark_cec.agent.spool import Spool
from spark_cec.checkpoint.eventual import chain_of, head_at, rebuild
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.recovery_target import Forecast, load_tuning
from spark_cec.errors import GONE, DamagedLog, LogLocationError
from spark_cec.ids import NO_CHECKPOINT
from spark_cec.log.frame import CommitFlags, FrameKind, LoadedMeta
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.recovery.attempts import Allows, CommittedAttempts, read_attempts
from spark_cec.recovery.report import LoadedStore, loaded_payload
from spark_cec.settings import parse_settings

_RUNS_KNOWN = 64
"""The number of runs whose attempt rules are cached."""


def _decode_id(text: str | None) -> bytes:
    return bytes.fromhex(text) if text else NO_CHECKPOINT


class StoreCalls:
    """The calls of executors."""

    def __init__(self, logs: OpenLogs, spool: Spool, loads: Loads) -> None:
        self._logs = logs
        self._spool = spool
        self._loads = loads
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
        log = self._logs.get(request.home, parse_settings(request.conf), request.log_id)
        checkpoint_id = bytes.fromhex(request.checkpoint_id) if request.checkpoint_id else None
        log.catalog.refresh()
        with log.catalog.naming_places():
            allows = self._allowed_attempts(log, request)
            head = log.catalog.ask_twice(
                lambda: head_at(log.catalog.index, request.store, request.version, checkpoint_id, allows)
            )
        # An executor brings all its stores back at once, and has no room for all of them in its agent.
        with self._loads.taking_turn(log, head, request.conf):
            return self._load(request, log, head)

    def _load(self, request: LoadRequest, log: OpenLog, head: CommitEntry) -> LoadAnswer:
        started = time.perf_counter()
        with log.catalog.naming_places():
            checkpoint = log.catalog.ask_twice(lambda: rebuild(log.storage, log.catalog.index, head))
        meta = head.meta
        history = [(e.meta.version, e.meta.records, e.meta.inputs) for e in checkpoint.chain]
        ledger = Footprints.restore(history, checkpoint.live(), meta.dirty_from, meta.dirty_windows)
        calibration = log.ledgers.calibration(log.catalog.index, meta.store, meta.version, meta.checkpoint_id)
        forecast = Forecast.from_json(request.forecast)
        calibration.scanned = checkpoint.scanned
        return LoadAnswer(
            spool=self._spool.write(checkpoint.records) if checkpoint.records.num_rows else None,
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
            meta = log.catalog.ask_twice(lambda: head_at(log.catalog.index, store, version, allows=allows)).meta
        except DamagedLog:
            attempts = self._read_attempts(log, request)
            return FooterAnswer(footer=None, checkpoint_id=attempts.committed_id(store, version) if attempts else None)
        return FooterAnswer(footer=FooterNumbers.of(meta), checkpoint_id=meta.checkpoint_id.hex())

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
    """The shuffle records of each version that a replay makes again, where the log knows that they were counted."""
    meta = head.meta
    if meta.dirty_from >= meta.version:
        return {}
    replayed = (entry.meta for entry in chain_of(index, head, meta.dirty_from + 1))
    return {str(each.version): each.inputs for each in replayed if each.flags & CommitFlags.COUNTED}
