"""The same dataflows on simulated workers, with the costs that the runs on Spark have shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from spark_cec.bench.protocols.spec import Outcome
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.simulation.dataflow import Dataflow, Operator
from spark_cec.protocols.simulation.measure import Course, compared, sustainable_rate
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


def calibrated(dataflow: Dataflow, events_s: float, course: Course, costs: Costs) -> Dataflow:
    """The dataflow with operators so fast that, without a protocol, as many workers as there are cores do as much."""
    for _ in range(4):
        rate = sustainable_rate(dataflow, Protocol.NONE, CORES, course, costs)
        by = rate / events_s
        dataflow = replace(dataflow, operators=tuple(replace(each, us=each.us * by) for each in dataflow.operators))
    return dataflow


def simulated(
    query: str, events_s: float, workers: Sequence[int], course: Course, costs: Costs
) -> Iterator[dict[str, Any]]:
    """A line for each protocol and number of workers; the paper's queries run as fast as on Spark."""
    dataflow = calibrated(FLOWS[query], events_s, course, costs)
    for count in workers:
        yield from compared(dataflow, FIVE, count, course, costs)


