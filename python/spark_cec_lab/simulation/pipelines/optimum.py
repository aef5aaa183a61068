"""The best recovery plan there is, for small cases: the set-union knapsack as a mixed-integer program."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from spark_cec.recovery.progressive import Failure, Plan


class NoOptimum(Exception):
    """The solver has not ended within its time."""


def optimal(failure: Failure, free: float, within_s: float = 10.0) -> Plan:
    """A plan whose queries have the largest sum of priorities that fits into `free`.

    Maximises sum prt_i x_i where x_i <= y_k for each waiting flow k of query i, and sum C_k y_k <= R; x, y are 0 or 1.
    Raises `NoOptimum` after `within_s` seconds.
    """
    queries = list(failure.queries)
    flows = sorted(frozenset[str]().union(*(failure.waiting(query) for query in queries)))
    if not flows:
        return Plan((), tuple(query.name for query in queries), 0.0)
    place = {flow: len(queries) + number for number, flow in enumerate(flows)}
    pairs = [(number, place[flow]) for number, query in enumerate(queries) for flow in failure.waiting(query)]
    rows = np.repeat(np.arange(len(pairs)), 2)
    columns = np.array([column for pair in pairs for column in pair])
    shape = (len(pairs), len(queries) + len(flows))
    needs = coo_array((np.tile([1.0, -1.0], len(pairs)), (rows, columns)), shape=shape)
    costs = np.array([0.0] * len(queries) + [failure.costs[flow] for flow in flows])
    found = milp(
        np.array([-query.priority for query in queries] + [0.0] * len(flows)),
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(needs.tocsr(), ub=0.0), LinearConstraint(costs[np.newaxis, :], ub=free)],
        options={"time_limit": within_s},
    )
    if not found.success:
        raise NoOptimum(f"{len(queries)} queries, {len(flows)} flows: {found.message}")
    chosen = [query for number, query in enumerate(queries) if found.x[number] > 0.5]
    needed = sorted(frozenset[str]().union(*(failure.waiting(query) for query in chosen)))
    return Plan(tuple(needed), tuple(query.name for query in chosen), failure.cost(needed))
