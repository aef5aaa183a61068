"""Calls of the driver for a query: settings, the recovery plan, the run, the report, acknowledgements, trimming."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spark_cec import __version__
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import WAIT_S, CheckpointLeases
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory, conf_of, home_of, index_root
from spark_cec.agent.protocols import REPAIRABLE_BATCHES, ProtocolCalls
from spark_cec.checkpoint.eventual import completed
from spark_cec.checkpoint.recovery_target import load_tuning
from spark_cec.errors import DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.cuts import cuts_of
from spark_cec.log.home import absolute_home, is_inside, read_log_id, relative_home
from spark_cec.log.index import Index
from spark_cec.log.reader import read_frame
from spark_cec.log.readers import slowest_reader
from spark_cec.log.trim import TrimHorizon, trim
from spark_cec.recovery import report
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.fallback import pending_fallback
from spark_cec.recovery.forecast import forecast
from spark_cec.recovery.generations import has_committed, newest_generation
from spark_cec.recovery.left import refuse_if_left
from spark_cec.recovery.plan import (
    RecoveryPlan,
    first_missed,
    make_plan,
    nothing_to_replay,
    refuse_a_later_history,
    refuse_an_unfinished_rewind,
    refuse_later_batches,
    way_back,
)
from spark_cec.recovery.query_file import read_query
from spark_cec.recovery.reach import describe_batches, read_reach
from spark_cec.recovery.requests import answer_flush, flush_request
from spark_cec.recovery.rollback import refuse_if_under_way
from spark_cec.recovery.run import take_up
from spark_cec.recovery.sources import at_start, parse_sources, while_running
from spark_cec.recovery.spark_logs import all_stores
from spark_cec.recovery.start import (
    Word,
    refuse_a_lost_commit,
    refuse_forgotten_batches,
    refuse_without_log,
    words_on_damage,
    words_on_eager,
    words_on_plan,
)
from spark_cec.recovery.suitable import refuse_under_protocol, refuse_unsuitable
from spark_cec.settings import Mode, parse_settings


class QueryCalls:
    """What the analyzer rule and the query listener ask for."""

    def __init__(self, logs: OpenLogs, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._leases = CheckpointLeases()
        self._pending: dict[tuple[str, int], tuple[RecoveryPlan, int]] = {}
        self._seen: dict[tuple[str, str], str | None] = {}

    def check(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`conf`, `checkpoint`, `sink_path`, `committed_batch`: refuses what cannot work, before anything is written.

        With what `refuse_unsuitable` asks for. A query that has committed nothing (-1) may have its log elsewhere than
        at its last start. Answers the log's home, whether a log is there, and what of the settings the rule acts on.
        """
        settings = parse_settings(conf_of(arguments))
        index_root(settings)
        if settings.autotune:
            load_tuning()
        checkpoint = str(arguments["checkpoint"])
        refuse_unsuitable(open_storage(checkpoint), arguments)
        if settings.protocol is not None and settings.protocol.takes_part:
            refuse_under_protocol(settings.protocol.flow, arguments)
        query = read_query(cec_directory(checkpoint))
        refuse_if_left(cec_directory(checkpoint))
        refuse_if_under_way(cec_directory(checkpoint))
        home = home_of(checkpoint, settings, arguments.get("sink_path"))
        recorded = absolute_home(checkpoint, query["log_home"]) if query is not None else home
        storage = open_storage(home)
        has_moved_along = query is not None and recorded != home and read_log_id(storage) == query["log_id"]
        committed = int(arguments["committed_batch"])
        if recorded != home and committed >= 0 and not has_moved_along:
            raise UnsuitableCheckpoint(
                f"the log of {checkpoint} is at {recorded}, but this query's settings place it at {home}: give back "
                f"the sink's `path` and cec.log.path as they were; or, if this checkpoint was moved (under log.path "
                "each has a directory by its own path), move the log's directory there too"
            )
        storage.probe_writable()
        log_id = read_log_id(storage)
        # A log inside the checkpoint is its own, if a file that says so is lost.
        known = query["log_id"] if query is not None else log_id if is_inside(checkpoint, home) else None
        if log_id is not None and known != log_id:
            raise UnsuitableCheckpoint(
                f"{home} holds the log of another query (id {log_id}): give this query a log location of its own, or "
                f"start it from the checkpoint that the log belongs to"
            )
        stateful = arguments.get("provider") and arguments.get("stateful")
        if log_id is None and committed >= 0 and (stateful or has_committed(cec_directory(checkpoint), committed)):
            refuse_without_log(open_storage(checkpoint), home, query is not None)
        self._seen[checkpoint, home] = log_id
        return {
            "home": home,
            "log_exists": log_id is not None,
            "mode": settings.mode.value,
            "accept": settings.accepts_divergence,
            "flush_at_stop": settings.flush_at_stop,
            "sources_margin": settings.sources_margin,
            "replayable_sources": list(settings.replayable_sources),
            "said": [asdict(Word(warning)) for warning in settings.warnings],
        }

    def resolve(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `conf`: home, log and generation for a store without word from the rule.

        `log_id` is None where no run of the query is known: then a log may be begun.
        """
        query = read_query(cec_directory(arguments["checkpoint"]))
        if query is None:
            home = home_of(arguments["checkpoint"], parse_settings(conf_of(arguments)), None)
            return {"home": home, "log_id": None, "generation": 0}
        home = absolute_home(arguments["checkpoint"], query["log_home"])
        return {"home": home, "log_id": query["log_id"], "generation": query["generation"]}

    def hold(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `generation`, `wait_s`: takes the lease of a query's checkpoint; `Fenced` if another has it.

        The generation is that of a run under way whose agent died, and the lease with it: if a later run has begun in
        the meantime, it has rewound Spark's logs under this one, which must not go on.
        """
        checkpoint = str(arguments["checkpoint"])
        own = cec_directory(checkpoint)
        taken = self._leases.hold(checkpoint, own, float(arguments.get("wait_s", WAIT_S)))
        newest, generation = newest_generation(own), arguments.get("generation")
        if generation is not None and newest > int(generation):
            if taken:  # else it is that of a later run in this application
                self._leases.release(checkpoint)
            raise Fenced(
                f"run {newest} of the query with checkpoint {checkpoint} began while run {generation} had no agent: "
                f"stop all runs of it, and start one"
            )
        return {}

    def release(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`: gives the lease back."""
        self._leases.release(arguments["checkpoint"])
        return {}

    def has_lease(self, checkpoint: str) -> bool:
        """Whether this process holds the lease of the checkpoint."""
        return self._leases.has(checkpoint)

    def close(self) -> None:
        """Gives back all leases."""
        self._leases.close()

    def plan(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`conf`, `checkpoint`, `home`, `committed_batch` (V; -1 for none), `named`: whether Spark names state by ids.

        Answers V, T, the version that stores begin from, and each store's D there. Nothing is changed.
        """
        own, committed = cec_directory(arguments["checkpoint"]), int(arguments["committed_batch"])
        checkpoint = open_storage(str(arguments["checkpoint"]))
        if arguments.get("named"):
            refuse_a_lost_commit(checkpoint, committed)
        if read_log_id(open_storage(arguments["home"])) is None:  # then there is nothing that a plan could say
            return _answer(nothing_to_replay(committed), [])
        log = self._logs.get(arguments["home"], parse_settings(conf_of(arguments)))
        log.catalog.refresh()
        refuse_an_unfinished_rewind(own, committed)
        index, cuts = log.catalog.index, cuts_of(log.storage).known
        attempts = CommittedAttempts(checkpoint, own, cuts, committed)
        refuse_a_later_history(index, cuts, committed, newest_generation(own))
        refuse_later_batches(index, checkpoint.url, committed, attempts.allows)
        with log.catalog.naming_places():
            stores = all_stores(checkpoint, index.stores())
            fallback = pending_fallback(own, index, stores, committed)
            plan = make_plan(index, stores, committed, attempts.allows, fallback.version if fallback else None)
        _refuse_output_from_the_future(log, checkpoint.url, committed)
        refuse_forgotten_batches(checkpoint, plan)
        self._pending[(arguments["checkpoint"], committed)] = (plan, int(time.time() * 1000))
        return _answer(plan, words_on_damage(log.home, log.catalog.damages))

    def sources_now(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `home`, `version` (committed by Spark, at least 1), `sources`: the same while the query runs.

        Answers why what is dirty should be written (`thin`), None if there is no need, and whether the source deletes.
        """
        first = self.acknowledge(arguments)["dirty_from"]
        if first is None:
            return {"thin": None, "deletes": False}
        reach = read_reach(open_storage(str(arguments["checkpoint"])), int(first), int(arguments["version"]) - 1)
        share = self._logs.get_known(arguments["home"]).settings.sources_margin
        thin = while_running(reach, parse_sources(arguments["sources"]), share)
        return {"thin": thin and thin.why, "deletes": bool(thin and thin.deletes)}

    def batch_input(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `first`, `last`, `sources` (names, in Spark's order): in words, what these batches read."""
        checkpoint, names = open_storage(str(arguments["checkpoint"])), [str(name) for name in arguments["sources"]]
        return {"words": describe_batches(checkpoint, int(arguments["first"]), int(arguments["last"]), names)}

    def begin_run(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `home`, `conf`, `committed_batch`, `decision`, `load_waves`, and perhaps `sources`, as for
        `parse_sources`: allots the generation, writes `query.json`, after a plan.

        The log is begun where there is none. Answers the generation, and what earlier recoveries foretell. `InputGone`,
        before anything is written, if what a replay needs of the sources is gone, and that is not accepted.
        """
        settings, decision = parse_settings(conf_of(arguments)), arguments["decision"]
        own, committed = cec_directory(arguments["checkpoint"]), int(arguments["committed_batch"])
        plan, _ = self._pending.get((arguments["checkpoint"], committed), (nothing_to_replay(committed), 0))
        said = []
        if arguments.get("sources") is not None and committed >= 0:
            reach = read_reach(open_storage(str(arguments["checkpoint"])), plan.rewound_to + 1, committed)
            sources, now_ms = parse_sources(arguments["sources"]), int(time.time() * 1000)
            said.append(at_start(reach, sources, settings.sources_margin, settings.accepts_divergence, now_ms))
        run = take_up(
            open_storage(str(arguments["checkpoint"])),
            own,
            open_storage(arguments["home"]),
            relative_home(arguments["checkpoint"], arguments["home"]),
            conf_of(arguments),
            decision,
            __version__,
            self._seen_at(arguments["checkpoint"], arguments["home"]),
        )
        self._logs.get(arguments["home"], settings)
        self._protocols.begin(settings, str(arguments["checkpoint"]), arguments["home"], run.generation, committed)
        expected = forecast(own, float(arguments.get("load_waves", 1.0)), autotune=settings.autotune)
        how = f"{decision['mode']} ({decision['reason']})"
        said += words_on_plan(plan, how, settings.describe(), arguments["home"])
        said += words_on_eager(decision.get("operators", ()), asked=settings.mode is Mode.EAGER)
        said_now = [asdict(word) for word in said]
        return {**asdict(run), "forecast": asdict(expected), "said": said_now}

    def _seen_at(self, checkpoint: str, home: str) -> str | None:
        """The id of the log that was there when the query was checked; now, if that was another agent's task."""
        if (checkpoint, home) in self._seen:
            return self._seen.pop((checkpoint, home))
        return read_log_id(open_storage(home))

    def report(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `home`, `generation`, `committed_batch`: writes the report once all stores are back.

        `done` is false while a store is missing: ask again after the next batch.
        """
        checkpoint = str(arguments["checkpoint"])
        own, key = cec_directory(checkpoint), (checkpoint, int(arguments["committed_batch"]))
        if key not in self._pending:
            return {"done": True}
        plan, started_ms = self._pending[key]
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
        del self._pending[key]
        path = report.write_report(own, report.compose(plan, loaded, started_ms))
        return {"done": True, "path": path}

    def replaying(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `generation`, `first`, `last`, `done`: how far a replay is."""
        numbers = (int(arguments[name]) for name in ("generation", "first", "last", "done"))
        report.note_progress(cec_directory(arguments["checkpoint"]), report.ReplayProgress(*numbers))
        return {}

    def flush_requested(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`: the request for a flush that waits, or None."""
        return {"request": flush_request(cec_directory(arguments["checkpoint"]))}

    def flush_done(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `request`, `version`, `failed`: answers a request."""
        own = cec_directory(arguments["checkpoint"])
        answer_flush(own, str(arguments["request"]), int(arguments["version"]), [str(e) for e in arguments["failed"]])
        return {}

    def acknowledge(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `version`: the lowest D of all stores at that version; no replay begins before that batch.

        Under a protocol: the version that the flow would go back to now.
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
        """`home`, `version` (committed by Spark), `generation`, `retained`: removes segments that nothing needs."""
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        version, kept_from = int(arguments["version"]), self._protocols.kept_from(arguments["home"])
        if kept_from == 0:  # the flow would go back to its beginning, and write all of it anew
            return {"removed": []}
        # Under a protocol Spark is told to keep all, and what none needs is let go with its checkpoints.
        retained = int(arguments["retained"]) if kept_from is None else max(REPAIRABLE_BATCHES, version - kept_from)
        first = max(version - retained, 1)
        horizon = TrimHorizon(
            stores=_oldest_needed(log.catalog.index, first, version),
            generation=int(arguments["generation"]),
            output_before=_output_before(log, version, kept_from),
            now_ms=int(time.time() * 1000),
        )
        return {"removed": trim(log.storage, log.catalog.index, horizon, log.summaries)}


def _answer(plan: RecoveryPlan, said: Sequence[Word]) -> Mapping[str, Any]:
    heads = [head.meta for head in plan.heads]
    return {
        "committed_batch": plan.committed_batch,
        "rewound_to": plan.rewound_to,
        "base": plan.base,
        "stores": [[m.store.operator, m.store.partition, m.store.name, m.dirty_from] for m in heads],
        "said": [asdict(word) for word in said],
    }


def _output_before(log: OpenLog, version: int, kept_from: int | None) -> int | None:
    """Below which batch output may go, by the settings, and where the flow may go back to; None: it is kept."""
    readers, keep_batches = log.settings.output_readers, log.settings.retain_output_batches
    bounds = [slowest_reader(log.storage, log.log_id, readers)] if readers else []
    bounds += [version - keep_batches] if keep_batches is not None else []
    return min(bounds + ([kept_from] if bounds and kept_from is not None else []), default=None)


def _refuse_output_from_the_future(log: OpenLog, checkpoint: str, committed_batch: int) -> None:
    """Output of a batch that Spark never ran would hide the rows that the query is about to write."""
    batches = manifest.batches(log.storage)
    if batches and batches[-1] > committed_batch + 1:
        raise UnsuitableCheckpoint(
            f"{log.home} holds output of batch {batches[-1]}, but the checkpoint ends at batch {committed_batch}: "
            f"entries of its offsets and commits are gone. {way_back(checkpoint, committed_batch)}; or restore the "
            f"checkpoint whole"
        )


def _oldest_needed(index: Index, first: int, last: int) -> dict[StoreId, int]:
    """Per store, the oldest version whose frame an EC at any version in `first`..`last` may read."""
    needed: dict[StoreId, int] = {}
    for store in index.stores():
        entries = index.commits(store, first, last)
        if not entries:
            raise DamagedLog(f"store {store}", -1, f"no commit frame between versions {first} and {last}")
        needed[store] = min(min(e.meta.oldest_footprint, e.meta.dirty_from) for e in entries)
    return needed
