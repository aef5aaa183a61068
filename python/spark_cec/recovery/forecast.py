"""Forecasts the next recovery from the earlier ones: its base, the ratio of its replay, and failures per second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from spark_cec.checkpoint.recovery_target import Forecast
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import first_start_ms

NEWEST = 15
"""The number of recoveries that count; older ones say little, because the machine and the query change."""

_RATIO_FROM = 4
_RATIO_RANGE = (0.3, 3.0)

Point = tuple[float, float]
"""Load and replay as predicted, and the whole recovery as measured, both in ms."""


def forecast(own: Storage, load_waves: float, *, autotune: bool) -> Forecast:
    """The forecast for a run that begins now; `own` is rooted at the checkpoint's `cec` directory.

    λ is estimated only with `autotune`, which is its only user.
    """
    names = sorted(file.name for file in own.list("recoveries"))
    base_ms, ratio = fit(_collect_points(_read_newest_reports(own, names)))
    return Forecast(base_ms, ratio, _estimate_failures(own, len(names)) if autotune else 0.0, load_waves)


def fit(points: Sequence[Point]) -> tuple[float | None, float]:
    """(base in ms, ratio) of a line through the points: the Theil-Sen estimator, which a few outliers do not move.

    With few points, or all at one place, the ratio is 1. Without points the base is None.
    """
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if abs(b[0] - a[0]) > 1.0]
    ratio = min(max(median(slopes), _RATIO_RANGE[0]), _RATIO_RANGE[1]) if len(points) >= _RATIO_FROM and slopes else 1.0
    return (max(median(y - ratio * x for x, y in points), 0.0), ratio) if points else (None, 1.0)


def _read_newest_reports(own: Storage, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """The newest readable recovery reports, oldest first; reads no more than needed."""
    reports: list[Mapping[str, Any]] = []
    for name in reversed(names):
        if len(reports) == NEWEST:
            break
        try:
            report = json.loads(own.read(f"recoveries/{name}"))
        except (OSError, ValueError):
            continue
        if isinstance(report, dict):
            reports.insert(0, report)
    return reports


def _collect_points(reports: Iterable[Mapping[str, Any]]) -> list[Point]:
    numbers = [(report.get("predicted_work_ms"), report.get("duration_ms")) for report in reports]
    return [(float(x), float(y)) for x, y in numbers if isinstance(x, (int, float)) and isinstance(y, (int, float))]


def _estimate_failures(own: Storage, failures: int) -> float:
    """λ from the number of restarts since the first run began; see `tuning.estimate.failure_rate`."""
    # Few queries use autotune, and scipy takes a while to load.
    from spark_cec.tuning.estimate import failure_rate

    began_ms = first_start_ms(own)
    observed_s = max(time.time() - began_ms / 1000.0, 1.0) if began_ms is not None else 0.0
    return failure_rate(failures, observed_s).per_s if observed_s else 0.0
