"""Durations and rates as a user writes them: `800ms`, `30s`, `0.5/day`, and back."""

from __future__ import annotations

import re

from spark_cec.errors import CecError

_SECONDS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0,
    "d": 86400.0, "day": 86400.0, "week": 604800.0, "month": 2629746.0, "year": 31556952.0,
}  # fmt: skip
_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"


class QuantityError(CecError, ValueError):
    """A duration or a rate cannot be read: write it with a unit. Attribute: `text`, what was given."""

    def __init__(self, text: str, mend: str) -> None:
        super().__init__(f"{text!r}: {mend}")
        self.text = text


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `800ms`, `30s`, `5min` or `1.5h`. Raises `QuantityError`."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([a-z]+)\s*", text.lower())
    unit = _unit(match[2]) if match else None
    if match is None or unit is None:
        raise QuantityError(text, "give a duration with a unit (us, ms, s, min, h, d), such as 800ms or 30s")
    return float(match[1]) * unit


def parse_rate(text: str) -> float:
    """Events per second of a rate such as `0.5/day`, `11/h` or `1/19days`. Raises `QuantityError`."""
    count, slash, span = text.lower().partition("/")
    number = re.fullmatch(rf"\s*{_NUMBER}\s*", count)
    per = re.fullmatch(rf"\s*{_NUMBER}?\s*([a-z]+)\s*", span)
    unit = _unit(per[2]) if per else None
    if not slash or number is None or per is None or unit is None or float(per[1] or 1.0) == 0.0:
        raise QuantityError(text, "give a count per time, such as 0.5/day, 11/h or 1/19days")
    return float(number[1]) / (float(per[1] or 1.0) * unit)


def format_duration(seconds: float) -> str:
    """A duration to four digits in the unit that suits its size: `2.646min`."""
    for unit in ("d", "h", "min", "s", "ms"):
        if abs(seconds) >= _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.4g}{unit}"
    return f"{seconds / _SECONDS['us']:.4g}us"


def format_rate(per_second: float) -> str:
    """A rate to four digits, per the unit of time that gives at least one event: `3.5/week`."""
    for unit in ("s", "min", "h", "day", "week", "month"):
        if per_second * _SECONDS[unit] >= 1.0:
            return f"{per_second * _SECONDS[unit]:.4g}/{unit}"
    return f"{per_second * _SECONDS['year']:.4g}/year"


def _unit(name: str) -> float | None:
    word = name.removesuffix("s")
    return _SECONDS.get(name) or (_SECONDS.get(word) if len(word) > 2 else None)
