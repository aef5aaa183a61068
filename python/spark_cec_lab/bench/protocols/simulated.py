"""The same dataflows on simulated workers, with the costs that the runs on Spark have shown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.pool import Pool
from typing import Any

from spark_cec.protocols.choose import Protocol
from spark_cec_lab.bench.measure import Say
from spark_cec_lab.bench.protocols.spec import CYCLIC, Outcome
from spark_cec_lab.simulation.protocols.dataflow import Dataflow, Operator
from spark_cec_lab.simulation.protocols.measure import Course, by_workers, sustainable_rate
from spark_cec_lab.simulation.protocols.plan import Costs

CORES = 2
"""Of the machine, and so of the workers with which a run on Spark is compared."""

FIVE = (Protocol.NONE, Protocol.COORDINATED, Protocol.UNCOORDINATED, Protocol.CIC, Protocol.CEC)


def _source(view: str, share: float) -> Operator:
    """A flow that makes all events, and gives those of one kind, so many of each."""
    return Operator(view, us=0.2, out=share)


FLOWS = {
    each.name: each
    for each in (
        Dataflow("q1", (_source("bid", 0.92), Operator("q1", ("bid",), keyed=True, us=2.0))),
        Dataflow("q3", (
            _source("auction", 0.06), _source("person", 0.02),
            Operator("q3", ("auction", "person"), keyed=True, us=6.0, out=0.03, kept_bytes=120.0),
        )),
        Dataflow("q8", (
            _source("auction", 0.06), _source("person", 0.02),
            Operator("q8", ("auction", "person"), keyed=True, us=5.0, out=0.5, kept_bytes=60.0, most_bytes=4e6),
        )),
        Dataflow("q12", (
            _source("bid", 0.92), Operator("q12", ("bid",), keyed=True, us=3.0, kept_bytes=8.0, most_bytes=1e6),
        )),
        Dataflow(CYCLIC, (
            Operator("changed", us=0.2),
            Operator("paths", ("changed", "paths"), keyed=True, us=200.0, out=0.6, kept_bytes=80.0),
        ), hops=3),
    )
}  # fmt: skip
"""The queries as they run on Spark: flows, not operators, with the shares that NexMark's events have."""


def batch_cost_s(outcomes: Sequence[Outcome]) -> float | None:
    """Processor seconds of a batch, from runs that have next to no input; None if there are none."""
    slow = [run for run in outcomes if run.spec.rate is not None and run.spec.fails_s is None and run.batches]
    return statistics.median(run.cpu_s / run.batches for run in slow) if slow else None


def costs_of(outcomes: Sequence[Outcome], dataflow: Dataflow, protocol: Protocol) -> Costs:
    """What a batch has cost, a checkpoint of this query's flows, and a restart of them under this protocol.

    What no run says is as it is by default. Runs with hot keys do not count: others are simulated with these costs. A
    flow on Spark runs again before it has loaded its state or read what it is to process again: its first batches do,
    and the time of a restart has neither.
    """
    own = [each for each in outcomes if each.spec.query == dataflow.name and each.spec.hot_percent is None]
    alone = protocol is Protocol.CEC
    back = [each.recovery.restart_s for each in own if each.recovery and (each.spec.protocol == "cec") is alone]
    costs = Costs(trigger_s=0.1, detect_s=0.1, fetch_us=0.0, load_us=0.0)
    fixed = batch_cost_s(outcomes)
    if fixed:
        costs = replace(costs, batch_s=fixed)
    if back:
        costs = replace(costs, restart_s=max(statistics.median(back) - costs.detect_s, 0.0))
    return _with_checkpoints(costs, [each for each in own if each.spec.rate is None and each.taken], dataflow)


def _with_checkpoints(costs: Costs, full: Sequence[Outcome], dataflow: Dataflow) -> Costs:
    """From runs at full speed: of flows without state, and how much longer it takes for each byte that has changed."""
    small: list[float] = []
    large: list[float] = []
    for run in full:
        for each in run.taken:
            flow = dataflow.by_name.get(_flow(each.process))
            if flow is not None and each.begun_s >= run.began_s:
                (large if flow.kept_bytes else small).append(each.durable_s - each.begun_s)
    if small:
        costs = replace(costs, checkpoint_s=statistics.median(small))
    changed = [found for run in full if (found := _changed_bytes(dataflow, run))]
    if not large or not changed:
        return costs
    us = 1e6 * max(statistics.median(large) - costs.checkpoint_s, 0.0) / statistics.median(changed)
    by = us / (costs.snapshot_us + costs.write_us)
    return replace(costs, snapshot_us=by * costs.snapshot_us, write_us=by * costs.write_us)


def _flow(process: str) -> str:
    """Without which of the instances it is."""
    return process.partition("-")[0]


def _changed_bytes(dataflow: Dataflow, run: Outcome) -> float:
    """Of the state of an instance, about, between two of its checkpoints: what it reads, also on a cycle."""
    flow = max(dataflow.operators, key=lambda each: each.kept_bytes)  # the only one with state, if there is one
    read = sum(dataflow.by_name[name].share * dataflow.by_name[name].out for name in flow.inputs if name != flow.name)
    around = sum(flow.out**hop for hop in range(dataflow.hops + 1)) if flow.name in flow.inputs else 1.0
    touched = run.events_s * read * around * flow.kept_bytes * run.spec.interval_s / run.spec.instances
    return min(touched, flow.most_bytes)


def calibrated(dataflow: Dataflow, protocol: Protocol, events_s: float, course: Course, costs: Costs) -> Dataflow:
    """The dataflow with operators so fast that under the protocol as many workers as there are cores do as much."""
    for _ in range(4):
        rate = sustainable_rate(dataflow, protocol, CORES, course, costs)
        by = rate / events_s
        dataflow = replace(dataflow, operators=tuple(replace(each, us=each.us * by) for each in dataflow.operators))
    return dataflow


def simulated(
    query: str, events_s: float, workers: Sequence[int], hot: Sequence[float], course: Course,
    costs: Mapping[Protocol, Costs], pool: Pool, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """A line for each protocol, number of workers, and skew; see `by_workers`.

    1. The query is made as fast as on Spark, without a protocol, or, on a cycle, with the first that it can have.
    2. Each protocol by itself, as many at once as the pool has workers.
    3. `throughput` is over that of the first.
    """
    dataflow, protocols = FLOWS[query], FIVE if query != CYCLIC else FIVE[2:]
    dataflow = pool.apply(calibrated, (dataflow, protocols[0], events_s, course, costs[protocols[0]]))  # 1
    tasks = [(dataflow, each, workers, hot, course, costs[each]) for each in protocols]
    found: dict[Protocol, list[dict[str, Any]]] = {}
    for protocol, own in pool.imap_unordered(_lines, tasks):  # 2
        found[protocol] = own
        say(f"{query}, {protocol.value}: simulated with {', '.join(map(str, workers))} workers")
    first = {line["workers"]: line["rate"] for line in found[protocols[0]]}  # 3
    lines = [line for each in protocols for line in found[each]]
    return [{**line, "throughput": round(line["rate"] / first[line["workers"]], 3)} for line in lines]


def _lines(
    task: tuple[Dataflow, Protocol, Sequence[int], Sequence[float], Course, Costs],
) -> tuple[Protocol, list[dict[str, Any]]]:
    dataflow, protocol, workers, hot, course, costs = task
    return protocol, list(by_workers(dataflow, protocol, workers, course, costs, hot))
