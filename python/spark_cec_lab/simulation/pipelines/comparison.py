"""Strategies side by side on the same failures, with the spread over seeds, and the planner against the optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from spark_cec.recovery.progressive import Failure, Plan
from spark_cec_lab.simulation.pipelines.optimum import NoOptimum, optimal
from spark_cec_lab.simulation.pipelines.simulate import Arrivals, Case, Cluster, Outcome, Strategy, fail, recover
from spark_cec_lab.simulation.pipelines.topologies import Topology, random_topology

SHARES = (0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One failure of one topology, and what each strategy made of it."""

    seed: int
    topology: Topology
    case: Case
    outcomes: Mapping[Strategy, Outcome]

    @property
    def priorities(self) -> dict[str, float]:
        """prt_i of each failed query."""
        return {query.name: query.priority for query in self.case.failure.queries}


def play(
    operators: int, cluster: Cluster, arrivals: Arrivals, strategies: Sequence[Strategy], seeds: Sequence[int]
) -> list[Round]:
    """One round for each seed: its own topology, placement and arrivals, the same for all strategies."""
    rounds = []
    for seed in seeds:
        topology = random_topology(operators, cluster.nodes * cluster.cores * cluster.load, seed)
        case = fail(topology, cluster, arrivals, seed)
        outcomes = {strategy: recover(case, cluster, strategy) for strategy in strategies}
        rounds.append(Round(seed, topology, case, outcomes))
    return rounds


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest, highest."""
    return median(values), min(values), max(values)


def summary(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """For each strategy, in seconds: until a share of the failed queries is back, and the mean without a query."""
    lines = []
    for strategy in rounds[0].outcomes:
        line: dict[str, Any] = {"strategy": strategy.value}
        for share in SHARES:
            times = [each.outcomes[strategy].until(share) for each in rounds]
            line[f"until_{share:.0%}_s"] = [_finite(value) for value in spread(times)]
        means = [each.outcomes[strategy].mean_s(each.priorities) for each in rounds]
        line["mean_without_s"] = [_finite(value) for value in spread(means)]
        took = [ms * 1000 for each in rounds for ms in each.outcomes[strategy].planner_s]
        line["planner_ms"] = [round(value, 3) for value in spread(took)] if took else None
        lines.append(line)
    return lines


def _finite(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def distance(rounds: Sequence[Round], within_s: float, say: Callable[[int, int], None]) -> dict[str, Any]:
    """The progressive planner's decisions against the best there are: worth of the one by worth of the other.

    Decisions where nothing could be started are left out, and those that the solver has not ended within `within_s`.
    """
    decisions = [each for one in rounds for each in _decisions(one)]
    ratios, unsolved = [], 0
    for number, (failure, free, plan) in enumerate(decisions):
        say(number, len(decisions))
        try:
            best = worth(failure, optimal(failure, free, within_s))
        except NoOptimum:
            unsolved += 1
            continue
        if best > 0:
            ratios.append(worth(failure, plan) / best)
    return {
        "decisions": len(ratios),
        "ratio": [round(value, 4) for value in spread(ratios)] if ratios else None,
        "optimal": sum(ratio > 1 - 1e-9 for ratio in ratios),
        "unsolved": unsolved,
    }


def worth(failure: Failure, plan: Plan) -> float:
    """The sum of the priorities of the queries that a plan brings back, and that were not back before."""
    chosen = set(plan.queries)
    return math.fsum(q.priority for q in failure.queries if q.name in chosen and failure.waiting(q))


def _decisions(one: Round) -> list[tuple[Failure, float, Plan]]:
    made = one.outcomes[Strategy.PROGRESSIVE].decided if Strategy.PROGRESSIVE in one.outcomes else ()
    base = one.case.failure
    return [(Failure(base.costs, base.queries, running), free, plan) for free, running, plan in made]
