"""Calls of the driver: settings, the recovery plan, the run, the report, acknowledgements, trimming."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_cec import __version__
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import WAIT_S, CheckpointLeases
from spark_cec.agent.logs import OpenLog, OpenLogs, conf_of, home_of
from spark_cec.errors import AlreadyExists, DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.ids import StoreId, new_id
from spark_cec.index import Index
from spark_cec.log import manifest
from spark_cec.log.home import absolute_home, join_log, read_log_id, relative_home
from spark_cec.log.reader import read_frame
from spark_cec.log.storage import Storage
from spark_cec.log.trim import TrimHorizon, trim
from spark_cec.recovery import report
from spark_cec.recovery.forecast import forecast
from spark_cec.recovery.plan import (
    Recording,
    RecoveryPlan,
    check_recording,
    first_missed,
    make_plan,
    pending_recording,
    refuse_a_log_that_is_ahead,
    save_recording,
)
from spark_cec.settings import PREFIX, parse_settings

QUERY_FILE = "query.json"


def cec_directory(checkpoint: str) -> Storage:
    """The checkpoint's own `cec` directory, which holds all but the log itself."""
    return open_storage(f"{checkpoint.rstrip('/')}/cec")


def read_query(storage: Storage) -> dict[str, Any] | None:
    """`query.json` of a checkpoint's `cec` directory: what the last start decided; None before the first."""
    if not storage.exists(QUERY_FILE):
        return None
    query = json.loads(storage.read(QUERY_FILE))
    assert isinstance(query, dict)
    return query


class DriverCalls:
    """What the analyzer rule and the query listener ask for."""

    def __init__(self, logs: OpenLogs) -> None:
        self._logs = logs
        self._leases = CheckpointLeases()
        self._pending: dict[tuple[str, int], tuple[RecoveryPlan, int]] = {}

    def check(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`conf`, `checkpoint`, `sink_path`: refuses what cannot work, before anything is written.

        Answers the log's home, whether a log is there, the settings in one line, and warnings.
        """
        settings = parse_settings(conf_of(arguments))
        checkpoint = str(arguments["checkpoint"])
        query = read_query(cec_directory(checkpoint))
        home = home_of(checkpoint, settings, arguments.get("sink_path"))
        recorded = absolute_home(checkpoint, query["log_home"]) if query is not None else home
        if recorded != home:
            raise UnsuitableCheckpoint(
                f"the log of {checkpoint} is at {recorded}, but this query's settings place it at {home}: give "
                f"back the sink's `path` and cec.log.path as they were"
            )
        storage = open_storage(home)
        storage.probe_writable()
        log_id = read_log_id(storage)
        if log_id is not None and (query is None or query["log_id"] != log_id):
            raise UnsuitableCheckpoint(
                f"{home} holds the log of another query (id {log_id}): give this query a log location of its own, or "
                f"start it from the checkpoint that the log belongs to"
            )
        return {
            "home": home,
            "log_exists": log_id is not None,
            "mode": settings.mode.value,
            "describe": settings.describe(),
            "warnings": list(settings.warnings),
            "replayable_sources": list(settings.replayable_sources),
        }

    def resolve(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `conf`: home and generation for a store without word from the rule."""
        query = read_query(cec_directory(arguments["checkpoint"]))
        if query is None:
            return {"home": home_of(arguments["checkpoint"], parse_settings(conf_of(arguments)), None), "generation": 0}
        return {"home": absolute_home(arguments["checkpoint"], query["log_home"]), "generation": query["generation"]}

    def hold(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `generation`, `wait_s`: takes the lease of a query's checkpoint; `Fenced` if another has it.

        The generation is that of a run under way whose agent died, and the lease with it: if a later run has begun in
        the meantime, it has rewound Spark's logs under this one, which must not go on.
        """
        checkpoint = str(arguments["checkpoint"])
        own = cec_directory(checkpoint)
        taken = self._leases.hold(checkpoint, own, float(arguments.get("wait_s", WAIT_S)))
        newest, generation = _newest_generation(own), arguments.get("generation")
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

    def close(self) -> None:
        """Gives back all leases."""
        self._leases.close()

    def plan(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`conf`, `checkpoint`, `home`, `commits` (in Spark's log), `last_offset`, `offsets` (of the newest).

        Answers V, T, the recording of a recovery that was cut short (or None), and each store's numbers at the crash.
        """
        log = self._logs.get(arguments["home"], parse_settings(conf_of(arguments)))
        log.catalog.refresh()
        own, commits = cec_directory(arguments["checkpoint"]), {int(batch) for batch in arguments["commits"]}
        recording = pending_recording(own, commits, int(arguments["last_offset"]))
        if recording is not None:
            check_recording(recording, {int(batch): each for batch, each in arguments["offsets"].items()})
        committed = recording.committed_batch if recording else max(commits, default=-1)
        refuse_a_log_that_is_ahead(log.catalog.index, committed, _newest_generation(own))
        plan = make_plan(log.catalog.index, recording, committed)
        _refuse_output_from_the_future(log, plan.committed_batch)
        self._pending[(arguments["checkpoint"], plan.committed_batch)] = (plan, int(time.time() * 1000))
        return {
            "committed_batch": plan.committed_batch,
            "rewound_to": plan.rewound_to,
            "recorded": None if recording is None else {str(b): list(o) for b, o in recording.offsets.items()},
            "stores": [
                [h.meta.store.operator, h.meta.store.partition, h.meta.store.name, h.meta.dirty_from]
                for h in plan.heads
            ],
        }

    def record(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `committed_batch`, `rewound_to`, `offsets`: makes the recording durable."""
        offsets = {int(batch): tuple(each) for batch, each in arguments["offsets"].items()}
        recording = Recording(int(arguments["committed_batch"]), int(arguments["rewound_to"]), offsets)
        save_recording(cec_directory(arguments["checkpoint"]), recording)
        return {}

    def begin_run(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `home`, `conf`, `decision`, `load_waves`: allots the generation, writes `query.json`.

        The log is begun where there is none. Answers the generation, and what earlier recoveries foretell.
        """
        settings = parse_settings(conf_of(arguments))
        own = cec_directory(arguments["checkpoint"])
        query = read_query(own)
        log_storage = open_storage(arguments["home"])
        log_id = query["log_id"] if query else read_log_id(log_storage) or new_id().hex()
        generation = _next_generation(own)
        content = {
            "log_home": relative_home(arguments["checkpoint"], arguments["home"]),
            "log_id": log_id,
            "generation": generation,
            "settings": settings.describe(),
            "settings_conf": {key: value for key, value in conf_of(arguments).items() if key.startswith(PREFIX)},
            "release": __version__,
            **arguments["decision"],
        }
        own.replace(QUERY_FILE, json.dumps(content, indent=1).encode())
        if join_log(log_storage, log_id) != log_id:
            raise UnsuitableCheckpoint(
                f"{arguments['home']} was taken by another query at this moment: give each query a log of its own"
            )
        self._logs.get(arguments["home"], settings)
        expected = forecast(own, float(arguments.get("load_waves", 1.0)), autotune=settings.autotune)
        return {"generation": generation, "log_id": log_id, "forecast": asdict(expected)}

    def report(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`checkpoint`, `home`, `generation`, `committed_batch`, `last_commit`: writes the report once all is back.

        `done` is false while a store is missing, and while the recording of the recovery must stay: ask again after
        the next batch.
        """
        checkpoint, last_commit = str(arguments["checkpoint"]), int(arguments["last_commit"])
        own, key = cec_directory(checkpoint), (checkpoint, int(arguments["committed_batch"]))
        if key not in self._pending:
            return {"done": pending_recording(own, range(last_commit + 1), last_commit) is None}
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
            )
            for e in entries
            for payload in [json.loads(bytes(read_frame(log.storage, e.location).payload))]
        ]
        if {head.meta.store for head in plan.heads} - {each.store for each in loaded}:
            return {"done": False}
        del self._pending[key]
        path = report.write_report(own, report.compose(plan, loaded, started_ms))
        return {"done": pending_recording(own, range(last_commit + 1), last_commit) is None, "path": path}

    def acknowledge(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `version`: the lowest D of all stores at that version; no replay begins before that batch."""
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        index, version = log.catalog.index, int(arguments["version"])
        stores = index.stores()
        heads = [attempts[-1] for store in stores if (attempts := index.newest(store, version))]
        if not heads or len(heads) < len(stores) or any(head.meta.version != version for head in heads):
            return {"dirty_from": None}
        return {"dirty_from": min(first_missed(index, head) for head in heads)}

    def trim(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `version` (committed by Spark), `generation`, `retained`: removes segments that nothing needs."""
        log = self._logs.get_known(arguments["home"])
        log.catalog.refresh()
        keep_batches = log.settings.retain_output_batches
        version = int(arguments["version"])
        horizon = TrimHorizon(
            stores=_oldest_needed(log.catalog.index, max(version - int(arguments["retained"]), 1), version),
            generation=int(arguments["generation"]),
            output_before=None if keep_batches is None else version - keep_batches,
        )
        return {"removed": trim(log.storage, log.catalog.index, horizon)}


def _refuse_output_from_the_future(log: OpenLog, committed_batch: int) -> None:
    """Output of a batch that Spark never ran would hide the rows that the query is about to write."""
    batches = manifest.batches(log.storage)
    if batches and batches[-1] > committed_batch + 1:
        raise UnsuitableCheckpoint(
            f"{log.home} holds output of batch {batches[-1]}, but Spark's commit log ends at batch {committed_batch}: "
            f"the checkpoint was changed by hand; restore it whole, or start a new one with a log of its own"
        )


def _next_generation(own: Storage) -> int:
    """A number that no other run of this query has had, larger than all before; create-if-absent makes it unique."""
    generation = _newest_generation(own) + 1
    while True:
        try:
            own.create(
                f"generations/{generation:010d}.json", json.dumps({"started_unix_ms": int(time.time() * 1000)}).encode()
            )
            return generation
        except AlreadyExists:
            generation += 1


def _newest_generation(own: Storage) -> int:
    return max((int(file.name.removesuffix(".json")) for file in own.list("generations")), default=0)


def _oldest_needed(index: Index, first: int, last: int) -> dict[StoreId, int]:
    """Per store, the oldest version whose frame an EC at any version in `first`..`last` may read."""
    needed: dict[StoreId, int] = {}
    for store in index.stores():
        entries = index.commits(store, first, last)
        if not entries:
            raise DamagedLog(f"store {store}", -1, f"no commit frame between versions {first} and {last}")
        needed[store] = min(min(e.meta.oldest_footprint, e.meta.dirty_from) for e in entries)
    return needed
