"""One run of one provider: a steady phase, or a recovery."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.files import Look, Written, look, of_the_state, written
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.processes import BenchError, Child
from spark_cec_lab.bench.ratios import medians

SILENCE_S = 600.0
"""A query that says nothing for so long hangs."""

Say = Callable[[str], None]
"""Takes a line about how far the run is."""


def after(name: str, say: Say) -> Say:
    """Says what it is told, and before it of which run that is."""
    return lambda text: say(name + text)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Batches to open all windows, then to settle, then to measure; or the minutes to measure, for the task `pace`."""

    fill: int
    warm_up: int
    timed: int
    minutes: float = 10.0

    @property
    def first_timed(self) -> int:
        """Id of the first batch that is measured."""
        return self.fill + self.warm_up

    @property
    def last(self) -> int:
        """Id of the last batch."""
        return self.first_timed + self.timed - 1

    def describe(self, batch: int, batch_ms: float) -> str:
        """How far a run is after `batch`."""
        if batch < self.fill:
            return f"fill {batch + 1}/{self.fill}"
        if batch < self.first_timed:
            return f"warm-up {batch - self.fill + 1}/{self.warm_up}"
        return f"batch {batch - self.first_timed + 1}/{self.timed}: {batch_ms:.0f} ms"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has shown: `values` can be compared between providers, `details` explain them."""

    values: Mapping[str, float]
    details: Mapping[str, Any]


class _Meter:
    """What the processes have taken and written, between two marks."""

    def __init__(self, child: Child, checkpoint: Path) -> None:
        self._child = child
        self._checkpoint = checkpoint
        self._files: Look = {}
        self._cpu_s = 0.0
        self._gc_ms = 0
        self._state = self._all = Written()

    def begin(self, event: Mapping[str, Any]) -> None:
        self._files, self._cpu_s, self._gc_ms = look(self._checkpoint), self._child.cpu_s(), int(event["gc_ms"])

    def batch_ended(self) -> None:
        """Looks at the files: more often than they are removed, so that none is missed."""
        now = look(self._checkpoint)
        self._all += written(self._files, now)
        self._state += written(of_the_state(self._files), of_the_state(now))
        self._files = now

    def per_batch(self, event: Mapping[str, Any], batches: int) -> dict[str, float]:
        """Means per batch up to the one that `event` tells of."""
        return {
            "cpu_ms": 1000.0 * (self._child.cpu_s() - self._cpu_s) / batches,
            "gc_ms": (int(event["gc_ms"]) - self._gc_ms) / batches,
            "bytes_per_batch": self._state.bytes / batches,
            "files_per_batch": self._state.files / batches,
            "checkpoint_bytes_per_batch": self._all.bytes / batches,
            "checkpoint_files_per_batch": self._all.files / batches,
        }


def steady(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    """Fill, settle, measure. Values: median `batch_ms`, time per input tuple `us_per_tuple` with all that lies
    between two batches, and means per batch of processor time, collections and writes.

    Raises `BenchError` if the query fails, or the windows were not all open when the measurement began.
    """
    timed: list[dict[str, Any]] = []
    with started(replace(spec, last_batch=schedule.last), home) as child:
        meter = _Meter(child, Path(spec.checkpoint))
        for event in child.events(SILENCE_S):
            batch = int(event["batch"])
            say(schedule.describe(batch, event["batch_ms"]))
            if batch < schedule.first_timed:
                meter.begin(event)
                began_s = float(event["since_start_s"])
            else:
                timed.append(event)
                meter.batch_ended()
            if batch == schedule.last:
                means = meter.per_batch(event, schedule.timed)
                took_s = float(event["since_start_s"]) - began_s
    check_state(spec, timed[0])
    each = [float(event["batch_ms"]) for event in timed]
    return Measured(
        {
            "batch_ms": statistics.median(each),
            "us_per_tuple": 1e6 * took_s / (schedule.timed * spec.workload.updates),
            **means,
            **windows_of(timed),
        },
        {
            "batch_ms_each": each,
            "input_rows": timed[-1]["input_rows"],
            "state_rows": timed[-1]["state_rows"],
            "metrics": medians([event["metrics"] for event in timed]),
        },
    )


def windows_of(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the windows that the batches have closed and left: for how many batches they were open, and the extent."""
    lifetimes = [float(event["lifetime_batches"]) for event in events if "lifetime_batches" in event]
    extents = [float(event["metrics"]["cecExtent"]) for event in events if "cecExtent" in event["metrics"]]
    return {
        **({"lifetime_batches": statistics.mean(lifetimes)} if lifetimes else {}),
        **({"extent": statistics.median(extents)} if extents else {}),
    }


def pace(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    """Ten minutes of batches, or the schedule's, after the fill and the warm-up: `pace_of` them."""
    batches: list[dict[str, float]] = []
    gc_ms = 0.0
    log = home / "gc.log"
    options = f'{spec.java_options} "-Xlog:gc:file={log}"'.strip()
    with started(replace(spec, last_batch=None, java_options=options), home) as child:
        for event in child.events(SILENCE_S):
            batch, gc_ms_before, gc_ms = int(event["batch"]), gc_ms, float(event["gc_ms"])
            if batch < schedule.first_timed:
                say(schedule.describe(batch, event["batch_ms"]))
                before = len(pauses_of(log))
                continue
            batches.append({"batch_ms": event["batch_ms"], "gc_ms": gc_ms - gc_ms_before, **event["metrics"]})
            took_ms = sum(each["batch_ms"] for each in batches)
            say(f"{took_ms / 60_000:.1f} of {schedule.minutes:g} minutes: {event['batch_ms']:.0f} ms")
            if took_ms >= schedule.minutes * 60_000:
                break
    check_state(spec, event)
    return pace_of(batches, pauses_of(log)[before:])


def pauses_of(log: Path) -> list[float]:
    """The pauses in a log of the garbage collector, in ms."""
    return [float(each) for each in re.findall(r" Pause .* (\d+\.\d+)ms$", log.read_text(), flags=re.MULTILINE)]


def pace_of(batches: Sequence[Mapping[str, float]], pauses_ms: Sequence[float]) -> Measured:
    """Of what batches took (`batch_ms` and more), and pauses for garbage collection.

    Values: median `batch_ms`, `p99_over_median`, and `longest_pause_ms`, if there was a pause.
    Details: the medians of a `usual` batch and of the `slowest` hundredth: where the two differ is why those are slow.
    """
    ascending = sorted(batches, key=lambda each: each["batch_ms"])
    usual, slowest = medians(ascending), ascending[len(ascending) * 99 // 100 :]
    p99_ms = slowest[0]["batch_ms"]
    return Measured(
        {
            "batch_ms": usual["batch_ms"],
            "p99_over_median": p99_ms / usual["batch_ms"],
            **({"longest_pause_ms": max(pauses_ms)} if pauses_ms else {}),
        },
        {
            "batches": len(ascending),
            "p99_ms": p99_ms,
            "usual": usual,
            "slowest": medians(slowest),
            "pauses": len(pauses_ms),
            "median_pause_ms": statistics.median(pauses_ms) if pauses_ms else None,
        },
    )


def recovery(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
    """Run to the end of the schedule, SIGKILL in the middle of the next batch, start again.

    Values: median `batch_before_ms`; `recovery_s`, from the call of `start()` to the end of the first batch
    that had not been committed; of ours `load_us_per_footprint`, what a core takes to load one record of the eventual
    checkpoint, Python and JVM together; `checked`, the records of kind G_check of the whole run; and what
    `at_the_crash` gives.
    """
    checked, each_ms = 0, []
    with started(replace(spec, last_batch=None), home) as child:
        for event in child.events(SILENCE_S):
            say(schedule.describe(int(event["batch"]), event["batch_ms"]))
            checked += int(event["metrics"].get("cecChecked", 0))
            each_ms += [float(event["batch_ms"])] if int(event["batch"]) >= schedule.first_timed else []
            if int(event["batch"]) >= schedule.last:
                check_state(spec, event)
                time.sleep(event["batch_ms"] / 2000.0)
                break
    committed = committed_batch(Path(spec.checkpoint))
    say("killed; starting again")
    with started(replace(spec, last_batch=committed + 1), home) as child:
        again = list(child.events(SILENCE_S))
    report = _newest_report(Path(spec.checkpoint))
    return Measured(
        {
            "batch_before_ms": statistics.median(each_ms),
            "recovery_s": float(again[-1]["since_start_s"]),
            **load_cost(Path(spec.checkpoint)),
            **({"checked": float(checked)} if report else {}),
            **at_the_crash(report),
        },
        {
            "committed_batch": committed,
            **({"duration_ms": report["duration_ms"]} if report else {}),
            "first_new_batch_ms": again[-1]["batch_ms"],
            "state_rows": again[-1]["state_rows"],
        },
    )


def at_the_crash(report: Mapping[str, Any]) -> dict[str, float]:
    """What a recovery's report says of it: extents and tuples to be replayed over all stores, the slowest load."""
    if not report:
        return {}
    stores = report["stores"]
    return {
        "replayed_batches": float(report["replayed_batches"]),
        "extent": float(sum(store["extent_records"] for store in stores)),
        "replay_tuples": float(sum(store["replay_inputs"] for store in stores)),
        "ec_load_ms": max((float(store["ec_load_ms"] or 0.0) for store in stores), default=0.0),
    }


def load_cost(checkpoint: Path) -> dict[str, float]:
    """`load_us_per_footprint` by our provider's report of the newest recovery; empty if there is none that tells.

    A footprint is one of an open window: what is gone over beside it in the extent counts as its cost.
    """
    stores = [store for store in _newest_report(checkpoint).get("stores", []) if store["ec_load_ms"]]
    loaded_ms, footprints = sum(s["ec_load_ms"] for s in stores), sum(s["open_windows"] for s in stores)
    return {"load_us_per_footprint": 1000.0 * loaded_ms / footprints} if footprints else {}


def _newest_report(checkpoint: Path) -> dict[str, Any]:
    reports = sorted((checkpoint / "cec" / "recoveries").glob("*.json"))
    report: dict[str, Any] = json.loads(reports[-1].read_text()) if reports else {}
    return report


def check_state(spec: JobSpec, event: Mapping[str, Any]) -> None:
    """Raises `BenchError` if the windows that the workload promises are not open at a batch's end.

    A provider that does not count its rows is believed.
    """
    expected = spec.workload.expected_rows() if spec.provider.counts_rows else None
    rows = event["state_rows"]
    if expected is not None and rows != expected:
        raise BenchError(f"batch {event['batch']}: the state has {rows} rows where the fill opened {expected}")


def committed_batch(checkpoint: Path) -> int:
    """The last batch that Spark has committed, from its commit log. Raises `BenchError` if there is none."""
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        raise BenchError(f"{checkpoint} has no committed batch")
    return max(batches)


@contextmanager
def started(spec: JobSpec, home: Path) -> Iterator[Child]:
    """The job as a process of its own, with all its temporary files in `spec.scratch`, which goes when it ends."""
    scratch = Path(spec.scratch)
    scratch.mkdir(parents=True)
    command = [sys.executable, "-m", "spark_cec_lab.bench.job", spec.to_json()]
    try:
        with Child(command, home / "stderr.log", {"TMPDIR": spec.scratch}) as child:
            yield child
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
