"""Reads the progress of a flow's query: its newest batch, and the input that the batch left for later."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from spark_cec.log.manifest import read_batch
from spark_cec.recovery.margin import needed_partitions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def last_batch(query: StreamingQuery) -> int | None:
    """The newest batch; None before the first one since the start."""
    try:
        progress = query._jsq.lastProgress()
        return None if progress is None else int(progress.batchId())
    except Exception:  # the session has ended
        return None


def complete_to_ms(query: StreamingQuery) -> int | None:
    """The watermark of the newest batch, in ms since the epoch: no older row counts. None without one."""
    try:
        text = query._jsq.lastProgress().eventTime().get("watermark")
        found = None if text is None else int(datetime.fromisoformat(str(text)).timestamp() * 1000)
        return found or None  # Spark begins at the epoch
    except Exception:  # the session has ended
        return None


def batch_ms(query: StreamingQuery) -> float | None:
    """The time that the newest batch of a query took; None before the first one since the start."""
    try:
        progress = query._jsq.lastProgress()
        return None if progress is None else float(progress.durationMs().get("triggerExecution"))
    except Exception:  # the session has ended
        return None


def count_left(query: StreamingQuery) -> int | None:
    """How many batches the newest batch left for later: of a channel, or of its own size."""
    try:
        sources = query._jsq.lastProgress().sources()
        return max([*(_count_batches(s.endOffset(), s.latestOffset(), s.numInputRows()) for s in sources), 0])
    except Exception:  # the session has ended
        return None


def _count_batches(end: str | None, latest: str | None, rows: int) -> int:
    """The batches between two offsets of a source, 0 for a source that counts neither batches nor rows."""
    if end is None or latest is None:
        return 0
    try:
        return read_batch(latest) - read_batch(end)
    except ValueError:
        pass
    try:
        left = sum(max(each.end - each.offset, 0) for each in needed_partitions(end, latest))
    except ValueError:
        return 0
    return math.ceil(left / rows) if rows > 0 else 0
