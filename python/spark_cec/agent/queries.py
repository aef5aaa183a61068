"""Calls of the driver of a running query: replay, report, flushes, acknowledgements, trimming."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.protocols import REPAIRABLE_BATCHES, ProtocolCalls
from spark_cec.checkpoint.eventual import completed
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.reader import read_frame
from spark_cec.log.readers import slowest_reader
from spark_cec.log.trim import TrimHorizon, trim
from spark_cec.recovery import report
from spark_cec.recovery.dirty_stores import name_dirty_stores
from spark_cec.recovery.facts import first_missed
from spark_cec.recovery.plan import RecoveryPlan
from spark_cec.recovery.query_files import FLUSH, ReplayProgress
from spark_cec.recovery.replay_range import describe_batches, read_replay_range
from spark_cec.recovery.requests import answer_flush
from spark_cec.recovery.session_settings import read_settings, split_batches
from spark_cec.recovery.sources import ThinMargin, check_while_running, parse_sources


class QueryCalls:
    """The calls of a running query's driver: input, replay, flushes, acknowledgements, trimming, the report."""

    def __init__(self, logs: OpenLogs, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols

    def between_batches(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers why the stores must write their dirty windows now, if they must.

        Arguments: `checkpoint`, `home`, `version` (committed by Spark, at least 1), `sources` (None, or as for
        `parse_sources`). `request` names a pending request of `cec flush`, or is None. `thin` is the source that is
        about to lose what a recovery needs, or None; `deletes` says whether that source deletes records.
        """
        request = FLUSH.read_if_sound(cec_directory(arguments["checkpoint"]))
        thin = None if arguments["sources"] is None else self._compare_sources(arguments)
        return {"request": request, "thin": thin and thin.why, "deletes": bool(thin and thin.deletes)}

    def _compare_sources(self, arguments: Mapping[str, Any]) -> ThinMargin | None:
        home, version = str(arguments["home"]), int(arguments["version"])
        first = self._find_dirty_from(home, version)
        if first is None:
            return None
        replay = read_replay_range(open_storage(str(arguments["checkpoint"])), first, version - 1)
        share = self._logs.get_known(home).settings.sources_margin
        return check_while_running(replay, parse_sources(arguments["sources"]), share)

    def batch_input(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Describes the input of some batches.

        Arguments: `checkpoint`, `first`, `last`, `sources` (names, in Spark's order).
        """
        checkpoint, names = open_storage(str(arguments["checkpoint"])), [str(name) for name in arguments["sources"]]
        return {"words": describe_batches(checkpoint, int(arguments["first"]), int(arguments["last"]), names)}

    def replay_settings(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the session settings of some batches, in spans with `first`, `last` and `settings`.

        Arguments: `checkpoint`, `first`, `last`. `settings` is None if they are unknown.
        """
        entries = read_settings(cec_directory(arguments["checkpoint"])) or ()
        spans = split_batches(entries, int(arguments["first"]), int(arguments["last"]))
        return {"spans": [asdict(span) for span in spans]}

    def report(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Writes the recovery report once all stores are loaded.

        Arguments: `checkpoint`, `home`, `generation`, `plan`, `started_ms`: the wall clock of the call of `start()`.
        `done` is false while a store is missing; then the caller asks again after the next batch.
        """
        plan = RecoveryPlan.from_json(arguments["plan"])
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        entries = log.catalog.index.loaded(int(arguments["generation"]))
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
            return {"done": False}
        written = report.compose_report(plan, loaded, int(arguments["started_ms"]))
        return {"done": True, "path": report.write_report(cec_directory(arguments["checkpoint"]), written)}

    def replaying(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Records the progress of a replay. Arguments: `checkpoint`, `generation`, `first`, `last`, `done`."""
        numbers = (int(arguments[name]) for name in ("generation", "first", "last", "done"))
        report.note_progress(cec_directory(arguments["checkpoint"]), ReplayProgress(*numbers))
        return {}

    def flushed(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Compares a flush with the log, answers its request if there is one, and answers what is `unwritten`.

        Arguments: `checkpoint`, `home`, `version`, `generation`, `failed` (the errors of the executors), `request` or
        None. The log decides: a lost or unknown executor sends no answer, and a late one may have had nothing to write.
        """
        version, failed = int(arguments["version"]), [str(each) for each in arguments["failed"]]
        try:
            log = self._logs.get_known(arguments["home"])
            log.catalog.refresh()
            left = name_dirty_stores(log.catalog.index, version, int(arguments["generation"]))
        except (DamagedLog, OSError) as error:
            left = [f"the log cannot be asked which stores are written: {error}"]
        unwritten = [*left, *failed] if left else []
        if arguments["request"] is not None:
            answer_flush(cec_directory(arguments["checkpoint"]), str(arguments["request"]), version, unwritten)
        return {"unwritten": unwritten}

    def acknowledge(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the lowest D of all stores at a version; no replay begins before that batch.

        Arguments: `home`, `version`. Under a protocol, answers the version to which the flow would go back now.
        """
        return {"dirty_from": self._find_dirty_from(str(arguments["home"]), int(arguments["version"]))}

    def _find_dirty_from(self, home: str, version: int) -> int | None:
        kept_from = self._protocols.kept_from(home)
        if kept_from is not None:
            return kept_from
        log = self._logs.get_known(home)
        log.catalog.refresh()
        index = log.catalog.index
        stores = index.stores()
        heads = [completed(index, attempts[-1]) for store in stores if (attempts := index.newest(store, version))]
        if not heads or len(heads) < len(stores) or any(head.meta.version != version for head in heads):
            return None
        return min(first_missed(index, head) for head in heads)

    def trim(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Removes segments that no recovery, reader or setting needs.

        Arguments: `home`, `version` (committed by Spark), `generation`, `retained`.
        """
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        version, kept_from = int(arguments["version"]), self._protocols.kept_from(arguments["home"])
        if kept_from == 0:  # the flow would go back to its beginning, and write everything again
            return {"removed": []}
        # Under a protocol Spark keeps all batches, and the flow's checkpoints release those that no line needs.
        retained = int(arguments["retained"]) if kept_from is None else max(REPAIRABLE_BATCHES, version - kept_from)
        first = max(version - retained, 1)
        horizon = TrimHorizon(
            stores=_find_oldest_needed(log.catalog.index, first, version),
            generation=int(arguments["generation"]),
            output_before=_find_output_bound(log, version, kept_from),
            now_ms=int(time.time() * 1000),
        )
        return {"removed": trim(log.storage, log.catalog.index, horizon, log.summaries)}


def _find_output_bound(log: OpenLog, version: int, kept_from: int | None) -> int | None:
    """The batch before which output may be deleted, by the settings and the flow's line; None: all output stays."""
    readers, keep_batches = log.settings.output_readers, log.settings.retain_output_batches
    bounds = [slowest_reader(log.storage, log.log_id, readers)] if readers else []
    bounds += [version - keep_batches] if keep_batches is not None else []
    return min(bounds + ([kept_from] if bounds and kept_from is not None else []), default=None)


def _find_oldest_needed(index: Index, first: int, last: int) -> dict[StoreId, int]:
    """The oldest version per store whose frame an EC at any version in `first`..`last` may read."""
    needed: dict[StoreId, int] = {}
    for store in index.stores():
        entries = index.commits(store, first, last)
        if not entries:
            raise DamagedLog(f"store {store}", -1, f"no commit frame between versions {first} and {last}")
        needed[store] = min(min(e.meta.oldest_footprint, e.meta.dirty_from) for e in entries)
    return needed
