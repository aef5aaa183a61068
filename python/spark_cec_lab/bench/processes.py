"""A process in a session of its own: the JSON lines that it prints, the processor time that it takes, its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_GONE_WITHIN_S = 20.0
_LOOK_AGAIN_S = 0.01
_LINES_OF_AN_ERROR = 15
_LOOK_FOR_THE_END_S = 1.0
_HEARD_WITHIN_S = 10.0
"""What a process has said before its end is read by then."""


class BenchError(Exception):
    """The benchmark cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A living process of a session; `cpu_s` is the processor time that it has taken, user and system."""

    pid: int
    cpu_s: float


def members_of(session: int, proc: Path = Path("/proc")) -> list[Member]:
    """The living processes of a session, zombies left out; none where there is no `/proc`."""
    tick = float(os.sysconf("SC_CLK_TCK"))
    found = []
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = text[text.rindex(")") + 2 :].split()
        if fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(Member(int(entry.name), (int(fields[11]) + int(fields[12])) / tick))
    return found


class Child:
    """A running process with all that it started. As a context manager it leaves none of them behind.

    Lines of its standard output that are JSON objects are its events; other lines are passed over.
    """

    def __init__(self, command: Sequence[str], errors: Path, environment: Mapping[str, str]) -> None:
        """Start `command`; its standard error goes to the file `errors`."""
        self._errors = errors
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
                text=True,
            )
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def events(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """The events until the process ends well.

        Raises `BenchError` if it fails, with the end of its standard error, or is silent for `timeout_s`.
        """
        while True:
            event = self._next(timeout_s)
            if event is None:
                break
            yield event
        code = self._process.wait()
        if code != 0:
            raise BenchError(f"the query's process ended with exit code {code}: {self._last_errors()}")

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None if there will be none.

        Its output may not end with it: a JVM that hangs at its own end, as those with RocksDB in them do now and then,
        holds it open.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self._process.poll() is not None
            try:
                return self._events.get(timeout=_HEARD_WITHIN_S if has_ended else min(_LOOK_FOR_THE_END_S, timeout_s))
            except queue.Empty:
                if has_ended:
                    return None
                if time.monotonic() >= deadline:
                    word = f"no word from the query for {timeout_s:.0f} s: {self._last_errors()}"
                    raise BenchError(word) from None

    def tell(self, line: str) -> None:
        """Gives it a line on its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then it has ended, and its last words say why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def ask(self, line: str, timeout_s: float) -> dict[str, Any]:
        """Gives it a line on its standard input, and waits for its next event. Raises `BenchError` as `events` does."""
        self.tell(line)
        for event in self.events(timeout_s):
            return event
        raise BenchError(f"the process has ended without an answer: {self._last_errors()}")

    def cpu_s(self) -> float:
        """Processor time of all its living processes so far, in seconds; 0 where the system does not tell."""
        return sum(member.cpu_s for member in members_of(self._process.pid))

    def kill(self) -> None:
        """SIGKILL to all its processes at once; returns when none is left. Raises `BenchError` if some outlive it."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        self.signal_all()
        while members := members_of(self._process.pid):
            for member in members:
                self._kill_member(member.pid)
            if time.monotonic() > deadline:
                raise BenchError(f"processes {[member.pid for member in members]} survive SIGKILL: end them by hand")
            time.sleep(_LOOK_AGAIN_S)
        self._process.wait()

    def signal_all(self) -> None:
        """SIGKILL to all its processes, without waiting for their end: several may be killed at once so."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _kill_member(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            # Asked of the kernel again: a number that has passed to a stranger meanwhile must not be hit.
            if os.getsid(pid) == self._process.pid:
                os.kill(pid, signal.SIGKILL)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def _last_errors(self) -> str:
        with self._errors.open(errors="replace") as file:
            # Of a stack, which may be longer than all that is kept, the message matters.
            said = (line for line in file if line.strip() and not line.startswith("\tat "))
            lines = deque(said, maxlen=_LINES_OF_AN_ERROR)
        return "".join(["its last words:\n", *lines]).rstrip() if lines else "it said nothing"
