"""The same dataflows on simulated workers, with the costs that the runs on Spark have shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import Pool
from typing import Any

from spark_cec.bench.measure import Say
from spark_cec.bench.protocols.spec import CYCLIC, Outcome
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.simulation.dataflow import Dataflow, Operator
from spark_cec.protocols.simulation.measure import Course, by_workers, sustainable_rate
from spark_cec.protocols.simulation.plan import Costs

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


def costs_of(outcomes: Sequence[Outcome]) -> Costs:
    """What a batch, a checkpoint and a restart cost, from runs of all protocols."""
    fixed = batch_cost_s(outcomes)
    taken = [each.durable_s - each.begun_s for run in outcomes for each in run.taken]
    back = [each.recovery for each in outcomes if each.recovery is not None and each.spec.protocol != "cec"]
    costs = Costs(trigger_s=0.1, detect_s=0.1)
    if fixed:
        costs = replace(costs, batch_s=fixed)
    if taken:
        costs = replace(costs, checkpoint_s=statistics.median(taken))
    if back:
        costs = replace(costs, restart_s=max(statistics.median(each.restart_s for each in back) - costs.detect_s, 0.0))
    return costs


def calibrated(dataflow: Dataflow, protocol: Protocol, events_s: float, course: Course, costs: Costs) -> Dataflow:
    """The dataflow with operators so fast that under the protocol as many workers as there are cores do as much."""
    for _ in range(4):
        rate = sustainable_rate(dataflow, protocol, CORES, course, costs)
        by = rate / events_s
        dataflow = replace(dataflow, operators=tuple(replace(each, us=each.us * by) for each in dataflow.operators))
    return dataflow


def simulated(
    query: str, events_s: float, workers: Sequence[int], hot: Sequence[float], course: Course, costs: Costs,
    pool: Pool, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """A line for each protocol, number of workers, and skew; see `by_workers`.

    1. The query is made as fast as on Spark, without a protocol, or, on a cycle, with the first that it can have.
    2. Each protocol by itself, as many at once as the pool has workers.
    3. `throughput` is over that of the first.
    """
    dataflow, protocols = FLOWS[query], FIVE if query != CYCLIC else FIVE[2:]
    dataflow = pool.apply(calibrated, (dataflow, protocols[0], events_s, course, costs))  # 1
    tasks = [(dataflow, each, workers, hot, course, costs) for each in protocols]
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
