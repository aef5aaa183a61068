"""A bound on what the calls of an agent hold in memory at one time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


WAIT_S = 60.0
"""The longest wait for a turn: the shim takes an agent that answers no more for dead."""


class Turns:
    """Lets callers in while all of them together take at most `most`.

    A caller that is alone may take more. So may one that has waited for `wait_s`.
    """

    def __init__(self, most: int, wait_s: float = WAIT_S) -> None:
        self._most = most
        self._wait_s = wait_s
        self._taken = self._inside = 0
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, amount: int) -> Iterator[None]:
        """Waits for its turn, and gives back what it takes at the end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside or self._taken + amount <= self._most, self._wait_s)
            self._taken += amount
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= amount
                self._inside -= 1
                self._changed.notify_all()


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
