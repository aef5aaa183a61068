"""The calls of Spark's user interface: how a query keeps its bounds, and what its pipeline does.

They read, and write nothing. A page asks only when somebody opens it.
"""

from __future__ import annotations

import json
import time

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import (
    AgesAnswer,
    AgesRequest,
    LookAnswer,
    LookRequest,
    PipelineLookAnswer,
    PipelineLookRequest,
    Reach,
    StoreAges,
)
from spark_cec.checkpoint.eventual import completed
from spark_cec.errors import DamagedLog
from spark_cec.log.scan import Corrupt
from spark_cec.log.segment import list_segments
from spark_cec.log.storage import Storage
from spark_cec.pipeline.status import PipelineStatus
from spark_cec.recovery.attempts import read_attempts
from spark_cec.recovery.facts import read_plan
from spark_cec.recovery.overview import group_ages, sum_operators
from spark_cec.recovery.past_recoveries import read_recoveries
from spark_cec.recovery.query_files import PIPELINE_FILE, QUERY
from spark_cec.recovery.replay_input import read_replay_input
from spark_cec.recovery.sources import stand_sources
from spark_cec.recovery.spark_logs import committed_batch

_RECOVERIES = 20
_STATUS_FILE = "status.json"


class LookCalls:
    """The calls of Spark's user interface."""

    def __init__(self, logs: OpenLogs) -> None:
        self._logs = logs

    def look(self, request: LookRequest) -> LookAnswer:
        """Answers from the headers of a log that is open in this agent; `UnknownLog` for another one."""
        log, checkpoint = self._logs.get_known(request.home), open_storage(request.checkpoint)
        own = cec_directory(request.checkpoint)
        batch = committed_batch(checkpoint)  # before the log: a frame is there before its batch commits
        if not log.ledgers.are_kept:
            # An agent that writes the stores has their frames in its index. A refresh would make its commits wait.
            log.catalog.refresh()
        index, version = log.catalog.index, batch + 1
        newest = {store: index.newest(store, version) for store in index.stores()}
        heads = [completed(index, attempts[-1]).meta for attempts in newest.values() if attempts]
        query = QUERY.read_if_sound(own)
        # Stores that write behind the batch may lack the newest version.
        is_written = bool(heads) and all(head.version == version for head in heads)
        reach, why = _read_reach(log, checkpoint, own, batch) if is_written else (None, None)
        return LookAnswer(
            batch=batch,
            wall_ms=max((head.wall_ms for head in heads), default=None),
            settings="" if query is None else str(query.get("settings", "")),
            operators=sum_operators(heads, log.settings),
            recovery_ms=max((head.recovery_estimate_ms for head in heads), default=0.0),
            reach=reach,
            recoveries=read_recoveries(own, _RECOVERIES),
            damages=(*_describe_corrupt(log), *([why] if why else [])),
            stored_bytes=sum(file.size for file in list_segments(log.storage)),
        )

    def ages(self, request: AgesRequest) -> AgesAnswer:
        """Answers from the ledgers that this agent keeps, without a look into the log."""
        live = self._logs.get_known(request.home).ledgers.live()
        stores = (
            StoreAges(store=store, version=version, ages=group_ages(counts, version))
            for store, (version, counts) in live.items()
        )
        return AgesAnswer(stores=tuple(stores))

    def look_at_pipeline(self, request: PipelineLookRequest) -> PipelineLookAnswer:
        """Answers the newest status of a pipeline, and its graph."""
        home, storage = request.home, open_storage(request.home)
        if not storage.exists(PIPELINE_FILE):
            return PipelineLookAnswer(home=None, graph=None, status=None)
        try:
            graph, status = json.loads(storage.read(PIPELINE_FILE)), json.loads(storage.read(_STATUS_FILE))
            status = PipelineStatus.from_json(status).to_json()
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return PipelineLookAnswer(home=home, graph=None, status=None)
        return PipelineLookAnswer(home=home, graph={"flows": graph.get("flows", {})}, status=status)


def _describe_corrupt(log: OpenLog) -> list[str]:
    """The damage that somebody must mend. A torn end is none: nothing acknowledged is in it."""
    corrupt = (each for each in log.catalog.damages if isinstance(each, Corrupt))
    return [f"{each.segment} at byte {each.offset}: {each.reason}" for each in corrupt]


def _read_reach(log: OpenLog, checkpoint: Storage, own: Storage, batch: int) -> tuple[Reach | None, str | None]:
    """How far back a recovery would reach, or why the log cannot tell."""
    index = log.catalog.index
    try:
        attempts = read_attempts(checkpoint, own, log.storage)
        plan = read_plan(index, index.stores(), batch, batch + 1, attempts.allows_read)
    except DamagedLog as error:
        return None, str(error)
    found = read_replay_input(checkpoint, plan.rewound_to + 1, batch)
    batches, text = max(batch - found.first + 1, 0), found.describe(int(time.time() * 1000))
    seen = log.seen_sources
    return Reach(
        first=found.first,
        batches=batches,
        planned_ms=found.timestamp_ms,
        text=text,
        sources=() if seen is None else stand_sources(found, seen.sources),
        asked_ms=None if seen is None else seen.at_ms,
    ), None
