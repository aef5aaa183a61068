"""What it costs to answer within X while an input is away, at both paces, beside the same flow that waits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.availability_job import (
    ALPHA,
    GOES_BACK,
    SUSPENDS,
    WAITS,
    WITHIN,
    X_S,
    AwaySpec,
    Shape,
)
from spark_cec_lab.bench.pipelines.one_job import run_job, spread

_JOB = "spark_cec_lab.bench.pipelines.availability_job"
_SILENCE_S = 400.0

WINDOWS, QUICK_WINDOWS, LARGE_WINDOWS = 100_000, 20_000, 1_000_000
_WAYS = (WITHIN, SUSPENDS, WAITS, GOES_BACK)


Write = Callable[[dict[str, Any]], None]


def availability(
    windows: int, rounds: int, memory: str, work: Path, write: Write, say: Say, *, outages: int = 2
) -> None:
    """Runs all ways in each round, in turn, and writes a line for each run and one for all. Raises `BenchError`.

    `outages`: how many each run has. The last one counts.
    """
    jar = str(shutil.copy(jar_path(), work))
    found: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        found.append({})
        for way in _WAYS if number % 2 == 0 else reversed(_WAYS):
            spec = AwaySpec(way, str(work / "run"), jar, memory, Shape.busy(windows), outages)
            done = found[-1][way] = _run(spec, after(f"round {number + 1}/{rounds}, {way}: ", say))
            write({"kind": "run", "task": "availability", "way": way, "round": number + 1, **done})
    write(summary(found))


def heap(windows: int, rounds: int, memory: str, work: Path, write: Write, say: Say) -> None:
    """The heap while an epoch is open, over the heap before, with many windows. Writes lines. Raises `BenchError`."""
    jar, found, part = str(shutil.copy(jar_path(), work)), list[dict[str, Any]](), {"part": "heap"}
    for number in range(rounds):
        spec = AwaySpec(WITHIN, str(work / "run"), jar, memory, Shape.large(windows))
        found.append(_run(spec, after(f"round {number + 1}/{rounds}, heap: ", say)))
        write({"kind": "run", "task": "availability", **part, "round": number + 1, **found[-1]})
    write({"kind": "summary", "task": "availability", **part, "windows": found[0]["windows"], **heap_ratio(found)})


def heap_ratio(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The heap's live objects while the epoch is open, over those before: median, lowest and highest."""
    return {"heap_over_before": spread([each["heap_during"] / each["heap_before"] for each in runs])}


def summary(found: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Median, lowest and highest of each measure; ratios are of two ways in one round.

    `first_tentative_batches`: the time from alpha * X to the first tentative row, in batches of the flow.
    `suspended_over_waiting`: as `caught_up_over_waiting`, with `while_correcting="suspend"`. `gone_back_over_within`:
    the same of a flow that goes back, over ours.
    """
    within = [each[way] for each in found for way in (WITHIN, SUSPENDS)]
    return {
        "kind": "summary", "task": "availability", "x_s": X_S, "alpha": ALPHA, "windows": within[0]["windows"],
        "first_tentative_s": spread([each["first_tentative_s"] for each in within]),
        "first_tentative_batches": spread([1000 * e["first_tentative_s"] / e["batch_ms"] for e in within]),
        "caught_up_over_waiting": spread([e[WITHIN]["caught_up_s"] / e[WAITS]["caught_up_s"] for e in found]),
        "suspended_over_waiting": spread([e[SUSPENDS]["caught_up_s"] / e[WAITS]["caught_up_s"] for e in found]),
        "gone_back_over_within": spread([e[GOES_BACK]["caught_up_s"] / e[WITHIN]["caught_up_s"] for e in found]),
        **heap_ratio(within),
    }  # fmt: skip


def _run(spec: AwaySpec, say: Say) -> dict[str, Any]:
    home = Path(spec.home)
    home.mkdir()
    try:
        return run_job(_JOB, spec.to_json(), home, _SILENCE_S, say)
    finally:
        shutil.rmtree(home)
