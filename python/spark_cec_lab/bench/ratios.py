"""Medians and ratios over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over theirs: the median over the rounds, with the lowest and the highest round."""

    median: float
    low: float
    high: float


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Ratio | None:
    """The ratio of each round, ours over theirs, summed up; None if no round has both, or theirs is 0 in one.

    Arguments: a measured value by round.
    """
    rounds = sorted(ours.keys() & theirs.keys())
    if not rounds or any(theirs[number] == 0 for number in rounds):
        return None
    each = [ours[number] / theirs[number] for number in rounds]
    return Ratio(statistics.median(each), min(each), max(each))


def medians(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each name over the samples that have it."""
    names = {name for sample in samples for name in sample}
    return {name: statistics.median([s[name] for s in samples if name in s]) for name in sorted(names)}
