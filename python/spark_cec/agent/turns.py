"""A bound on what the calls of an agent hold in memory at one time."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Turns:
    """Lets callers in, in their order, while all of them together take at most `most`. One alone may take more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = self._inside = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, amount: int, wait_s: float) -> Iterator[None]:
        """Waits for its turn, at most for `wait_s`, and gives back what it takes at the end.

        The shim takes an agent that answers no more for dead. So it is better to take too much than to wait for longer.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._may_enter(ticket, amount), wait_s)
            self._waiting.remove(ticket)
            self._taken += amount
            self._inside += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= amount
                self._inside -= 1
                self._changed.notify_all()

    def _may_enter(self, ticket: object, amount: int) -> bool:
        fits = not self._inside or self._taken + amount <= self._most
        return fits and self._waiting[0] is ticket


def machine_memory() -> int:
    """Bytes of memory that this machine has, or this container may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMIT_FILES:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max": no limit
            found.append(int(text))
    return min(found)
