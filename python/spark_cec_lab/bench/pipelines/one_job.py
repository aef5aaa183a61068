"""Runs jobs of pipelines to their ends: each in a process of its own, or all in one process."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_cec_lab.bench.measure import Say
from spark_cec_lab.bench.processes import BenchError, Child


def start_job(module: str, spec: str, errors: Path) -> Child:
    """Starts the job of a module; `errors` is the file of its standard error."""
    return Child([sys.executable, "-m", module, spec], errors, {"PYSPARK_PYTHON": sys.executable})


def run_job(module: str, spec: str, home: Path, silence_s: float, say: Say) -> dict[str, Any]:
    """Runs a job; answers what it tells with `done`, rounded. Raises `BenchError` if it fails or falls silent."""
    with start_job(module, spec, home / "job.log") as job:
        return await_result(job, silence_s, say)


def await_result(job: Child, silence_s: float, say: Say) -> dict[str, Any]:
    """What a job tells with `done`, rounded. Raises `BenchError` if it ends without that, or falls silent."""
    for event in job.events(silence_s):
        if event.pop("done", False):
            return {key: round(value, 3) if isinstance(value, float) else value for key, value in event.items()}
        say(f"{event}")
    raise BenchError("the run ended without a result")


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Median, lowest and highest."""
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, digits) for name, value in found.items()}
