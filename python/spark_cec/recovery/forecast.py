"""What the recoveries that there were say about the next one: base, ratio of a replay, failures per second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from spark_cec.checkpoint.recovery_target import Forecast
from spark_cec.log.storage import Storage

NEWEST = 15
"""How many recoveries count: the machine and the query change."""

_RATIO_FROM = 4
_RATIO_RANGE = (0.3, 3.0)

Point = tuple[float, float]
"""Predicted for load and replay, and measured for the whole recovery, in ms."""


def forecast(own: Storage, load_waves: float, *, autotune: bool) -> Forecast:
    """The forecast for a run that begins now; `own` is the checkpoint's `cec` directory.

    λ is looked for only where something follows it.
    """
    names = sorted(file.name for file in own.list("recoveries"))
    base_ms, ratio = fit(_points(_newest_reports(own, names)))
    return Forecast(base_ms, ratio, _failures_per_s(own, len(names)) if autotune else 0.0, load_waves)


def fit(points: Sequence[Point]) -> tuple[float | None, float]:
    """(base, ratio) of a line through the points: Theil and Sen's, which a few strange recoveries do not move.

    With few points, or all at one place, the ratio is 1; without any there is no base.
    """
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if abs(b[0] - a[0]) > 1.0]
    ratio = min(max(median(slopes), _RATIO_RANGE[0]), _RATIO_RANGE[1]) if len(points) >= _RATIO_FROM and slopes else 1.0
    return (max(median(y - ratio * x for x, y in points), 0.0), ratio) if points else (None, 1.0)


def _newest_reports(own: Storage, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """The newest recovery reports, oldest first; one that cannot be read says nothing. The others are not read."""
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


def _points(reports: Iterable[Mapping[str, Any]]) -> list[Point]:
    numbers = [(report.get("predicted_work_ms"), report.get("duration_ms")) for report in reports]
    return [(float(x), float(y)) for x, y in numbers if isinstance(x, (int, float)) and isinstance(y, (int, float))]


def _failures_per_s(own: Storage, failures: int) -> float:
    """λ by the restarts since the first run began; see `tuning.estimate.failure_rate` for what few of them say."""
    # Imported where it is needed: few queries are tuned, and scipy takes a while to load.
    from spark_cec.tuning.estimate import failure_rate

    first = min((file.name for file in own.list("generations")), default=None)
    began_ms = json.loads(own.read(f"generations/{first}")).get("started_unix_ms") if first else None
    observed_s = max(time.time() - began_ms / 1000.0, 1.0) if began_ms is not None else 0.0
    return failure_rate(failures, observed_s).per_s if observed_s else 0.0
