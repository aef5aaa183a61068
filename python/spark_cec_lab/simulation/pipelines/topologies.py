"""Random topologies, as those on which progressive recovery is compared: shared prefixes, priorities, skewed costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_cec.recovery.progressive import Query

_TWO_INPUTS = 0.2
"""The share of operators that read two others."""

_SKEW = 1.0
"""Sigma of the logarithm of an operator's cost: the costliest of a hundred is some ten times the median."""

_PRIORITIES = np.arange(1, 11)


@dataclass(frozen=True, slots=True)
class Topology:
    """Operators, the others that each reads, C_k in cores, and the queries: outputs that no operator reads."""

    inputs: Mapping[str, tuple[str, ...]]
    costs: Mapping[str, float]
    queries: Sequence[Query]


def random_topology(operators: int, cores: float, seed: int) -> Topology:
    """A topology of so many operators that keeps `cores` busy.

    One operator in fifty is a source; each other one reads one or two of those before it, so that those which came
    first are shared by many queries. Priorities are 1 to 10, the small ones more often.
    """
    if operators < 2:
        raise ValueError(f"operators={operators}: a topology has at least a source and what reads it; give 2 or more")
    rng = np.random.default_rng(seed)
    sources = max(1, operators // 50)
    names = [f"o{number:0{len(str(operators - 1))}}" for number in range(operators)]
    inputs: dict[str, tuple[str, ...]] = dict.fromkeys(names[:sources], ())
    for number in range(sources, operators):
        wanted = 2 if number > 1 and rng.random() < _TWO_INPUTS else 1
        read = rng.choice(number, size=wanted, replace=False)
        inputs[names[number]] = tuple(names[each] for each in sorted(read))
    weights = rng.lognormal(0.0, _SKEW, operators)
    costs = dict(zip(names, (cores * weights / weights.sum()).tolist(), strict=True))
    read_by_others = {name for read in inputs.values() for name in read}
    upstream = _upstream(inputs)
    chance = 1.0 / _PRIORITIES
    outputs = [name for name in names if name not in read_by_others]
    priorities = rng.choice(_PRIORITIES, size=len(outputs), p=chance / chance.sum())
    queries = [Query(name, upstream[name], float(each)) for name, each in zip(outputs, priorities, strict=True)]
    return Topology(inputs, costs, queries)


def _upstream(inputs: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """For each operator, itself and all that it is fed by; `inputs` names each one after those that it reads."""
    found: dict[str, frozenset[str]] = {}
    for name, read in inputs.items():
        found[name] = frozenset((name,)).union(*(found[each] for each in read))
    return found
