"""The call that writes to the log of a running query: commits of stores, and the output of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from spark_cec.agent.logs import OpenLog, OpenLogs
from spark_cec.agent.messages import (
    AppendAnswer,
    AppendRequest,
    CommitPlan,
    DurableCommit,
    FindWritesAnswer,
    FindWritesRequest,
    OutputRows,
    StoreCommit,
)
from spark_cec.agent.output_cache import OutputCache
from spark_cec.checkpoint.commit_frames import CommitRequest, CommitResult, LedgerMissing, adopt_commit, commit_stores
from spark_cec.checkpoint.flush import flush_store
from spark_cec.checkpoint.recovery_target import Forecast
from spark_cec.errors import DamagedLog
from spark_cec.ids import NO_CHECKPOINT
from spark_cec.log.frame import Buffer, CommitMeta, FrameKind, Location, OutputMeta
from spark_cec.log.index import CommitEntry, Index, OutputEntry
from spark_cec.log.meta import NO_WATERMARK_MS
from spark_cec.log.record import encode_table
from spark_cec.log.segment import segment_path
from spark_cec.log.writer import NewFrame


def _decode_id(text: str | None) -> bytes:
    return bytes.fromhex(text) if text else NO_CHECKPOINT


class AppendCalls:
    """The call of executors that writes, and the driver's look at what they wrote."""

    def __init__(self, logs: OpenLogs, output_cache: OutputCache) -> None:
        self._logs = logs
        self._output_cache = output_cache

    def append(self, request: AppendRequest) -> AppendAnswer:
        """Commits a version of each store and writes output frames; answers the next plans when all is durable.

        1. Adopt the commits that are in the log already: an agent that died may have written them.
        2. Write the other commits and the output together (`commit_stores`).
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

    def find(self, request: FindWritesRequest) -> FindWritesAnswer:
        """Answers which commits and frames of output the log has: an executor may have written them as it ended."""
        log = self._logs.get_known(request.home)
        log.catalog.refresh()
        index = log.catalog.index

        def find() -> dict[str, Location | None]:
            entries: dict[str, CommitEntry | OutputEntry | None] = {
                each.checkpoint_id: index.commit(each.store, each.version, bytes.fromhex(each.checkpoint_id))
                for each in request.commits
            }
            entries |= {frame: index.output(bytes.fromhex(frame)) for frame in request.frames}
            return {key: None if entry is None else entry.location for key, entry in entries.items()}

        known = log.catalog.ask_twice(find, lambda found: None in found.values())
        found = {key: location for key, location in known.items() if location is not None}
        # The writer may have died before its bytes were durable.
        for segment in {location.segment for location in found.values()}:
            log.storage.sync(segment_path(segment))
        return FindWritesAnswer(
            commits=tuple(each.checkpoint_id for each in request.commits if each.checkpoint_id in found),
            frames=tuple(key for key in request.frames if key in found),
        )

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
        payloads = [encode_table(_read_rows(each.spool), log.settings.compression) for each in request.outputs]
        frames = [_make_output_frame(*each) for each in zip(request.outputs, payloads, strict=True)]
        if new or frames:
            committed = commit_stores(  # 2
                list(new.values()),
                settings=log.settings, catalog=log.catalog, writer=log.writer, ledgers=log.ledgers, beside=frames,
            )  # fmt: skip
            results.update(zip(new, committed, strict=True))
        for each, payload in zip(request.outputs, payloads, strict=True):
            self._output_cache.note(log.log_id, bytes.fromhex(each.frame), payload)
        results.update({place: _flush(log, commit, spool) for place, (commit, spool) in flushes.items()})  # 3
        return [results[place] for place in range(len(request.commits))]


def _make_output_frame(output: OutputRows, payload: Buffer) -> NewFrame:
    meta = OutputMeta(
        frame_id=bytes.fromhex(output.frame),
        batch=output.batch,
        partition=output.partition,
        attempt=output.attempt,
        generation=output.generation,
        rows=output.rows,
        wall_ms=int(time.time() * 1000),
    )
    return NewFrame(FrameKind.OUTPUT, meta, payload)


def _read_spool(path: str | None) -> pa.Table | None:
    return None if path is None else _read_rows(path)


def _read_rows(path: str) -> pa.Table:
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
        settings=log.settings, storage=log.storage, catalog=log.catalog, writer=log.writer, ledgers=log.ledgers,
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
