"""The sink: it reads the last flow and its epochs, and keeps when each window was there first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spark_cec_lab.simulation.availability.channel import Rows
from spark_cec_lab.simulation.availability.clock import Clock
from spark_cec_lab.simulation.availability.keeper import Epoch, Keeper
from spark_cec_lab.simulation.availability.setup import Setup


class Board:
    """Runs a batch whenever there is something new. An epoch counts as `TentativeOffset` says.

    `first_ms`: when a window's first row came, by its begin. `stable`: how often each window came, with how many rows
    of the inputs.
    """

    def __init__(self, clock: Clock, setup: Setup, keeper: Keeper) -> None:
        self.first_ms = dict[int, float]()
        self.stable = dict[int, Counter[int]]()
        self.first_tentative_ms: float | None = None
        self.tentative = 0
        self._clock = clock
        self._setup = setup
        self._keeper = keeper
        self._read = -1
        self._epoch: tuple[Epoch, int] | None = None

    def start(self, in_ms: float) -> None:
        """Looks for the first time then."""
        self._clock.after(in_ms, self._trigger)

    def _trigger(self) -> None:
        newest, batches = self._keeper.flow.out.newest, self._keeper.flow.out.batches
        place = self._find_epoch(newest)
        stable = [each for batch in batches[self._read + 1 : newest + 1] for each in batch]
        tentative = list[Rows]()
        if place is not None:
            epoch, last = place
            known = self._epoch[1] if self._epoch is not None and self._epoch[0] is epoch else epoch.begins_after
            tentative = [each for batch in epoch.query.out.batches[known + 1 : last + 1] for each in batch]
        is_new = newest != self._read or place != self._epoch
        self._read, self._epoch = newest, place
        if not is_new:
            keeper, open_ = self._keeper, self._keeper.open
            grows = () if open_ is None else (open_.query.out.grows,)
            signals = keeper.flow.out.grows, keeper.changes, *grows
            self._clock.wait(self._setup.costs.poll_ms / 2, self._trigger, *signals)
            return
        self._clock.after(self._setup.costs.sink_ms * self._setup.costs.share, lambda: self._take(stable, tentative))
        self._clock.after(self._setup.costs.sink_ms, self._trigger)

    def _find_epoch(self, newest: int) -> tuple[Epoch, int] | None:
        """The epoch whose rows count, and its newest batch, if the flow is read up to `newest`."""
        known = self._epoch
        if not self._keeper.epochs:
            return None
        last = self._keeper.epochs[-1]
        if last.closed_after is not None:
            return known if known is not None and newest < last.closed_after else None
        is_known = known is not None and known[0] is last
        if is_known or (newest >= last.begins_after and (known is None or last.has_rows or last.has_passed)):
            return last, last.query.out.newest
        return known

    def _take(self, stable: Iterable[Rows], tentative: Iterable[Rows]) -> None:
        now = self._clock.now
        for each in stable:
            self.first_ms.setdefault(each.time_ms, now)
            self.stable.setdefault(each.time_ms, Counter())[each.of] += 1
        for each in tentative:
            self.first_ms.setdefault(each.time_ms, now)
            self.tentative += each.rows
            self.first_tentative_ms = now if self.first_tentative_ms is None else self.first_tentative_ms
