"""Something that works in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Worker(ABC):
    """Calls `run` once, in a daemon thread of its own.

    It has a thread and is none: a subclass of `threading.Thread` may replace a method that `Thread` keeps for itself.
    """

    def __init__(self, name: str) -> None:
        """`name`: of the thread."""
        self.__thread = threading.Thread(target=self.run, name=name, daemon=True)

    @property
    def name(self) -> str:
        """The name of the thread."""
        return self.__thread.name

    @abstractmethod
    def run(self) -> None:
        """Does the work."""

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if it was started before, or if the process can have no more."""
        self.__thread.start()

    def is_alive(self) -> bool:
        """Whether the thread was started, and has not ended."""
        return self.__thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the end of the thread, or for so long."""
        self.__thread.join(timeout_s)
