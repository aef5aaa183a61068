"""Calls of the state stores: open, load, append, loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory, conf_of
from spark_cec.agent.spool import Spool, write_rows
from spark_cec.checkpoint.commit import CommitRequest, CommitResult, LedgerMissing, adopt_commit, commit_store
from spark_cec.checkpoint.eventual import EventualCheckpoint, chain_of, head_at, rebuild
from spark_cec.checkpoint.flush import flush_store
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.policy import Plan
from spark_cec.checkpoint.recovery_target import Forecast, load_tuning
from spark_cec.errors import GONE, DamagedLog, LogLocationError
from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.frame import CommitFlags, CommitMeta, FrameKind, LoadedMeta
from spark_cec.log.index import CommitEntry, Index
from spark_cec.log.meta import NO_WATERMARK_MS
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.segment import segment_path
from spark_cec.recovery.attempts import CommittedAttempts, read_attempts
from spark_cec.recovery.plan import Allows
from spark_cec.recovery.report import LoadedStore, loaded_payload
from spark_cec.settings import parse_settings

_RUNS_KNOWN = 64
"""The number of runs whose attempt rules are cached."""


_PLAN_NUMBERS = tuple(each.name for each in fields(Plan) if not each.name.endswith("_steps"))


def store_of(arguments: Mapping[str, Any]) -> StoreId:
    """The `store` argument: [operator, partition, name]."""
    operator, partition, name = arguments["store"]
    return StoreId(int(operator), int(partition), str(name))


def _decode_id(text: str | None) -> bytes:
    return bytes.fromhex(text) if text else NO_CHECKPOINT


def _encode_plan(plan: Plan) -> dict[str, Any]:
    """Copies by hand: `asdict` was an eighth of a commit without records."""
    answer: dict[str, Any] = {name: getattr(plan, name) for name in _PLAN_NUMBERS}
    answer["replay_steps"] = [(step.before, step.cost) for step in plan.replay_steps]
    answer["extent_steps"] = [(step.before, step.cost, step.windows) for step in plan.extent_steps]
    return answer


class StoreCalls:
    """The calls of executors."""

    def __init__(self, logs: OpenLogs, spool: Spool) -> None:
        self._logs = logs
        self._spool = spool
        self._runs: dict[tuple[str, int, int], CommittedAttempts] = {}

    def open_log(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Opens the log, and answers its id.

        Arguments: `home`, `conf`, `log_id` or None, `again`, `keep`. If `log_id` is given, the log must have it.
        `keep`: the log stays open until `close_log`. `again`: this JVM had the log open before, so a missing log is
        lost, and none is created.
        """
        settings, home, log_id = parse_settings(conf_of(arguments)), str(arguments["home"]), arguments.get("log_id")
        if settings.autotune:
            load_tuning()
        if arguments.get("again") and self._logs.existing(home, settings) is None:
            raise LogLocationError(home, GONE)
        log = self._logs.get(home, settings, log_id)
        if arguments.get("keep", True):
            self._logs.keep(home)
        return {"log_id": log.log_id}

    def close_log(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Closes the log at `home` for this JVM, and answers whether it was open."""
        return {"closed": self._logs.close_log(str(arguments["home"]))}

    def load(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the EC of a store at a version, as a spool file of rows.

        Arguments: `home`, `conf`, `store`, `version`, `checkpoint_id`, `retained`. With `log_id`, the log must have
        that id. With `checkpoint`, only attempts count that Spark may have committed. A run decides that by
        `committed_batch` (at its start) and `generation`; without them, Spark's logs as they are now decide.

        The answer has the head's numbers, the input tuples per replayed version, and the next commit's plan.
        """
        started = time.perf_counter()
        log = self._logs.get(arguments["home"], parse_settings(conf_of(arguments)), arguments.get("log_id"))
        checkpoint_id = bytes.fromhex(arguments["checkpoint_id"]) if arguments.get("checkpoint_id") else None
        log.catalog.refresh()
        with log.catalog.naming_places():
            store, version, allows = (
                store_of(arguments),
                int(arguments["version"]),
                self._allowed_attempts(log, arguments),
            )
            head = head_at(log.catalog.index, store, version, checkpoint_id, allows)
            checkpoint = rebuild(log.storage, log.catalog.index, head)
        meta = head.meta
        history = [(e.meta.version, e.meta.records, e.meta.inputs) for e in checkpoint.chain]
        ledger = Footprints.restore(history, checkpoint.live(), meta.dirty_from, meta.dirty_windows)
        calibration = log.ledgers.calibration(log.catalog.index, meta.store, meta.version, meta.checkpoint_id)
        forecast = Forecast.from_json(arguments.get("forecast"))
        calibration.scanned = checkpoint.scanned
        return {
            "spool": self._write_spool(checkpoint),
            "rows": checkpoint.records.num_rows,
            "scanned": checkpoint.scanned,
            "chain": len(checkpoint.chain),
            **_encode_footer(meta),
            "dirty_from": meta.dirty_from,
            "dirty_windows": meta.dirty_windows,
            "inputs": _count_inputs(log.catalog.index, head),
            "plan": _encode_plan(calibration.plan(log.settings, forecast, ledger, int(arguments["retained"]))),
            "recovery_estimate_ms": meta.recovery_estimate_ms,
            "agent_ms": (time.perf_counter() - started) * 1000,
        }

    def footer(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the footer's numbers of a store's frame; its records may be damaged.

        Arguments: `home`, `store`, `version`, and the arguments of `load` on attempts. If the frame is `lost`, the
        answer has only the `checkpoint_id` that Spark records, None if it records none.
        """
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        store, version, allows = store_of(arguments), int(arguments["version"]), self._allowed_attempts(log, arguments)
        try:
            return {"lost": False, **_encode_footer(head_at(log.catalog.index, store, version, allows=allows).meta)}
        except DamagedLog:
            of_a_run = arguments.get("committed_batch") is not None
            committed_id = self._read_attempts(log, arguments).committed_id(store, version) if of_a_run else None
            return {"lost": True, "checkpoint_id": committed_id}

    def _write_spool(self, checkpoint: EventualCheckpoint) -> str | None:
        records = checkpoint.records
        if not records.num_rows:
            return None
        path = self._spool.new_file(records.nbytes)
        write_rows(path, records)
        return path

    def append(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Commits one version of one store (see `commit_store`); answers the next plan when the commit is durable.

        With `retry`, or with the whole ledger, an agent that died may have written the frame, so the log is searched
        first.
        """
        started = time.perf_counter_ns()
        log = self._logs.get_known(arguments["home"])
        try:
            result = self._commit(log, _parse_request(arguments), arguments)
        except DamagedLog:
            log.refuse_if_gone()
            raise
        meta = result.entry.meta
        return {
            "plan": _encode_plan(result.plan),
            "extent": meta.extent,
            "replay": meta.replay,
            "recovery_estimate_ms": meta.recovery_estimate_ms,
            "bytes": result.entry.location.length,
            "agent_us": (time.perf_counter_ns() - started) // 1000,
        }

    def _commit(self, log: OpenLog, request: CommitRequest, arguments: Mapping[str, Any]) -> CommitResult:
        if request.meta.is_flush:
            return flush_store(
                request,
                _read_spool(arguments.get("spool")),
                settings=log.settings,
                catalog=log.catalog,
                writer=log.writer,
                ledgers=log.ledgers,
            )
        found = self._find_written(log, request) if arguments.get("retry") or request.live_is_whole else None
        if found is not None:
            if not request.live_is_whole:
                raise LedgerMissing(
                    f"store {request.meta.store}: the frame is there; send the whole ledger to go on from it"
                )
            # The writer may have died before the frame was durable.
            log.storage.sync(segment_path(found.location.segment))
            return adopt_commit(found, request, settings=log.settings, index=log.catalog.index, ledgers=log.ledgers)
        return commit_store(
            request,
            lambda: _read_spool(arguments.get("spool")),
            settings=log.settings,
            catalog=log.catalog,
            writer=log.writer,
            ledgers=log.ledgers,
        )

    def _find_written(self, log: OpenLog, request: CommitRequest) -> CommitEntry | None:
        log.catalog.refresh()
        meta = request.meta
        found = log.catalog.index.commit(meta.store, meta.version, meta.checkpoint_id)
        return found if found is not None and found.meta.generation == meta.generation else None

    def _allowed_attempts(self, log: OpenLog, arguments: Mapping[str, Any]) -> Allows:
        if not arguments.get("checkpoint"):
            return lambda _: True
        if arguments.get("committed_batch") is None:  # a reader
            place = str(arguments["checkpoint"])
            return read_attempts(open_storage(place), cec_directory(place), log.storage).allows_read
        return self._read_attempts(log, arguments).allows

    def _read_attempts(self, log: OpenLog, arguments: Mapping[str, Any]) -> CommittedAttempts:
        """The attempt rules of a run, cached for all its stores, because they read several small files."""
        place, committed = str(arguments["checkpoint"]), int(arguments["committed_batch"])
        run = (place, committed, int(arguments["generation"]))
        attempts = self._runs.get(run)
        if attempts is None:
            cuts = read_cuts(log.storage).known
            attempts = CommittedAttempts(open_storage(place), cec_directory(place), cuts, committed)
            self._runs = dict([(run, attempts), *self._runs.items()][:_RUNS_KNOWN])
        return attempts

    def loaded(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Records a store's load at a recovery in the log, where the driver's agent finds it."""
        log = self._logs.get_known(arguments["home"])
        loaded = LoadedStore(
            store_of(arguments), int(arguments["version"]), float(arguments["ec_load_ms"]), arguments["digest_ok"],
            int(arguments["held"]), int(time.time() * 1000), tuple(arguments["unsure"]),
        )  # fmt: skip
        log.ledgers.note_load(loaded.store, loaded.ec_load_ms, Forecast.from_json(arguments.get("forecast")))
        meta = LoadedMeta(loaded.store, loaded.version, int(arguments["generation"]), loaded.wall_ms)
        log.catalog.note(*log.writer.append(FrameKind.LOADED, meta, loaded_payload(loaded)))
        return {}


def _encode_footer(meta: CommitMeta) -> dict[str, Any]:
    return {
        "checkpoint_id": meta.checkpoint_id.hex(),
        "open_windows": meta.open_windows,
        "digest": str(meta.digest),
        "sketched": bool(meta.flags & CommitFlags.SKETCHED),
        "normalized": bool(meta.flags & CommitFlags.NORMALIZED),
    }


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


def _parse_request(arguments: Mapping[str, Any]) -> CommitRequest:
    version = int(arguments["version"])
    meta = CommitMeta(
        store=store_of(arguments),
        version=version,
        checkpoint_id=_decode_id(arguments["checkpoint_id"]),
        base_checkpoint_id=_decode_id(arguments["base_checkpoint_id"]),
        generation=int(arguments["generation"]),
        open_windows=int(arguments["open_windows"]),
        dirty_from=int(arguments["dirty_from"]),
        oldest_footprint=version,
        opened=int(arguments["opened"]),
        checked=int(arguments["checked"]),
        closed=int(arguments["closed"]),
        records=0,
        inputs=int(arguments["inputs"]),
        dirty_windows=int(arguments["dirty_windows"]),
        wall_ms=int(time.time() * 1000),
        watermark_ms=NO_WATERMARK_MS,
        digest=int(arguments["digest"]),
        elapsed_us=int(arguments["elapsed_us"]),
        flags=int(arguments["flags"]),
        extent=0,
        replay=0,
        state_rows=int(arguments["state_rows"]),
    )
    live = {int(at): int(count) for at, count in arguments["live"]}
    timed = arguments.get("timed_batch")
    return CommitRequest(
        meta,
        live,
        bool(arguments["live_is_whole"]),
        int(arguments["retained"]),
        Forecast.from_json(arguments.get("forecast")),
        (int(timed[0]), float(timed[1])) if timed else None,
        float(arguments.get("since_start_ms", 0.0)),
    )
