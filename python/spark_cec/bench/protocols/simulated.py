"""The same dataflows on simulated workers, with the costs that the runs on Spark have shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from spark_cec.bench.protocols.spec import CYCLIC, Outcome
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.simulation.dataflow import Dataflow, dataflow_of
from spark_cec.protocols.simulation.measure import Course, compared, sustainable_rate
from spark_cec.protocols.simulation.plan import Costs

CORES = 2
"""Of the machine, and so of the workers with which a run on Spark is compared."""

COORDINATION_FREE = (Protocol.UNCOORDINATED, Protocol.CIC, Protocol.CEC)
FIVE = (Protocol.NONE, Protocol.COORDINATED, Protocol.UNCOORDINATED, Protocol.CIC, Protocol.CEC)


def line_through(batches: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Ms of a batch with no rows, and of a row, by least squares; of nothing else than rows where that is below 0."""
    rows = [each for each, _ in batches]
    if len(set(rows)) < 2:
        return statistics.fmean(ms for _, ms in batches), 0.0
    slope, intercept = statistics.linear_regression(rows, [ms for _, ms in batches])
    return max(intercept, 1.0), max(slope, 0.0)


def costs_of(outcomes: Sequence[Outcome]) -> Costs:
    """What a batch, a checkpoint and a restart cost, from runs of all protocols."""
    plain = [each for each in outcomes if each.spec.protocol == "none" and each.batches]
    fixed = [line_through(each.batches)[0] for each in plain]
    taken = [each.durable_s - each.begun_s for run in outcomes for each in run.taken]
    back = [each.recovery for each in outcomes if each.recovery is not None and each.spec.protocol != "cec"]
    costs = Costs(trigger_s=0.1, detect_s=0.1)
    if fixed:
        costs = replace(costs, batch_s=statistics.median(fixed) / 1000 / CORES)
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
    protocols = COORDINATION_FREE if query == CYCLIC else FIVE
    dataflow = calibrated(dataflow_of(query), events_s, course, costs)
    for count in workers:
        yield from compared(dataflow, protocols, count, course, costs)


