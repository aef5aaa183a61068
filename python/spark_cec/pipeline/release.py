"""Of the flows that a cluster has room for again, which are let go: few queries at a time.

A dozen that start together, and then catch up together, take the processors from those that run, and are back
together, last of all; one after the other, the first is back soon, and those that run do not notice. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.recovery.progressive import Query

ABREAST = 2
"""Queries that come back at a time: while one of them loads its state, another one has the cores."""

AT_MOST_S = 60.0
"""So long a query may take to come back before the next one is let go beside it, as where its input never ends."""


def keeps_up(flow: FlowStatus) -> bool:
    """Whether a flow runs and leaves nothing for later, or is over: what can be waited for has come."""
    return flow.state.is_over or (flow.state is State.RUNNING and flow.behind == 0)


@dataclass(frozen=True, slots=True)
class _Coming:
    """Flows that were let go together, and when."""

    flows: frozenset[str]
    at_s: float


class Release:
    """Lets flows go that had to wait. `let_go` are those that run; all, until some are held back."""

    def __init__(self, flows: Collection[str], abreast: int) -> None:
        self.let_go = frozenset(flows)
        self._abreast = abreast
        self._coming: list[_Coming] = []

    def hold_all_but(self, flows: frozenset[str]) -> None:
        """Nothing else runs from here on."""
        self.let_go &= flows
        self._coming = [each for each in self._coming if each.flows <= flows]

    def next(self, at_s: float, waiting: Sequence[Query], up: Collection[str]) -> bool:
        """Lets go of the first of `waiting` if few enough are coming; whether it did. `up`: flows that keep up."""
        up = frozenset(up)
        self._coming = [each for each in self._coming if not each.flows <= up and at_s - each.at_s < AT_MOST_S]
        if not waiting or len(self._coming) >= self._abreast:
            return False
        self._coming.append(_Coming(waiting[0].flows - self.let_go, at_s))
        self.let_go |= waiting[0].flows
        return True
