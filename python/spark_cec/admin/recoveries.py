"""Reads the reports of the recoveries of a place's query."""

from __future__ import annotations

from spark_cec.admin.find_log import OWN_DIRECTORY, Place, open_to_read
from spark_cec.recovery import past_recoveries
from spark_cec.recovery.past_recoveries import Recovery


def read_recoveries(place: Place, last: int) -> tuple[Recovery, ...]:
    """The newest recoveries that have a report, oldest first; those without a readable one are left out."""
    if place.checkpoint is None:
        return ()
    return past_recoveries.read_recoveries(open_to_read(f"{place.checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}"), last)
