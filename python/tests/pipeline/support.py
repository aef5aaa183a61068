"""Queries and Java exceptions as a supervisor sees them, scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_cec.pipeline.query_progress import Wait
from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Supervisor

WAIT_S = 30.0


class Java:
    """A Java exception, as py4j shows it."""

    def __init__(
        self, name: str, cause: Java | None = None, kind: str = "", package: str = "", message: str | None = None,
        above: Java | None = None,
    ) -> None:  # fmt: skip
        """`above`: the class above its own. `kind`, for the shim's own: the agent's class, or one above that."""
        self._name, self._cause, self._kind, self._package = name, cause, kind, package
        self._message, self._above = message, above

    def getClass(self) -> Java:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self._name

    def getName(self) -> str:  # noqa: N802
        return self._package + self._name

    def getCause(self) -> Java | None:  # noqa: N802
        return self._cause

    def getSuperclass(self) -> Java | None:  # noqa: N802
        return self._above

    def getMessage(self) -> str | None:  # noqa: N802
        return self._message

    def kind(self) -> str:
        return self._kind

    def isA(self, name: str) -> bool:  # noqa: N802
        return name == self._kind


class Query:
    """A query that ends as it is told."""

    def __init__(self, error: Exception | None = None, java: Java | None = None, lasts: bool = False) -> None:
        self._error, self._java = error, java
        self._ended = threading.Event()
        if not lasts:
            self._ended.set()
        self._jsq = self
        self.id = "0b1c"
        self.batch: int | None = None
        self.read: list[Source] = []
        self.watermark: str | None = None

    def awaitTermination(self) -> None:  # noqa: N802
        assert self._ended.wait(WAIT_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._ended.set()

    def lastProgress(self) -> Any:  # noqa: N802
        return None if self.batch is None else self

    def sources(self) -> list[Source]:
        return self.read

    def eventTime(self) -> dict[str, str | None]:  # noqa: N802
        return {"watermark": self.watermark}

    def batchId(self) -> int | None:  # noqa: N802
        return self.batch

    def exception(self) -> Query:
        return self

    def isDefined(self) -> bool:  # noqa: N802
        return self._java is not None

    def get(self) -> Java | None:
        return self._java


class Source:
    """One of a query's sources, as its progress shows it."""

    def __init__(self, end: str | None, latest: str | None, rows: int = 0) -> None:
        self._end, self._latest, self._rows = end, latest, rows

    def endOffset(self) -> str | None:  # noqa: N802
        return self._end

    def latestOffset(self) -> str | None:  # noqa: N802
        return self._latest

    def numInputRows(self) -> int:  # noqa: N802
        return self._rows


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def becomes(supervisor: Supervisor, state: State) -> None:
    """Waits for it."""
    deadline = time.monotonic() + WAIT_S
    while supervisor.status().state is not state:
        assert time.monotonic() < deadline, supervisor.status()
        time.sleep(0.001)


@dataclass
class EpochQuery:
    """A query as the keeper of epochs sees it: what it has reached, and for what it waits.

    `left_out`: the channels for which it was said not to wait, each time.
    """

    until_ms: int | None = None
    wait: Wait = field(default_factory=Wait)
    isActive: bool = True  # noqa: N815
    error: str | None = None
    fails_to_stop: bool = False
    left_out: list[set[str]] = field(default_factory=list)
    batch_ms: float | None = None
    left: int = 0

    def stop(self) -> None:
        if self.fails_to_stop:
            raise TimeoutError("the query did not end")
        self.isActive = False

    def exception(self) -> str | None:
        return self.error
