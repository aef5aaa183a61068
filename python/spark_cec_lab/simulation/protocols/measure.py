"""The paper's experiments on simulated workers: one line for each, with what CheckMate's section VII compares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from spark_cec.protocols.choose import Protocol
from spark_cec_lab.simulation.protocols.dataflow import Dataflow
from spark_cec_lab.simulation.protocols.engine import Simulation
from spark_cec_lab.simulation.protocols.outcome import Outcome
from spark_cec_lab.simulation.protocols.plan import Costs, Plan

NOT_BEHIND_S = 2.0
"""A rate is sustained if at the end less is left to be processed than comes in so many seconds."""


@dataclass(frozen=True, slots=True)
class Course:
    """Of the runs: `seconds` each, of which `warm_up_s` do not count; a failure after `fails_s`, as in the paper.

    `load` is the share of its own sustainable rate at which a protocol is looked at; `hot_loads` those under skew,
    which are looked at with `hot_workers`, as in the paper.
    """

    seconds: float = 60.0
    warm_up_s: float = 10.0
    fails_s: float = 18.0
    interval_s: float = 5.0
    load: float = 0.8
    hot_loads: tuple[float, ...] = (0.5, 0.8)
    hot_workers: int = 10
    seed: int = 0


def run(
    dataflow: Dataflow, protocol: Protocol, workers: int, rate: float, course: Course, costs: Costs, *,
    fails: bool = False, skew: float = 0.0,
) -> Outcome:  # fmt: skip
    """One run at a rate."""
    plan = Plan(workers, rate, course.seconds, course.interval_s, skew, course.fails_s if fails else None,
                seed=course.seed)  # fmt: skip
    return Simulation(dataflow, protocol, plan, costs).run()


def sustainable_rate(
    dataflow: Dataflow, protocol: Protocol, workers: int, course: Course, costs: Costs, near: float | None = None
) -> float:
    """The largest rate, in records a second, at which nothing falls behind; to one part in a few hundred.

    `near`: what it is likely to be; then fewer runs find it.
    """

    def holds(rate: float) -> bool:
        return run(dataflow, protocol, workers, rate, course, costs).behind < NOT_BEHIND_S * rate

    step, halvings = (1.2, 6) if near is None else (1.05, 4)
    low = high = near or workers / (1e-6 * _work_us(dataflow, costs))
    while holds(high):
        low, high = high, step * high
    while not holds(low):
        low, high = low / step, low
    for _ in range(halvings):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _work_us(dataflow: Dataflow, costs: Costs) -> float:
    """Microseconds that a record takes on its whole way, about: where a search begins."""
    times: dict[str, float] = {}
    for each in dataflow.operators:
        known = [times[read] * dataflow.by_name[read].out for read in each.inputs if read in times]
        times[each.name] = each.share if not each.inputs else sum(known)
    return sum(times[each.name] * (each.us + 2 * each.out * costs.record_bytes * costs.byte_us)
               for each in dataflow.operators)  # fmt: skip


def by_workers(
    dataflow: Dataflow, protocol: Protocol, workers: Sequence[int], course: Course, costs: Costs,
    hot: Sequence[float] = (),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A line for each number of workers, from few to many: what is sustained (`rate`), and at `course.load` of it the
    bytes of messages, the checkpoints, and what a failure costs. `hot`: shares of records that one worker gets alone;
    for each, and each of `course.hot_loads`, one more line where the workers are `course.hot_workers`.
    """
    of_one: float | None = None
    for count in sorted(workers):
        rate = sustainable_rate(dataflow, protocol, count, course, costs, None if of_one is None else count * of_one)
        of_one = rate / count
        yield _looked_at(dataflow, protocol, count, rate, course.load, course, costs, 0.0)
        skews = hot if count == course.hot_workers else ()
        for skew, load in product(skews, course.hot_loads):
            yield _looked_at(dataflow, protocol, count, rate, load, course, costs, skew)


def _looked_at(
    dataflow: Dataflow, protocol: Protocol, workers: int, rate: float, load: float, course: Course, costs: Costs,
    skew: float,
) -> dict[str, Any]:  # fmt: skip
    """A run without a failure, and one with it."""
    steady = run(dataflow, protocol, workers, load * rate, course, costs, skew=skew)
    failing = run(dataflow, protocol, workers, load * rate, course, costs, skew=skew, fails=True)
    recovery = failing.recovery
    assert recovery is not None
    before = steady.latency_s(0.5, course.warm_up_s)
    return {
        "kind": "simulated", "query": dataflow.name, "protocol": protocol.value, "workers": workers, "skew": skew,
        "load": load, "rate": round(rate, 1), "message_overhead": round(steady.overhead, 3),
        "checkpoint_ms": _ms(steady.checkpoint_s()), "checkpoints": len(steady.taken),
        "p50_ms": _ms(before), "p99_ms": _ms(steady.latency_s(0.99, course.warm_up_s)),
        "restart_ms": _ms(recovery.restart_s), "processes_back": recovery.back,
        "invalid": recovery.invalid, "recovery_s": recovery_s(failing, before, course),
    }  # fmt: skip


def recovery_s(failing: Outcome, before_s: float | None, course: Course, within: float = 1.2) -> float | None:
    """Seconds from the failure until the median latency stays below `within` times what it was; None: longer."""
    if before_s is None:
        return None
    ends = [course.fails_s + second for second in range(1, int(course.seconds - course.fails_s) + 1)]
    late = [end for end in ends if (now := failing.latency_s(0.5, end - 1, end)) is None or now > within * before_s]
    last = max(late, default=course.fails_s)
    return None if last >= ends[-1] else last - course.fails_s


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)
