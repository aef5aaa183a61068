"""Releases flows for which a cluster has room again, few queries at a time. Pure.

If a dozen queries start and catch up together, they take the processors from the running ones, and all are back late.
One after the other, the first is back soon, and the running queries do not slow down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.recovery.progressive import Query

ABREAST = 2
"""The queries that come back at a time: while one loads its state, another uses the cores."""

AT_MOST_S = 60.0
"""The time after which the next query is released, even if this one still catches up. Its input may never end."""


def keeps_up(flow: FlowStatus) -> bool:
    """Whether a flow runs and leaves no input for later, or is over. No query needs to wait for it."""
    return flow.state.is_over or (flow.state is State.RUNNING and flow.behind == 0)


@dataclass(frozen=True, slots=True)
class _Coming:
    """Flows that were released together, and when."""

    flows: frozenset[str]
    at_s: float


class Release:
    """Releases flows that had to wait. `released`: the flows that may run; all, until some are held."""

    def __init__(self, flows: Collection[str], abreast: int) -> None:
        self.released = frozenset(flows)
        self._abreast = abreast
        self._coming: list[_Coming] = []

    def hold_all_but(self, flows: frozenset[str]) -> None:
        """Holds all other flows from here on."""
        self.released &= flows
        self._coming = [each for each in self._coming if each.flows <= flows]

    def next(self, at_s: float, waiting: Sequence[Query], up: Collection[str]) -> bool:
        """Releases the first of `waiting` if few are coming; answers whether it did. `up`: flows that keep up."""
        up = frozenset(up)
        self._coming = [each for each in self._coming if not each.flows <= up and at_s - each.at_s < AT_MOST_S]
        if not waiting or len(self._coming) >= self._abreast:
            return False
        self._coming.append(_Coming(waiting[0].flows - self.released, at_s))
        self.released |= waiting[0].flows
        return True
