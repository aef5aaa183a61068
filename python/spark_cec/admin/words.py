"""Words that several commands and the report share."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(unix_ms: int) -> str:
    """A time in UTC, as Spark shows a watermark; in ms, if no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):  # users choose event times, also impossible ones
        return f"{unix_ms} ms since 1970"
