"""What it costs to answer within X while an input is away, at both paces, beside the same flow that waits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.availability_job import ALPHA, SUSPENDS, WAITS, WITHIN, X_S
from spark_cec_lab.bench.pipelines.one_job import run_job, spread
from spark_cec_lab.bench.pipelines.way_job import WaySpec

_JOB = "spark_cec_lab.bench.pipelines.availability_job"
_SILENCE_S = 400.0
_ROWS_PER_S = 1_000

WINDOWS, QUICK_WINDOWS = 100_000, 20_000
_WINDOWS_OF_A_KEY = 100
_WAYS = (WITHIN, SUSPENDS, WAITS)


def availability(
    windows: int, rounds: int, memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say
) -> None:
    """Runs all ways in each round, in turn, and writes a line for each run and one for all. Raises `BenchError`."""
    jar, home = str(shutil.copy(jar_path(), work)), work / "run"
    found: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        found.append({})
        for way in _WAYS if number % 2 == 0 else reversed(_WAYS):
            home.mkdir()
            spec = WaySpec(way, str(home), jar, memory, _ROWS_PER_S, max(windows // _WINDOWS_OF_A_KEY, 1))
            done = run_job(_JOB, spec.to_json(), home, _SILENCE_S, after(f"round {number + 1}/{rounds}, {way}: ", say))
            shutil.rmtree(home)
            found[-1][way] = done
            write({"kind": "run", "task": "availability", "way": way, "round": number + 1, **done})
    write(summary(found))


def summary(found: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Median, lowest and highest of each measure; ratios are of two ways in one round.

    `first_tentative_batches`: the time from alpha * X to the first tentative row, in batches of the flow.
    `suspended_over_waiting`: as `caught_up_over_waiting`, with `while_correcting="suspend"`.
    """
    within = [each[way] for each in found for way in (WITHIN, SUSPENDS)]
    return {
        "kind": "summary", "task": "availability", "x_s": X_S, "alpha": ALPHA, "windows": within[0]["windows"],
        "first_tentative_s": spread([each["first_tentative_s"] for each in within]),
        "first_tentative_batches": spread([1000 * e["first_tentative_s"] / e["batch_ms"] for e in within]),
        "caught_up_over_waiting": spread([e[WITHIN]["caught_up_s"] / e[WAITS]["caught_up_s"] for e in found]),
        "suspended_over_waiting": spread([e[SUSPENDS]["caught_up_s"] / e[WAITS]["caught_up_s"] for e in found]),
        "heap_over_before": spread([each["heap_during"] / each["heap_before"] for each in within]),
    }  # fmt: skip
