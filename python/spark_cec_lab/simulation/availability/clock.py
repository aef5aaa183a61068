"""A clock that goes from one event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Signal:
    """Something for which others wait."""

    def __init__(self) -> None:
        self.waiting = list[Callable[[], None]]()

    def send(self) -> None:
        """Tells all that wait."""
        told, self.waiting = self.waiting, []
        for each in told:
            each()


class Clock:
    """Runs actions in the order of their times, in ms; those of one time in the order in which they were given."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, ms: float, action: Callable[[], None]) -> None:
        """Runs the action in so many ms."""
        heapq.heappush(self._due, (self.now + ms, next(self._numbers), action))

    def wait(self, ms: float, action: Callable[[], None], *signals: Signal) -> None:
        """Runs the action once, in so many ms after the first of the signals."""
        is_due = [False]

        def note() -> None:
            if not is_due[0]:
                is_due[0] = True
                self.after(ms, action)

        for each in signals:
            each.waiting.append(note)

    def run_until(self, is_over: Callable[[], bool], latest_ms: float) -> None:
        """Runs actions until `is_over`, which is asked after each one, or until `latest_ms`."""
        while self._due and self._due[0][0] <= latest_ms and not is_over():
            self.now, _, action = heapq.heappop(self._due)
            action()
