"""Starting a process with all its descendants, hearing from it, and killing the whole of it with SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_GONE_WITHIN_S = 20.0
_LOOK_AGAIN_S = 0.01
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    session: int
    started: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process as `sys.exit` would, so that it leaves no child behind; a second one is ignored."""

    def exit_once(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, exit_once)


def die_with_parent() -> None:
    """On Linux, in a new process before it runs its program: the process ends with the one that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ProcessTree:
    """A session leader and every process that descends from it, also those that changed group or session.

    Members are known by pid and start time, so a pid that the system has given to somebody else is never killed.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._known: set[tuple[int, int]] = set()

    def members(self) -> list[int]:
        """The pids of the living members, the leader first if it lives. Zombies do not count."""
        table = _process_table()
        alive = {process.pid for process in table if process.identity in self._known or process.pid == self._leader}
        while True:
            more = {p.pid for p in table if p.session == self._leader or p.parent in alive} - alive
            if not more:
                break
            alive |= more
        self._known |= {process.identity for process in table if process.pid in alive}
        return sorted(alive, key=lambda pid: (pid != self._leader, pid))

    def kill(self) -> int:
        """Kill every member with SIGKILL and wait until none is left; return how many there were.

        Raises `TimeoutError`, naming the pids, if some outlive it.
        """
        killed: set[int] = set()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while members := self.members():
            for pid in members:
                killed.add(pid)
                _kill(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {members} survive SIGKILL")
            time.sleep(_LOOK_AGAIN_S)
        return len(killed)


class Child:
    """A process in a session of its own, with the JSON lines it prints as a queue of events."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start `command`; its standard error is appended to `log`."""
        self.log = log
        self._name = " ".join(command[1:3])
        self.started = time.monotonic()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
                text=True,
            )
        self._tree = ProcessTree(self._process.pid)
        self._events: queue.SimpleQueue[tuple[float, dict[str, object]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next_event(self, timeout_s: float) -> tuple[float, dict[str, object]] | None:
        """The next event with the monotonic time at which it came; None once the process has closed its output.

        Raises `TimeoutError` if neither happens in time.
        """
        try:
            return self._events.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise TimeoutError(f"no word from {self._name} for {timeout_s:.0f} s") from None

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the process to end. Raises `TimeoutError` if it does not in time."""
        try:
            return self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._name} has not ended in time; see {self.log}") from None

    def ends_within(self, seconds: float) -> bool:
        """Wait so many seconds, or less if the process ends first: whether it did."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def members(self) -> list[int]:
        """The pids of the process and of all that descend from it."""
        return self._tree.members()

    def kill(self) -> int:
        """Kill the process with all its descendants; return how many processes that were."""
        killed = self._tree.kill()
        self._process.wait()
        return killed

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self._events.put((time.monotonic(), event))
        self._events.put(None)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _process_table() -> list[_Process]:
    found = (_read(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def _read(entry: Path) -> _Process | None:
    try:
        text = (entry / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return _Process(int(entry.name), parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))
