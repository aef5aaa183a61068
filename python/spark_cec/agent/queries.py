"""Calls of the driver of a running query: replay, report, flushes, acknowledgements, trimming."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import (
    AcknowledgeAnswer,
    AcknowledgeRequest,
    BatchInputAnswer,
    BatchInputRequest,
    BetweenBatchesAnswer,
    BetweenBatchesRequest,
    Done,
    FlushedAnswer,
    FlushedRequest,
    ReplayingRequest,
    ReplaySettingsAnswer,
    ReplaySettingsRequest,
    ReportAnswer,
    ReportRequest,
    SourceState,
    TrimAnswer,
    TrimRequest,
)
from spark_cec.agent.protocols import REPAIRABLE_BATCHES, ProtocolCalls
from spark_cec.checkpoint.eventual import completed
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.output_rollbacks import Cut, read_cuts
from spark_cec.log.reader import read_frame
from spark_cec.log.readers import slowest_reader
from spark_cec.log.storage import Storage
from spark_cec.log.trim import TrimHorizon, trim
from spark_cec.recovery import report
from spark_cec.recovery.attempts import ANY_VERSION, living_stores
from spark_cec.recovery.decide import RecoveryPlan
from spark_cec.recovery.dirty_stores import name_dirty_stores
from spark_cec.recovery.facts import first_missed
from spark_cec.recovery.query_files import FLUSH, ReplayProgress
from spark_cec.recovery.replay_input import describe_batches, read_replay_input
from spark_cec.recovery.requests import answer_flush
from spark_cec.recovery.session_settings import read_settings, split_batches
from spark_cec.recovery.sources import SeenSources, ThinMargin, check_while_running, parse_sources

_LOOK_FOR_REQUESTS_S = 5.0
_ACKNOWLEDGE_EVERY_S = 10.0
"""The shortest times between two looks into an object store, where each look is a request that costs money."""


class QueryCalls:
    """The calls of a running query's driver: input, replay, flushes, acknowledgements, trimming, the report."""

    def __init__(
        self, logs: OpenLogs, protocols: ProtocolCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs = logs
        self._protocols = protocols
        self._clock = clock
        self._looked_at: dict[tuple[str, str], float] = {}

    def between_batches(self, request: BetweenBatchesRequest) -> BetweenBatchesAnswer:
        """Answers why the stores must write their dirty windows now, if they must."""
        own = cec_directory(request.checkpoint)
        asked = FLUSH.read_if_sound(own) if self._may_look(own, "requests", _LOOK_FOR_REQUESTS_S) else None
        thin = None if request.sources is None else self._compare_sources(request, request.sources)
        if thin is None:
            return BetweenBatchesAnswer(request=asked, thin=None, deletes=False)
        return BetweenBatchesAnswer(request=asked, thin=thin.why, deletes=thin.deletes)

    def _compare_sources(self, request: BetweenBatchesRequest, states: Sequence[SourceState]) -> ThinMargin | None:
        log = self._logs.get_known(request.home)
        sources = parse_sources((each.name, each.available, each.error) for each in states)
        log.seen_sources = SeenSources(int(time.time() * 1000), sources)
        first = self._find_dirty_from(request.home, request.version)
        if first is None:
            return None
        replay = read_replay_input(open_storage(request.checkpoint), first, request.version - 1)
        return check_while_running(replay, sources, log.settings.sources_margin)

    def batch_input(self, request: BatchInputRequest) -> BatchInputAnswer:
        """Describes the input of some batches."""
        checkpoint = open_storage(request.checkpoint)
        return BatchInputAnswer(words=describe_batches(checkpoint, request.first, request.last, request.sources))

    def replay_settings(self, request: ReplaySettingsRequest) -> ReplaySettingsAnswer:
        """Answers the session settings of some batches."""
        entries = read_settings(cec_directory(request.checkpoint)) or ()
        return ReplaySettingsAnswer(spans=split_batches(entries, request.first, request.last))

    def report(self, request: ReportRequest) -> ReportAnswer:
        """Writes the recovery report once all stores are loaded; before, the caller asks again after the next batch."""
        plan = RecoveryPlan.from_json(request.plan)
        log = self._logs.get_known(request.home)
        log.catalog.refresh()
        entries = log.catalog.index.loaded(request.generation)
        loaded = [
            report.LoadedStore(
                e.meta.store,
                e.meta.version,
                payload["ec_load_ms"],
                payload["digest_ok"],
                payload["held"],
                e.meta.wall_ms,
                tuple(payload.get("unsure", ())),
            )
            for e in entries
            for payload in [json.loads(bytes(read_frame(log.storage, e.location).payload))]
        ]
        if set(plan.stores) - {each.store for each in loaded}:
            return ReportAnswer(done=False)
        written = report.compose_report(plan, loaded, request.started_ms)
        return ReportAnswer(done=True, path=report.write_report(cec_directory(request.checkpoint), written))

    def replaying(self, request: ReplayingRequest) -> Done:
        """Records the progress of a replay."""
        progress = ReplayProgress(request.generation, request.first, request.last, request.done)
        report.note_progress(cec_directory(request.checkpoint), progress)
        return Done()

    def flushed(self, request: FlushedRequest) -> FlushedAnswer:
        """Compares a flush with the log. Answers the request of `cec flush`, if there is one.

        The log decides: a lost or unknown executor sends no answer, and a late one may have had nothing to write.
        """
        try:
            log = self._logs.get_known(request.home)
            log.catalog.refresh()
            index, version, generation = log.catalog.index, request.version, request.generation
            left = log.catalog.ask_twice(lambda: name_dirty_stores(index, version, generation), bool)
        except (DamagedLog, OSError) as error:
            left = [f"the log cannot be asked which stores are written: {error}"]
        unwritten = [*left, *request.failed] if left else []
        if request.request is not None:
            answer_flush(cec_directory(request.checkpoint), request.request, request.version, unwritten)
        return FlushedAnswer(unwritten=tuple(unwritten))

    def acknowledge(self, request: AcknowledgeRequest) -> AcknowledgeAnswer:
        """Answers the lowest D of all stores at a version; no replay begins before that batch.

        Under a protocol, answers the version to which the flow would go back now. An object store is asked now and
        then: meanwhile the acknowledgements wait.
        """
        log = self._logs.get_known(request.home)
        if not self._may_look(log.storage, "acknowledgements", _ACKNOWLEDGE_EVERY_S):
            return AcknowledgeAnswer(dirty_from=None)
        return AcknowledgeAnswer(dirty_from=self._find_dirty_from(request.home, request.version))

    def _may_look(self, storage: Storage, what: str, every_s: float) -> bool:
        """Whether to ask the storage now: an object store at most once in `every_s` seconds, any other at each call."""
        if storage.can_append:
            return True
        now = self._clock()
        if now - self._looked_at.get((storage.url, what), -every_s) < every_s:
            return False
        self._looked_at[storage.url, what] = now
        return True

    def _find_dirty_from(self, home: str, version: int) -> int | None:
        log = self._logs.get_known(home)
        kept_from = self._protocols.kept_from(home, log.settings)
        if kept_from is not None:
            return kept_from if kept_from >= 0 else None
        log.catalog.refresh()
        index = log.catalog.index
        stores = index.stores()
        heads = [completed(index, attempts[-1]) for store in stores if (attempts := index.newest(store, version))]
        if not heads or len(heads) < len(stores) or any(head.meta.version != version for head in heads):
            return None
        return min(first_missed(index, head) for head in heads)

    def trim(self, request: TrimRequest) -> TrimAnswer:
        """Removes segments that no recovery, reader or setting needs."""
        log = self._logs.get_known(request.home)
        log.catalog.refresh()
        version, kept_from = request.version, self._protocols.kept_from(request.home, log.settings)
        if kept_from is not None and kept_from <= 0:  # it may go back to its beginning, and write everything again
            return TrimAnswer(removed=())
        # Under a protocol Spark keeps all batches, and the flow's checkpoints release those that no line needs.
        retained = request.retained if kept_from is None else max(REPAIRABLE_BATCHES, version - kept_from)
        first = max(version - retained, 1)
        horizon = TrimHorizon(
            stores=log.catalog.ask_twice(
                lambda: _find_oldest_needed(log.catalog.index, read_cuts(log.storage).known, first, version)
            ),
            generation=request.generation,
            output_before=_find_output_bound(log, version, kept_from),
            now_ms=int(time.time() * 1000),
        )
        removed = trim(log.storage, log.catalog.index, horizon, log.summaries)
        log.bundle_segments()
        return TrimAnswer(removed=tuple(removed))


def _find_output_bound(log: OpenLog, version: int, kept_from: int | None) -> int | None:
    """The batch before which output may be deleted, by the settings and the flow's line; None: all output stays."""
    readers, keep_batches = log.settings.output_readers, log.settings.retain_output_batches
    bounds = [slowest_reader(log.storage, log.log_id, readers)] if readers else []
    bounds += [version - keep_batches] if keep_batches is not None else []
    return min(bounds + ([kept_from] if bounds and kept_from is not None else []), default=None)


def _find_oldest_needed(index: Index, cuts: Sequence[Cut], first: int, last: int) -> dict[StoreId, int]:
    """The oldest version per store whose frame an EC at any version in `first`..`last` may read.

    No frame is needed of a store that rollbacks took back whole.
    """
    needed = dict.fromkeys(index.stores(), ANY_VERSION)
    for store in living_stores(index, cuts):
        entries = index.commits(store, first, last)
        if not entries:
            raise DamagedLog(f"store {store}", -1, f"no commit frame between versions {first} and {last}")
        needed[store] = min(min(e.meta.oldest_footprint, e.meta.dirty_from) for e in entries)
    return needed
