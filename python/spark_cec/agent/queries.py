"""Calls of the driver for a query: settings, the recovery plan, the run, the report, acknowledgements, trimming."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from spark_cec import __version__
from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.agent.lease import WAIT_S, CheckpointLeases
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory, conf_of, home_of, index_root
from spark_cec.agent.owner import claim_log, external_log, owns, refuse_if_owned, refuse_if_taken_over
from spark_cec.agent.protocols import REPAIRABLE_BATCHES, ProtocolCalls
from spark_cec.checkpoint.eventual import completed
from spark_cec.checkpoint.recovery_target import load_tuning
from spark_cec.errors import DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.home import absolute_home, is_inside, read_log_id, relative_home
from spark_cec.log.index import Index
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.reader import read_frame
from spark_cec.log.readers import slowest_reader
from spark_cec.log.storage import Storage
from spark_cec.log.trim import TrimHorizon, trim
from spark_cec.recovery import report
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.dirty_stores import name_dirty_stores
from spark_cec.recovery.fallback import pending_fallback
from spark_cec.recovery.forecast import forecast
from spark_cec.recovery.generations import has_committed, newest_generation
from spark_cec.recovery.lost_output import describe_lost_output
from spark_cec.recovery.migrated_away import refuse_if_migrated
from spark_cec.recovery.plan import (
    RecoveryPlan,
    first_missed,
    make_plan,
    nothing_to_replay,
    refuse_later_batches,
    refuse_later_history,
    refuse_unfinished_rewind,
    way_back,
)
from spark_cec.recovery.preconditions import (
    refuse_forgotten_batches,
    refuse_lost_commit,
    refuse_under_protocol,
    refuse_unsuitable,
    refuse_without_log,
)
from spark_cec.recovery.query_files import FLUSH, QUERY, ReplayProgress
from spark_cec.recovery.replay_range import describe_batches, read_replay_range
from spark_cec.recovery.requests import answer_flush
from spark_cec.recovery.rollback import refuse_if_under_way
from spark_cec.recovery.run import begin_run
from spark_cec.recovery.session_settings import read_settings, record_settings, split_batches
from spark_cec.recovery.sources import check_at_start, check_while_running, parse_sources
from spark_cec.recovery.spark_logs import all_stores
from spark_cec.recovery.start_messages import (
    StartMessage,
    describe_damage,
    describe_eager_operators,
    describe_new_owner,
    describe_plan,
)
from spark_cec.settings import Mode, Settings, parse_settings


class QueryCalls:
    """The calls of the analyzer rule and the query listener.

    Between the calls of a start, this class keeps only the lease. Each call that needs the lease takes it again,
    because the agent may have died in between. The caller passes the results of earlier calls to the next one.
    """

    def __init__(self, logs: OpenLogs, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._leases = CheckpointLeases()

    def check(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Refuses a start that cannot work, before any write.

        Arguments: `conf`, `checkpoint`, `sink_path`, `committed_batch`, and the `asked` of `refuse_unsuitable`. If a
        query has committed nothing (-1), its log may move. Answers the log's home, the id of the log there (None: no
        log), and the settings that the rule needs.
        """
        settings = parse_settings(conf_of(arguments))
        index_root(settings)
        if settings.autotune:
            load_tuning()
        checkpoint = str(arguments["checkpoint"])
        refuse_unsuitable(open_storage(checkpoint), arguments)
        if settings.protocol is not None and settings.protocol.takes_part:
            refuse_under_protocol(settings.protocol.flow, arguments)
        query = QUERY.read(cec_directory(checkpoint))
        refuse_if_migrated(cec_directory(checkpoint))
        refuse_if_under_way(cec_directory(checkpoint))
        sink_path = arguments.get("sink_path")
        home = home_of(checkpoint, settings, sink_path)
        recorded = absolute_home(checkpoint, query["log_home"]) if query is not None else home
        if recorded != home and not sink_path and _is_reached_by_link(checkpoint, recorded, settings):
            home = recorded
        storage = open_storage(home)
        has_moved_along = query is not None and recorded != home and read_log_id(storage) == query["log_id"]
        committed = int(arguments["committed_batch"])
        if recorded != home and committed >= 0 and not has_moved_along:
            raise UnsuitableCheckpoint(
                f"the log of {checkpoint} is at {recorded}, but this query's settings place it at {home}: give back "
                f"the sink's `path` and cec.log.path as they were; or, if this checkpoint was moved (under log.path "
                "each has a directory by its own path), move the log's directory there too, or give the path that it "
                "had, if that is a link"
            )
        storage.probe_writable()
        log_id = read_log_id(storage)
        # A log inside the checkpoint belongs to it, even if `query.json` is lost.
        known = query["log_id"] if query is not None else log_id if is_inside(checkpoint, home) else None
        if log_id is not None and known != log_id:
            raise UnsuitableCheckpoint(
                f"{home} holds the log of another query (id {log_id}): give this query a log location of its own, or "
                f"start it from the checkpoint that the log belongs to"
            )
        refuse_if_owned(checkpoint, home)
        stateful = arguments.get("provider") and arguments.get("stateful")
        if log_id is None and committed >= 0 and (stateful or has_committed(cec_directory(checkpoint), committed)):
            refuse_without_log(open_storage(checkpoint), home, query is not None)
        return {
            "home": home,
            "log_id": log_id,
            "mode": settings.mode.value,
            "accept": settings.accepts_divergence,
            "flush_at_stop": settings.flush_at_stop,
            "sources_margin": settings.sources_margin,
            "replayable_sources": list(settings.replayable_sources),
            "order_free_functions": settings.order_free_functions,
            "said": [asdict(StartMessage(warning)) for warning in settings.warnings],
        }

    def resolve(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers home, log and generation for a store that has no data from the rule.

        Arguments: `checkpoint`, `conf`. `log_id` is None if no run of the query is known; then a log may be created.
        """
        query = QUERY.read(cec_directory(arguments["checkpoint"]))
        if query is None:
            home = home_of(arguments["checkpoint"], parse_settings(conf_of(arguments)), None)
            return {"home": home, "log_id": None, "generation": 0}
        home = absolute_home(arguments["checkpoint"], query["log_home"])
        return {"home": home, "log_id": query["log_id"], "generation": query["generation"]}

    def hold(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Takes the lease of a query; `Fenced` if another process has it.

        Arguments: `checkpoint`, `home`, `generation`, `wait_s`. A run with a generation has begun and has no lease: it
        begins its first batch, or its agent died. The call fails if a later run has begun since, or another checkpoint
        owns the log. It also fails if the state was migrated, or a rollback is unfinished.
        """
        checkpoint, generation = str(arguments["checkpoint"]), arguments.get("generation")
        own = cec_directory(checkpoint)
        if generation is not None and not self._leases.has(checkpoint):  # fail at once, without a wait for the lock
            _refuse_if_overtaken(checkpoint, own, int(generation))
        with ExitStack() as undo:
            if self._take_lease(arguments):  # else a later run in this application has the lease
                undo.callback(self._leases.release, checkpoint)
                if generation is not None:
                    refuse_if_taken_over(checkpoint, str(arguments["home"]))
                    refuse_if_migrated(own)
                    refuse_if_under_way(own)
            if generation is not None:
                _refuse_if_overtaken(checkpoint, own, int(generation))
            undo.pop_all()
        return {}

    def _take_lease(self, arguments: Mapping[str, Any]) -> bool:
        checkpoint, wait_s = str(arguments["checkpoint"]), float(arguments.get("wait_s", WAIT_S))
        log = external_log(checkpoint, str(arguments["home"]))
        return self._leases.hold(checkpoint, cec_directory(checkpoint), wait_s, log)

    @contextmanager
    def _retake_lease(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Holds the lease for one call of a start: the agent that took it may have died since."""
        taken = self._take_lease(arguments)
        try:
            yield
        finally:
            if taken:
                self._leases.release(str(arguments["checkpoint"]))

    def release(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Releases the lease of `checkpoint`."""
        self._leases.release(arguments["checkpoint"])
        return {}

    def has_lease(self, checkpoint: str) -> bool:
        """Whether this process holds the lease of the checkpoint."""
        return self._leases.has(checkpoint)

    def close(self) -> None:
        """Releases all leases."""
        self._leases.close()

    def plan(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the recovery `plan`, for `begin_run` and `report`; changes nothing.

        Arguments: `conf`, `checkpoint`, `home`, `committed_batch` (V; -1 for none), `named`: Spark records checkpoint
        ids.
        """
        own, committed = cec_directory(arguments["checkpoint"]), int(arguments["committed_batch"])
        after_run = newest_generation(own)
        checkpoint = open_storage(str(arguments["checkpoint"]))
        if arguments.get("named"):
            refuse_lost_commit(checkpoint, committed)
        if read_log_id(open_storage(arguments["home"])) is None:  # without a log there is nothing to plan
            return _make_answer(nothing_to_replay(committed), after_run, [])
        log = self._logs.get(arguments["home"], parse_settings(conf_of(arguments)))
        log.catalog.refresh()
        refuse_unfinished_rewind(own, committed)
        index, cuts = log.catalog.index, read_cuts(log.storage).known
        attempts = CommittedAttempts(checkpoint, own, cuts, committed)
        refuse_later_history(index, cuts, committed, after_run)
        refuse_later_batches(index, checkpoint.url, committed, attempts.allows)
        with log.catalog.naming_places():
            stores = all_stores(checkpoint, index.stores())
            fallback = pending_fallback(own, index, stores, committed)
            plan = make_plan(index, stores, committed, attempts.allows, fallback.version if fallback else None)
        refuse_forgotten_batches(checkpoint, plan)
        messages = describe_damage(log.home, log.catalog.damages)
        messages += describe_lost_output(log.storage, index, _list_published(log, checkpoint.url, committed), committed)
        return _make_answer(plan, after_run, messages)

    def sources_now(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Compares the sources with a recovery's needs while the query runs.

        Arguments: `checkpoint`, `home`, `version` (committed by Spark, at least 1), `sources`. Answers the reason to
        write the dirty windows (`thin`; None if there is none), and whether the source deletes records.
        """
        first = self.acknowledge(arguments)["dirty_from"]
        if first is None:
            return {"thin": None, "deletes": False}
        replay = read_replay_range(
            open_storage(str(arguments["checkpoint"])), int(first), int(arguments["version"]) - 1
        )
        share = self._logs.get_known(arguments["home"]).settings.sources_margin
        thin = check_while_running(replay, parse_sources(arguments["sources"]), share)
        return {"thin": thin and thin.why, "deletes": bool(thin and thin.deletes)}

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

    def begin_run(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Begins a run: takes the generation, writes `query.json`, and creates the log if it is missing.

        Arguments: `checkpoint`, `home`, `conf`, `log_seen` (the `log_id` of `check`), `plan` (of that call),
        `decision`, `load_waves`, `session_settings`, and optionally `sources`, as for `parse_sources`. Answers the
        generation and the forecast by earlier recoveries.

        Raises `InputGone`, before any write, if input of the replay is gone and the user does not accept that. Raises
        `Fenced` if another run has begun since the plan.
        """
        settings, decision = parse_settings(conf_of(arguments)), arguments["decision"]
        checkpoint, home = str(arguments["checkpoint"]), str(arguments["home"])
        place, own = open_storage(checkpoint), cec_directory(checkpoint)
        plan = RecoveryPlan.from_json(arguments["plan"])
        messages = []
        with self._retake_lease(arguments) if decision.get("provider") else nullcontext():
            _refuse_if_overtaken(checkpoint, own, int(arguments["plan"]["after_run"]), "this start was prepared")
            former = refuse_if_owned(checkpoint, home)
            if former is not None:
                messages.append(describe_new_owner(home, former, checkpoint))
            if arguments.get("sources") is not None and plan.committed_batch >= 0:
                replay = read_replay_range(place, plan.rewound_to + 1, plan.committed_batch)
                sources, now_ms = parse_sources(arguments["sources"]), int(time.time() * 1000)
                messages.append(
                    check_at_start(replay, sources, settings.sources_margin, settings.accepts_divergence, now_ms)
                )
            run = begin_run(
                place,
                own,
                open_storage(home),
                relative_home(checkpoint, home),
                conf_of(arguments),
                decision,
                __version__,
                arguments["log_seen"],
            )
            claim_log(checkpoint, home)
            settings_now = {str(key): str(value) for key, value in arguments["session_settings"].items()}
            record_settings(own, plan.committed_batch, settings_now)
        self._logs.get(home, settings)
        self._protocols.begin(settings, checkpoint, home, run.generation, plan.committed_batch)
        expected = forecast(own, float(arguments.get("load_waves", 1.0)), autotune=settings.autotune)
        how = f"{decision['mode']} ({decision['reason']})"
        messages += describe_plan(plan, how, settings.describe(), home)
        messages += describe_eager_operators(decision.get("operators", ()), asked=settings.mode is Mode.EAGER)
        said_now = [asdict(word) for word in messages]
        return {**asdict(run), "forecast": asdict(expected), "said": said_now}

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

    def flush_requested(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the pending flush request of `checkpoint`, or None."""
        return {"request": FLUSH.read_if_sound(cec_directory(arguments["checkpoint"]))}

    def flush_done(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers a flush request. Arguments: `checkpoint`, `request`, `version`, `failed`."""
        own = cec_directory(arguments["checkpoint"])
        answer_flush(own, str(arguments["request"]), int(arguments["version"]), [str(e) for e in arguments["failed"]])
        return {}

    def left_dirty(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """A line for each store with dirty windows at a version. Arguments: `home`, `version`, `generation`."""
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        version, generation = int(arguments["version"]), int(arguments["generation"])
        return {"lines": name_dirty_stores(log.catalog.index, version, generation)}

    def acknowledge(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the lowest D of all stores at a version; no replay begins before that batch.

        Arguments: `home`, `version`. Under a protocol, answers the version to which the flow would go back now.
        """
        kept_from = self._protocols.kept_from(arguments["home"])
        if kept_from is not None:
            return {"dirty_from": kept_from}
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        index, version = log.catalog.index, int(arguments["version"])
        stores = index.stores()
        heads = [completed(index, attempts[-1]) for store in stores if (attempts := index.newest(store, version))]
        if not heads or len(heads) < len(stores) or any(head.meta.version != version for head in heads):
            return {"dirty_from": None}
        return {"dirty_from": min(first_missed(index, head) for head in heads)}

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


def _is_reached_by_link(checkpoint: str, recorded: str, settings: Settings) -> bool:
    """Whether the log at `recorded`, under `cec.log.path`, belongs to this checkpoint by another path to it.

    The name of such a log's directory comes from the checkpoint path of the query's first start.
    """
    if settings.log_path is None or not same_place(recorded.rpartition("/")[0], settings.log_path):
        return False
    place = open_storage(checkpoint).local_path("")
    real = os.path.realpath(place) if place is not None else checkpoint
    return owns(checkpoint, recorded) or recorded in [home_of(url, settings, None) for url in (real, f"file:{real}")]


def _make_answer(plan: RecoveryPlan, after_run: int, messages: Sequence[StartMessage]) -> Mapping[str, Any]:
    return {"plan": {**plan.to_json(), "after_run": after_run}, "said": [asdict(word) for word in messages]}


def _refuse_if_overtaken(checkpoint: str, own: Storage, generation: int, meanwhile: str | None = None) -> None:
    newest = newest_generation(own)
    if newest > generation:
        raise Fenced(
            f"run {newest} of the query with checkpoint {checkpoint} began while "
            f"{meanwhile or f'run {generation} had no lease'}: stop all runs of it, and start one"
        )


def _find_output_bound(log: OpenLog, version: int, kept_from: int | None) -> int | None:
    """The batch before which output may be deleted, by the settings and the flow's line; None: all output stays."""
    readers, keep_batches = log.settings.output_readers, log.settings.retain_output_batches
    bounds = [slowest_reader(log.storage, log.log_id, readers)] if readers else []
    bounds += [version - keep_batches] if keep_batches is not None else []
    return min(bounds + ([kept_from] if bounds and kept_from is not None else []), default=None)


def _list_published(log: OpenLog, checkpoint: str, committed_batch: int) -> list[int]:
    """The batches with output. Refuses a batch that Spark never ran: it would hide the rows of the query's next run."""
    batches = manifest.batches(log.storage)
    if batches and batches[-1] > committed_batch + 1:
        raise UnsuitableCheckpoint(
            f"{log.home} holds output of batch {batches[-1]}, but the checkpoint ends at batch {committed_batch}: "
            f"entries of its offsets and commits are gone. {way_back(checkpoint, committed_batch)}; or restore the "
            f"checkpoint whole"
        )
    return batches


def _find_oldest_needed(index: Index, first: int, last: int) -> dict[StoreId, int]:
    """The oldest version per store whose frame an EC at any version in `first`..`last` may read."""
    needed: dict[StoreId, int] = {}
    for store in index.stores():
        entries = index.commits(store, first, last)
        if not entries:
            raise DamagedLog(f"store {store}", -1, f"no commit frame between versions {first} and {last}")
        needed[store] = min(min(e.meta.oldest_footprint, e.meta.dirty_from) for e in entries)
    return needed
