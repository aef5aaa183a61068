"""The supervisor: feeds, runs the driver, kills it, restarts it, and compares what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from rich.console import Console

from purchases_demo.crashes import CrashPoint, crash_points, load_recovery, recovery_files
from purchases_demo.layout import QUERIES, Layout
from purchases_demo.parts import part
from purchases_demo.reference import Comparison, compare, expected, load_events
from purchases_demo.report import CrashRow, complaints, last_line, recovery_table
from purchases_demo.view import ProgressView
from testbed.processes import Child
from testbed.spark_logs import committed_batch

_STAY_EVERY_S = 3.0
"""The time between two files, once the demo is over."""


class DemoError(Exception):
    """The demo cannot go on; the message says why and where to look."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one demo does. `interval_s` is the feeder's pace, `silence_s` how long a part may say nothing."""

    seed: int
    crashes: int
    batches: int
    items: int
    lines: int
    interval_s: float
    silence_s: float


@dataclass(slots=True)
class _Run:
    """One life of the driver, and what has been heard from it, by query."""

    driver: Child
    committed: dict[str, int]
    reports: dict[str, set[Path]]
    files: dict[str, int] = field(default_factory=dict)
    batch_s: dict[str, float] = field(default_factory=dict)
    first_new_s: dict[str, float] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _last_at: dict[str, float] = field(default_factory=dict)

    def note(self, at: float, event: dict[str, object]) -> None:
        """Take in one event of the driver."""
        query = str(event["query"])
        if event.get("done"):
            self.done.add(query)
            return
        self.files[query] = max(self.files.get(query, 0), int(str(event["files"])))
        self.batch_s[query] = at - self._last_at.get(query, at)
        self._last_at[query] = at
        if int(str(event["batch"])) > self.committed[query]:
            self.first_new_s.setdefault(query, at - self.driver.started)

    def due(self, point: CrashPoint) -> bool:
        """Whether to crash at `point` now: not before every query has recovered from the crash before."""
        recovered = all(spec.name in self.first_new_s or spec.name in self.done for spec in QUERIES)
        reached = self.files.get(point.query, 0) >= point.files or point.query in self.done
        return recovered and reached


class Supervisor:
    """Runs the whole demo in `layout`."""

    def __init__(self, settings: Settings, layout: Layout, console: Console) -> None:
        self._settings = settings
        self._layout = layout
        self._console = console
        self._crash_rows: list[CrashRow] = []
        self._crashes = 0

    def run(self) -> bool:
        """Run the demo, print the table and the last line; whether the output was right."""
        begin = time.monotonic()
        comparison: Comparison | None = None
        try:
            self._run_all()
            comparison = self._compare()
            reasons = complaints(self._crash_rows, comparison)
        except (DemoError, OSError) as error:  # a part that says nothing is a TimeoutError, which is an OSError
            reasons = [str(error)]
        self._console.print(recovery_table(self._crash_rows))
        self._console.print(f"{time.monotonic() - begin:.0f} s in all")
        self._console.print(last_line(self._crashes, comparison, reasons), soft_wrap=True, markup=False)
        return not reasons

    def keep_open(self) -> None:
        """Run the queries on over new purchases, with Spark's user interface, until the user ends it by Ctrl-C."""
        settings = self._settings
        stream = ("--seed", settings.seed, "--items", settings.items, "--lines", settings.lines)
        pace = ("--first", settings.batches, "--interval", _STAY_EVERY_S)
        with suppress(KeyboardInterrupt), part(self._layout, "stay", "stay", *stream, *pace) as driver:
            while (heard := driver.next_event(settings.silence_s)) is not None:
                if (url := heard[1].get("url")) is not None:
                    where = f"both queries go on, with new purchases: {url} (Ctrl-C ends it)"
                    self._console.print(where, soft_wrap=True, markup=False)
            self._console.print(f"the queries have ended by themselves: see {driver.log}", soft_wrap=True)

    def _run_all(self) -> None:
        settings = self._settings
        points = crash_points(settings.seed, settings.crashes, settings.batches)
        feed = ("--seed", settings.seed, "--batches", settings.batches, "--items", settings.items)
        pace = ("--lines", settings.lines, "--interval", settings.interval_s)
        with (
            part(self._layout, "feed", "feed", *feed, *pace) as feeder,
            ProgressView(self._console, settings.batches) as view,
        ):
            for number, point in enumerate([*points, None]):
                # Read before the driver starts: a recovery cuts the commit log back for a while.
                committed, reports = self._committed(), self._reports()
                with part(self._layout, "query", f"query-{number}") as driver:
                    run = _Run(driver, committed, reports)
                    for _ in self._follow(run, point):
                        view.update(run.files)
                    if point is not None:
                        self._crash(run, point)
                if number:
                    self._note_recoveries(number, run)
            if feeder.exit_code(self._settings.silence_s) != 0:
                raise DemoError(f"the feeder failed: see {feeder.log}")

    def _follow(self, run: _Run, point: CrashPoint | None) -> Iterator[None]:
        """Take in the driver's events until it is time to crash it, or, with no point left, until it has ended."""
        while point is None or not (run.due(point) and self._has_reported(run)):
            try:
                heard = run.driver.next_event(self._settings.silence_s)
            except TimeoutError as error:
                raise DemoError(
                    f"the driver has said nothing for {self._settings.silence_s:.0f} s, so the demo gave up: is the "
                    f"machine very busy? See {run.driver.log}"
                ) from error
            if heard is None:
                break
            run.note(*heard)
            yield
        else:
            return
        code = run.driver.exit_code(self._settings.silence_s)
        if code != 0 or point is not None:
            raise DemoError(f"the driver ended by itself with exit code {code}: see {run.driver.log}")

    def _has_reported(self, run: _Run) -> bool:
        """Whether every recovery that this life began with has left its report, a moment after its batch."""
        names = [spec.name for spec in QUERIES if run.committed[spec.name] >= 0]
        return not self._crashes or all(self._reports()[name] - run.reports[name] for name in names)

    def _crash(self, run: _Run, point: CrashPoint) -> None:
        if run.driver.ends_within(point.fraction * run.batch_s.get(point.query, 0.0)):
            raise DemoError(f"the driver ended before it could be killed: see {run.driver.log}")
        processes = run.driver.kill()
        self._crashes += 1
        consumed = ", ".join(f"{query} {files}" for query, files in sorted(run.files.items()))
        self._console.print(f"crash {self._crashes}: SIGKILL to {processes} processes, after files: {consumed}")

    def _note_recoveries(self, crash: int, run: _Run) -> None:
        for spec in QUERIES:
            new = recovery_files(self._layout.checkpoint(spec.name)) - run.reports[spec.name]
            if len(new) != 1:
                raise DemoError(f"crash {crash}: {spec.name} wrote {len(new)} recovery reports, 1 expected")
            path = new.pop()
            try:
                recovery = load_recovery(path, spec)
            except (KeyError, TypeError, ValueError) as error:
                raise DemoError(f"crash {crash}: {path} is not a recovery report: {error!r}") from error
            committed = run.committed[spec.name]
            if recovery.committed_batch != committed:
                raise DemoError(
                    f"crash {crash}: {spec.name} recovered to batch {recovery.committed_batch}, "
                    f"Spark had committed {committed}"
                )
            self._crash_rows.append(CrashRow(crash, recovery, run.first_new_s.get(spec.name)))

    def _compare(self) -> Comparison:
        with part(self._layout, "read", "read") as reader:
            if (code := reader.exit_code(self._settings.silence_s)) != 0:
                raise DemoError(f"reading back ended with exit code {code}: see {reader.log}")
        wanted = expected(load_events(self._layout))
        total = Comparison()
        for spec in QUERIES:
            try:
                found = compare(wanted[spec.name], pd.read_parquet(self._layout.rows(spec.name)), spec.key)
            except KeyError as error:
                raise DemoError(f"the output of {spec.name} lacks a column: {error}") from error
            self._console.print(f"{spec.name}: {len(wanted[spec.name])} rows expected, {found.rows} found")
            total += found
        return total

    def _committed(self) -> dict[str, int]:
        return {spec.name: committed_batch(self._layout.checkpoint(spec.name)) for spec in QUERIES}

    def _reports(self) -> dict[str, set[Path]]:
        return {spec.name: recovery_files(self._layout.checkpoint(spec.name)) for spec in QUERIES}
