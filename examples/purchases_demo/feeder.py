"""The feeder: publishes one file of events after another, at a steady pace, whatever becomes of the queries."""

from __future__ import annotations

import os
import time

from purchases_demo.events import Stream
from purchases_demo.layout import Layout


def feed(layout: Layout, stream: Stream, files: int, interval_s: float) -> None:
    """Publish `files` files into `layout.events`, `interval_s` seconds apart, then create `layout.fed`.

    The pace also orders the files for the queries: a directory listing that sees a file saw the one before it, which
    was there a whole interval earlier.
    """
    begin = time.monotonic()
    for number in range(files):
        publish(layout, stream, number)
        time.sleep(max(0.0, begin + (number + 1) * interval_s - time.monotonic()))
    layout.fed.touch()


def publish(layout: Layout, stream: Stream, number: int) -> None:
    """Publish one file."""
    name = f"purchases-{number:06d}.json"
    staged = layout.staging / name
    staged.write_bytes(stream.file(number))
    os.utime(staged, (stream.file_time(number),) * 2)
    staged.rename(layout.events / name)
