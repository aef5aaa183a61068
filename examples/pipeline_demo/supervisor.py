"""Runs the example: feeds purchases, kills an executor, then the driver, starts it again, and compares every row."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline_demo.expected import comparison
from purchases_demo.layout import Layout
from purchases_demo.reference import load_events
from purchases_demo.report import last_line
from testbed.processes import Child

_EXECUTOR = "CoarseGrainedExecutorBackend"
_SCRIPTS = Path(__file__).resolve().parents[1]
_LIFE_S = 900.0
"""A machine with other work needs minutes for a start."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of: `files` of `lines` purchases, one every `interval_s` seconds."""

    seed: int
    files: int
    lines: int = 300
    items: int = 500
    interval_s: float = 0.7


class Supervisor:
    """One run of the example."""

    def __init__(self, settings: Settings, layout: Layout, console: Console) -> None:
        self._settings = settings
        self._layout = layout
        self._console = console
        self._shown = ""

    def run(self) -> bool:
        """Run everything and print the verdict; whether it was right."""
        try:
            return self._run_all()
        except TimeoutError as error:
            reasons = [f"{error}; {_LIFE_S:.0f} s are over: is the machine very busy?"]
        except (RuntimeError, OSError) as error:
            reasons = [str(error)]
        self._console.print(last_line(2, None, reasons), soft_wrap=True)
        return False

    def _run_all(self) -> bool:
        files = self._settings.files
        with self._child("purchases.py", "feed", *self._feed_options()):
            with self._driver() as driver:
                self._until(driver, files // 3)
                self._lose_executor(driver)
                self._until(driver, 2 * files // 3)
                killed = driver.kill()
                self._console.print(f"the driver is killed, {killed} processes with it; the same program again")
            with self._driver() as driver:
                self._until(driver, None)
                code = driver.exit_code(_LIFE_S)
        reasons = [f"the driver ended with exit code {code}; see {driver.log}"] if code else []
        found = comparison(load_events(self._layout), self._layout.root / "out") if not code else None
        if found is not None and not (found.exact and found.rows):
            reasons.append("the output is not that of an undisturbed run")
        self._console.print(last_line(2, found, reasons), soft_wrap=True)
        return not reasons

    def _until(self, driver: Child, batches: int | None) -> None:
        """Shows what the flows do, until the first has run so many batches; None: until the driver ends."""
        deadline = time.monotonic() + _LIFE_S
        while (event := driver.next_event(deadline - time.monotonic())) is not None:
            flows: list[dict[str, Any]] = event[1]["flows"]  # type: ignore[assignment]
            self._show(flows)
            if batches is not None and any(f["name"] == "purchases" and (f["batch"] or 0) >= batches for f in flows):
                return
        if batches is not None:
            raise RuntimeError(f"the driver has ended before its time; see {driver.log}")

    def _show(self, flows: list[dict[str, Any]]) -> None:
        """A line when a flow is in another state than before."""
        states = ", ".join(f"{flow['name']} {flow['state']}" for flow in flows)
        if states != self._shown:
            self._shown = states
            self._console.print(states, soft_wrap=True)

    def _lose_executor(self, driver: Child) -> None:
        lost = next(pid for pid in driver.members() if _EXECUTOR in _command(pid))
        os.kill(lost, signal.SIGKILL)
        self._console.print(f"an executor is killed (process {lost})")

    def _driver(self) -> Any:
        return self._child("pipeline_purchases.py", "drive", "--output", str(self._layout.root))

    def _feed_options(self) -> list[str]:
        s = self._settings
        sizes = {"--seed": s.seed, "--batches": s.files, "--items": s.items, "--lines": s.lines}
        options = {**sizes, "--interval": s.interval_s, "--output": self._layout.root}
        return [str(each) for pair in options.items() for each in pair]

    @contextmanager
    def _child(self, script: str, command: str, *options: str) -> Iterator[Child]:
        """A process of this example, killed with all its descendants at the end whatever happens."""
        environment: Mapping[str, str] = {"TMPDIR": str(self._layout.scratch)}
        arguments = [sys.executable, str(_SCRIPTS / script), command, *options]
        child = Child(arguments, self._layout.log(command), environment)
        try:
            yield child
        finally:
            child.kill()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
