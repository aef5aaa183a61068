"""The agent's part in a pipeline's protocol: the checkpoints that flows take between two batches, and their reads.

One agent serves the driver of all flows, so the machines of all flows are here. If the agent dies, the machines are
lost, and the pipeline's run ends: every flow goes back to the last line.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import CheckpointDueAnswer, CheckpointDueRequest, CheckpointTakenRequest, Done
from spark_cec.errors import CheckpointFailed, DamagedLog, NoLine, RestartNeeded, UnsuitableCheckpoint, Unsupported
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.storage import Storage
from spark_cec.protocols.messages import Line, Piggyback
from spark_cec.protocols.records import Records, checkpoints_of, records_in
from spark_cec.protocols.runtime import Coming, FlowRuntime, ProtocolRuntime, find_line, find_line_before
from spark_cec.protocols.spec import is_stopping, read_spec
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.replay_input import read_planned
from spark_cec.recovery.rollback import forget_batches, list_start_files
from spark_cec.recovery.spark_logs import all_stores, named_stores, operator_files, source_files
from spark_cec.settings import ProtocolSettings, Settings

REPAIRABLE_BATCHES = 100
"""A flow's batches that stay whatever lines need, as many as Spark keeps by default: `cec repair` may begin from any.
"""

_ANY_BATCH = 1 << 62
"""A number above every batch."""


@dataclass(slots=True)
class _Run:
    """A flow's run: the `home` of its log, its `generation`, and the batch after which it began.

    `synced`: the unchanging Spark files that the previous checkpoint has made durable.
    """

    settings: ProtocolSettings
    checkpoint: str
    home: str
    generation: int
    began_at: int
    synced: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Pipeline:
    """One run of a pipeline. `kept` is an earlier line, for the loss of a frame that the present line needs."""

    runtime: ProtocolRuntime
    records: dict[str, Records]
    line: Line
    kept: Line
    lock: threading.RLock = field(default_factory=threading.RLock)


class ProtocolCalls:
    """The calls of flows under a protocol; safe for several threads: each flow has one."""

    def __init__(self, logs: OpenLogs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._pipelines: dict[str, _Pipeline] = {}
        self._runs: dict[str, _Run] = {}  # by checkpoint
        self._flows_of_logs: dict[str, tuple[str, str]] = {}  # (home of the pipeline, flow), by home of a log

    def begin(self, settings: Settings, checkpoint: str, home: str, generation: int, committed: int) -> None:
        """Begins a flow's run after batch `committed`; `RestartNeeded` if its last checkpoint is at another batch."""
        self._runs.pop(checkpoint, None)
        self._flows_of_logs.pop(home, None)
        own = settings.protocol
        if own is None or not own.takes_part:
            return
        pipeline = self._find_pipeline(own)
        with pipeline.lock:
            at = pipeline.records[own.flow].newest
            if at.batch != committed:
                raise RestartNeeded(
                    f"flow {own.flow} is at batch {committed}, and its last checkpoint at batch {at.batch}: all flows "
                    f"of the pipeline at {own.home} have to go back to one line; start the pipeline"
                )
            pipeline.runtime.begin(own.flow, at)
        self._runs[checkpoint] = _Run(own, checkpoint, home, generation, committed)
        self._flows_of_logs[home] = own.home, own.flow

    def continue_run(self, checkpoint: str, generation: int) -> None:
        """Names the run of a flow that goes on, after a later start was given up."""
        run = self._runs.get(checkpoint)
        if run is not None:
            run.generation = generation

    def due(self, request: CheckpointDueRequest) -> CheckpointDueAnswer:
        """Answers whether the flow must write all its stores now, after its last committed batch.

        If the pipeline stops in good order, the end is a checkpoint.
        """
        pipeline, flow, run = self._find_run(request.checkpoint)
        batch, own = request.batch, run.settings
        if request.stopping and not is_stopping(open_storage(own.home), own.run):
            return CheckpointDueAnswer(due=False)
        with pipeline.lock:
            due = flow.is_due_at_the_end(batch) if request.stopping else flow.is_due(batch)
            return CheckpointDueAnswer(due=due)

    def taken(self, request: CheckpointTakenRequest) -> Done:
        """Records a checkpoint after the stores have written.

        Raises `CheckpointFailed` if a store could not write, `RestartNeeded` if a store is gone.
        """
        checkpoint, batch, failed = request.checkpoint, request.batch, request.failed
        pipeline, flow, run = self._find_run(checkpoint)
        missing, is_sure = self._find_unwritten(run, batch) if batch > run.began_at else ([], True)
        if failed and (missing or not is_sure):
            raise CheckpointFailed(f"flow {flow.name} cannot be checkpointed after batch {batch}: {'; '.join(failed)}")
        if missing:
            raise RestartNeeded(
                f"flow {flow.name} cannot be checkpointed after batch {batch}: {', '.join(missing[:3])} and "
                f"{len(missing)} stores in all have not written; was an executor lost?"
            )
        storage = open_storage(checkpoint)
        if batch > run.began_at:
            _verify_reads(storage, batch, flow)
        _make_durable(storage, batch, run)
        with pipeline.lock:
            _refuse_if_over(run.settings)
            pipeline.records[flow.name].add(flow.taken(int(time.time() * 1000)))
            flow.go_on()
            # Use the line that was kept before. Sources will soon acknowledge batches that this line releases, and then
            # read their entries for them.
            needed = min(pipeline.records[flow.name].known[0].batch, batch - REPAIRABLE_BATCHES)
            self._draw_line(pipeline)
        forget_batches(storage, needed)
        return Done()

    def end_of(self, settings: Settings, channel: str) -> int | None:
        """The last batch of a channel that the flow with these settings may read now; None if it may read all.

        A flow outside the protocol reads only what no failure takes back: the messages before the present line.
        """
        own = settings.protocol
        if own is None:
            return None
        pipeline, sender = self._find_pipeline(own), _parse_flow(own, channel)
        with pipeline.lock:
            if not own.takes_part:
                return pipeline.line[sender].sent - 1 if sender in pipeline.line else None
            flow = pipeline.runtime.flow(own.flow)
            return None if flow is None else flow.end_of(sender)

    def will_read(
        self, settings: Settings, channel: str, log: Storage | None, after: int, last: int, up_to: int | None,
        source: str,
    ) -> None:
        """Records that the flow's next batch reads a channel's batches after `after` up to `last`.

        `source` names the flow's source for the channel. `log`: None, if the channel has none yet.
        """
        own = settings.protocol
        if own is None or not own.takes_part:
            return
        pipeline, sender = self._find_pipeline(own), _parse_flow(own, channel)
        adds = pipeline.runtime.spec.protocol.adds_to_messages
        added = _load_piggybacks(log, after + 1, last) if log is not None and adds else {}
        with pipeline.lock:
            flow = pipeline.runtime.flow(own.flow)
            if flow is not None:
                flow.will_read(sender, Coming(after, last, added, up_to, source))

    def sends(self, checkpoint: str, batch: int) -> Piggyback | None:
        """The protocol's data in the flow's message of that batch; None if the protocol adds none."""
        if checkpoint not in self._runs:
            return None
        pipeline, flow, _ = self._find_run(checkpoint)
        with pipeline.lock:
            flow.has_run(batch)
            return flow.sends() or None

    def read_again_from(self, settings: Settings, channel: str) -> int | None:
        """The batch of a channel after which the flow may read again; None if the flow takes no part in a protocol.

        Checkpoints do not say how far the flow has read a channel of another query. It notes only batches of it that it
        will not read again, because Spark's acknowledgements wait for `kept_from`.
        """
        own = settings.protocol
        if own is None or not own.takes_part:
            return None
        pipeline, sender = self._find_pipeline(own), _parse_flow(own, channel)
        if sender not in pipeline.runtime.spec.inputs:
            return _ANY_BATCH
        with pipeline.lock:
            return pipeline.kept[own.flow].received.get(sender, 0) - 1

    def kept_from(self, log_home: str, settings: Settings) -> int | None:
        """The oldest version to which the flow with this log may go back; None if it takes part in no protocol.

        -1 if the agent that knew the flow's checkpoints has ended: nothing may go before all flows have gone back.
        """
        own = settings.protocol
        if own is None or not own.takes_part:
            return None
        home, flow = self._flows_of_logs.get(log_home, ("", ""))
        pipeline = self._pipelines.get(home)
        if pipeline is None:
            return -1
        with pipeline.lock:
            return pipeline.kept[flow].sent

    def _find_run(self, checkpoint: str) -> tuple[_Pipeline, FlowRuntime, _Run]:
        run = self._runs.get(checkpoint)
        pipeline = self._pipelines.get(run.settings.home) if run else None
        flow = pipeline.runtime.flow(run.settings.flow) if pipeline and run else None
        if run is None or pipeline is None or flow is None or pipeline.runtime.spec.run != run.settings.run:
            raise RestartNeeded(
                f"the agent that knew what the protocol has done for the flow with checkpoint {checkpoint} has ended: "
                f"all flows of its pipeline go back to their last line"
            )
        return pipeline, flow, run

    def _find_pipeline(self, own: ProtocolSettings) -> _Pipeline:
        """The pipeline's current run. A flow that only reads continues through several runs."""
        with self._lock:
            known = self._pipelines.get(own.home)
            run = known.runtime.spec.run if known is not None else ""
            if known is None or (run != own.run if own.takes_part else run < own.run):
                known = self._pipelines[own.home] = _open_pipeline(own, known)
            if own.takes_part and known.runtime.spec.run != own.run:
                raise RestartNeeded(f"flow {own.flow} is of a run of the pipeline at {own.home} that is over")
            return known

    @staticmethod
    def _draw_line(pipeline: _Pipeline) -> None:
        """Computes the line anew, and forgets the checkpoints before the line before it."""
        protocol, checkpoints = pipeline.runtime.spec.protocol, checkpoints_of(pipeline.records)
        pipeline.line = find_line(protocol, checkpoints)
        with suppress(NoLine):  # Without a line, forget nothing.
            pipeline.kept = find_line_before(protocol, checkpoints, pipeline.line)
        for name, at in pipeline.kept.items():
            pipeline.records[name].forget_before(at.number)

    def _find_unwritten(self, run: _Run, batch: int) -> tuple[list[str], bool]:
        """The stores without a frame of this run at the version, and whether the list of stores is complete.

        An executor that is gone leaves such stores. If the list is complete and none is missing, a failed answer does
        not matter: it came from an executor without stores.
        """
        return _find_stores_without(self._logs.get_known(run.home), run, batch + 1)


def _open_pipeline(own: ProtocolSettings, known: _Pipeline | None) -> _Pipeline:
    spec = read_spec(open_storage(own.home))
    if spec is None:
        raise UnsuitableCheckpoint(f"the pipeline at {own.home} has no protocol.json: start it anew")
    if known is not None and known.runtime.spec.run == spec.run:
        return known
    records = records_in(own.home, spec.inputs, open_storage)
    kept = {name: own.known[0].checkpoint for name, own in records.items()}
    return _Pipeline(ProtocolRuntime(spec), records, find_line(spec.protocol, checkpoints_of(records)), kept)


def _parse_flow(own: ProtocolSettings, channel: str) -> str:
    return channel.rstrip("/").removeprefix(f"{own.home}/flows/")


def _load_piggybacks(log: Storage, first: int, last: int) -> dict[int, Piggyback]:
    """The protocol's data in the coming messages, by batch; skips an unreadable message, which fails when it is read.
    """
    return {
        batch: each.piggyback
        for batch, each in manifest.load_between(log, first, last)
        if isinstance(each, manifest.Manifest) and each.piggyback is not None
    }


def _find_stores_without(log: OpenLog, run: _Run, version: int) -> tuple[list[str], bool]:
    log.catalog.refresh()
    return log.catalog.ask_twice(lambda: _list_stores_without(log, run, version), lambda found: bool(found[0]))


def _list_stores_without(log: OpenLog, run: _Run, version: int) -> tuple[list[str], bool]:
    index, checkpoint = log.catalog.index, open_storage(run.checkpoint)
    own, cuts = cec_directory(run.checkpoint), read_cuts(log.storage).known
    attempts = CommittedAttempts(checkpoint, own, cuts, version - 1)

    def has_written(store: StoreId) -> bool:
        wanted = (version, run.generation)
        return any((e.meta.version, e.meta.generation) == wanted for e in index.newest(store, version))

    written = {store for store in index.stores() if has_written(store)}
    # An abandoned history may have had other operators and more partitions.
    silent = [each for each in index.stores() if each not in written]
    alive = {each for each in silent if any(attempts.allows(e) for e in index.commits(each, 0, version))}
    stores = all_stores(checkpoint, written | alive, is_ours=True)
    missing = [f"store {store}" for store in stores if store not in written]
    return missing, set(named_stores(checkpoint)) <= set(stores)


def _refuse_if_over(own: ProtocolSettings) -> None:
    """Raises `RestartNeeded` if a newer run of the pipeline has begun; storages without locks do not keep it out."""
    spec = None
    with suppress(DamagedLog):  # The next run writes the file anew.
        spec = read_spec(open_storage(own.home))
    if spec is None or spec.run != own.run:
        raise RestartNeeded(f"flow {own.flow} is of a run of the pipeline at {own.home} that is over")


def _make_durable(checkpoint: Storage, batch: int, run: _Run) -> None:
    """Syncs Spark's files up to the batch: Spark does not sync them, and a checkpoint needs them."""
    if batch < 0:
        return
    for path in list_start_files(batch):
        checkpoint.sync(path)
    if checkpoint.local_path("") is None:  # an object store makes each readable object durable
        return
    planned = read_planned(checkpoint, batch)
    noted = frozenset(source_files(checkpoint, len(planned.offsets) if planned else 0))
    of_query = [] if run.synced else ["metadata", *operator_files(checkpoint)]  # they do not change
    for path in (*of_query, *sorted(noted - run.synced)):
        with suppress(FileNotFoundError):  # a source deletes entries after compaction
            checkpoint.sync(path)
    run.synced = noted | {"metadata"}


def _verify_reads(checkpoint: Storage, batch: int, flow: FlowRuntime) -> None:
    """Checks the flow's reads against Spark's offset log, because a line depends on them."""
    planned = read_planned(checkpoint, batch)
    if planned is None:
        return
    if not planned.offsets:
        raise Unsupported(
            f"flow {flow.name} takes part in a protocol, and its offsets/{batch} is not of version 1: leave "
            f"spark.sql.streaming.offsetLog.formatVersion and queryEvolution.enableSourceEvolution as they are"
        )
    left = [_parse_batch(each) for each in planned.offsets]
    for sender, has_read in flow.reads.items():
        if has_read < 0 and None in left:
            left.remove(None)
        elif has_read in left:
            left.remove(has_read)
        else:
            raise CheckpointFailed(
                f"flow {flow.name} has read {sender} up to batch {has_read}, and Spark's offsets/{batch} has "
                f"{', '.join(str(each) for each in planned.offsets)}"
            )


def _parse_batch(offset: str | None) -> int | None:
    try:
        return None if offset is None else manifest.read_batch(offset)
    except ValueError:
        return None
