"""The model's inputs from what was seen: a few failures in a stretch of time, and the commits of a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from scipy.special import gammaincinv

from spark_cec.tuning.inputs import ModelInputError

FEW_FAILURES = 5
"""Below this many failures a prior speaks too."""

PRIOR_MEDIAN_PER_S = 1.0 / (19 * 86400.0)
"""One failure in 19 days: the rate that, by the paper, the usual default intervals assume."""

_PRIOR_SCALE = log(10.0)
_PRIOR_FREEDOM = 3.0
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class FailureRate:
    """λ per second with its 95 % interval; `prior` says whether the prior had a part in it."""

    per_s: float
    low_per_s: float
    high_per_s: float
    failures: int
    observed_s: float
    prior: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """One store's commit of one version: when it was durable (seconds since the epoch) and how long it took.

    `whole`: it wrote every window that had changed, as an eager query's does.
    """

    version: int
    operator: int
    partition: int
    wall_unix_s: float
    seconds: float
    whole: bool = True


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """What a query's commits say: c, n, δ and the mean interval T between two versions (None: one version only)."""

    checkpoint_s: float
    operators: int
    delay_s: float
    interval_s: float | None


def failure_rate(failures: int, observed_s: float) -> FailureRate:
    """λ from `failures` in `observed_s` seconds.

    Five failures or more: failures per time, with the exact (Garwood) interval of a Poisson count. Fewer: median and
    credible interval of the posterior under a weak prior: Student's t with 3 degrees of freedom on ln λ, around one
    failure in 19 days, with a scale of a factor of 10. Its heavy tails let a few failures in an hour outvote it.
    Raises `ModelInputError` for negative input, or failures in no time at all.
    """
    if failures < 0:
        raise ModelInputError("failures", failures, "must not be negative")
    if observed_s < 0 or (failures > 0 and observed_s == 0):
        raise ModelInputError("observed_s", observed_s, "must be the time in which the failures were counted, above 0")
    tail = (1.0 - _CONFIDENCE) / 2.0
    if failures >= FEW_FAILURES:
        low, high = gammaincinv(failures, tail), gammaincinv(failures + 1, 1.0 - tail)
        return FailureRate(
            failures / observed_s, float(low) / observed_s, float(high) / observed_s, failures, observed_s, prior=False
        )
    middle, low, high = _posterior_quantiles(failures, observed_s, (0.5, tail, 1.0 - tail))
    return FailureRate(middle, low, high, failures, observed_s, prior=True)


def _posterior_quantiles(failures: int, observed_s: float, levels: Sequence[float]) -> list[float]:
    """Quantiles of λ, by its density on a grid of ln λ that is much finer than the density is narrow."""
    centre = log(PRIOR_MEDIAN_PER_S)
    likeliest = log((failures + 0.5) / observed_s) if observed_s else centre
    grid = np.arange(min(centre, likeliest) - 60.0, max(centre, likeliest) + 60.0, 0.005)
    distance = (grid - centre) / _PRIOR_SCALE
    prior = -0.5 * (_PRIOR_FREEDOM + 1.0) * np.log1p(distance * distance / _PRIOR_FREEDOM)
    with np.errstate(over="ignore"):
        density = failures * grid - np.exp(grid) * observed_s + prior
    mass = np.cumsum(np.exp(density - density.max()))
    return [exp(float(np.interp(level * mass[-1], mass, grid))) for level in levels]


def mean_seconds(name: str, seconds: Iterable[float]) -> float:
    """Mean of measured durations in seconds; the model's c and R are means. `name` names them in the error."""
    values = list(seconds)
    if not values:
        raise ModelInputError(name, "[]", "must hold at least one measured duration")
    if min(values) < 0:
        raise ModelInputError(name, min(values), "must not be negative")
    return sum(values) / len(values)


def commit_figures(commits: Iterable[Commit]) -> CommitFigures:
    """c, n, δ and T from the commits of one query, in any order. Raises `ModelInputError` if there are none.

    c: the partitions of an operator commit side by side, so the slowest one counts; mean over operators and versions.
    n: the operators seen. δ: from the last partition of the first operator to that of the last one, over n - 1; mean
    over the versions that all of them have. T: from one version to the next, mean; a gap of ten times the median is a
    stop, not an interval.
    """
    slowest: dict[tuple[int, int], float] = defaultdict(float)
    durable: dict[int, dict[int, float]] = defaultdict(dict)
    for commit in commits:
        place = (commit.version, commit.operator)
        slowest[place] = max(slowest[place], commit.seconds)
        per_operator = durable[commit.version]
        per_operator[commit.operator] = max(per_operator.get(commit.operator, commit.wall_unix_s), commit.wall_unix_s)
    cost = mean_seconds("commits", slowest.values())
    operators = len({operator for _, operator in slowest})
    return CommitFigures(cost, operators, _delay(durable, operators), _interval(durable))


def _delay(durable: dict[int, dict[int, float]], operators: int) -> float:
    spans = [max(walls.values()) - min(walls.values()) for walls in durable.values() if len(walls) == operators]
    return sum(spans) / len(spans) / (operators - 1) if operators > 1 and spans else 0.0


def _interval(durable: dict[int, dict[int, float]]) -> float | None:
    ends = {version: max(walls.values()) for version, walls in durable.items()}
    gaps = [end - ends[version - 1] for version, end in ends.items() if version - 1 in ends and end > ends[version - 1]]
    if not gaps:
        return None
    steady = [gap for gap in gaps if gap <= 10.0 * float(np.median(gaps))]
    return sum(steady) / len(steady)
