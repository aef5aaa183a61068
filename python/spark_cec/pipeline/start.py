"""Starts a pipeline: one function, which reads as the steps of docs/design.md."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_cec.availability.failure import FailureState
from spark_cec.pipeline.block_keeper import BlockKeeper
from spark_cec.pipeline.capacity import Capacity, RecoveryMode, RecoveryPolicy
from spark_cec.pipeline.capacity_keeper import CapacityKeeper
from spark_cec.pipeline.checkpointing import Checkpointing
from spark_cec.pipeline.cluster import Cluster, use_storage_settings
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.epoch_files import close_left_epochs
from spark_cec.pipeline.epoch_keeper import EpochKeeper
from spark_cec.pipeline.flows import Flows
from spark_cec.pipeline.graph import Graph, GraphError, choose_flows
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.input_checks import list_slow_inputs
from spark_cec.pipeline.joint_recovery import JointRecovery
from spark_cec.pipeline.replicas import Replica, check_replicas, describe_reads, parse_replica, refuse_some_sinks
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.pipeline.sink_keeper import SinkKeeper
from spark_cec.pipeline.supervise import Patience, Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


def start_pipeline(
    declared: Declaration, spark: SparkSession, patience: Patience | None = None,
    only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None, replica: str | None = None,
) -> RunningPipeline:  # fmt: skip
    """Starts the chosen flows of a pipeline, or nothing.

    1. Check the graph, and choose the flows. Take Spark's settings of storages.
    2. Make the DataFrame of every flow, which tells the columns of every channel.
    3. Attach to the executors of the application.
    4. Take the home: its lease, and the comparison with the graph that it was begun with. Close the epochs that an
       earlier driver left open.
    5. Under a protocol, begin a run: take all flows back to one line.
    6. Start a thread for each flow, and the threads that watch the flows.

    If a step fails, the steps before it are undone. Arguments and errors: see `Pipeline.start`.
    """
    graph, checkpointing = declared.graph(), declared.checkpointing  # 1
    chosen = choose_flows(graph, only)
    _refuse_choice_under_protocol(graph, chosen, checkpointing)
    use_storage_settings(spark)
    own = parse_replica(graph.name, declared.home, replica)
    if own is not None:
        check_replicas(graph, declared.flows, is_cec=checkpointing.is_cec)
        refuse_some_sinks(graph, chosen)
    home = PipelineHome.of(graph, declared.home, own)
    runs = None if checkpointing.is_cec else ProtocolRuns(declared.home, graph, checkpointing, home.confirm)
    flows = Flows(spark, graph, declared.flows, home, runs, own)  # 2
    with ExitStack() as undo:
        cluster = Cluster(spark)  # 3
        undo.callback(cluster.detach)
        reads = describe_reads(declared.flows, flows.settings(), flows.bounded(), flows.constants())
        home.take(graph, flows.schemas(), checkpointing, reads=reads, flows=chosen)  # 4
        undo.callback(home.withdraw, graph)
        for name, node in graph.nodes.items():
            if not node.is_sink:
                close_left_epochs(home.flow(name))
        if runs is not None:
            runs.begin_run()  # 5
        policy = recovery or RecoveryPolicy()
        for each in list_slow_inputs(graph, declared.flows):
            _LOG.warning("pipeline %s: %s", graph.name, each)
        running = _assemble(graph, chosen, home, flows, cluster, patience or Patience(), policy, runs, own)
        running.start_threads()  # 6
        undo.pop_all()
    return running


def _refuse_choice_under_protocol(graph: Graph, chosen: frozenset[str], checkpointing: Checkpointing) -> None:
    if not checkpointing.is_cec and chosen != frozenset(graph.nodes):
        why = f"under protocol={checkpointing.protocol.value!r} all flows run, or none"
        raise GraphError(graph.name, [f"{len(chosen)} of its flows were chosen: {why}"])


def _assemble(
    graph: Graph, chosen: frozenset[str], home: PipelineHome, flows: Flows, cluster: Cluster, patience: Patience,
    policy: RecoveryPolicy, runs: ProtocolRuns | None, replica: Replica | None,
) -> RunningPipeline:  # fmt: skip
    """Makes the threads of a pipeline, and starts none."""
    news, supervisors = threading.Event(), dict[str, Supervisor]()
    recovery = None if runs is None else JointRecovery(graph.name, supervisors, runs)
    servers = flows.servers()
    note_failure = _ignore_failure if recovery is None else recovery.note_failure
    for members in graph.order():
        for name in members:
            if name in chosen:
                start = partial(flows.start, name)
                supervisors[name] = Supervisor(
                    name, start, patience, news.set, failed=note_failure, has_run=partial(home.has_batch, name),
                    servers=servers.get(name, ()),
                )
    prioritizes = policy.mode is not RecoveryMode.AT_ONCE
    if cluster.is_elastic or runs is not None:
        policy = replace(policy, mode=RecoveryMode.AT_ONCE)
    capacity = Capacity(graph, chosen, policy)
    epochs = dict[str, EpochKeeper]()
    keeper = CapacityKeeper(
        graph.name, cluster, capacity, supervisors, news, prioritizes=prioritizes, corrects=partial(_corrects, epochs)
    )
    for name, within in flows.bounds().items():
        if name in chosen:
            epochs[name] = EpochKeeper(
                name, home.flow(name), within, supervisors[name].running_query, partial(_is_over, supervisors[name]),
                partial(_find_epochs, graph.nodes[name].inputs, epochs), partial(flows.start_epoch, name), news.set,
                home.confirm, forks_ahead=not flows.has_trigger(name),
                answering=[each for each in graph.nodes[name].inputs if each in flows.bounds()],
            )  # fmt: skip
    sinks = {name: each for name, each in supervisors.items() if graph.nodes[name].is_sink}
    standby = None
    if replica is not None and sinks:
        has_executors = partial(_has_executors, keeper, is_elastic=cluster.is_elastic)
        standby = SinkKeeper(graph.name, replica.sinks, sinks, news.set, has_executors)
    blocks = BlockKeeper(graph, flows.keeps(), supervisors, news.set)
    return RunningPipeline(
        graph, home, supervisors, keeper, news, runs, recovery, epochs, flows.find_blocked, blocks, standby
    )


def _has_executors(keeper: CapacityKeeper, *, is_elastic: bool) -> bool:
    """Whether tasks can run. With dynamic allocation Spark asks for executors when tasks wait."""
    return is_elastic or keeper.standing is None or keeper.standing.executors > 0


def _is_over(supervisor: Supervisor) -> bool:
    return supervisor.is_over


def _corrects(epochs: Mapping[str, EpochKeeper], name: str) -> bool:
    """Whether a flow gives out the rows that replace those of its open epoch."""
    return name in epochs and epochs[name].standing.state is FailureState.STABILIZATION


def _find_epochs(inputs: Collection[str], epochs: Mapping[str, EpochKeeper]) -> frozenset[tuple[str, int]]:
    """The open epochs of the flows `inputs`, by flow and number."""
    standings = {name: epochs[name].standing for name in inputs if name in epochs}
    return frozenset((name, each.epoch) for name, each in standings.items() if each.epoch is not None)


def _ignore_failure(_: str) -> None:
    """A flow that recovers by itself concerns no other flow."""
