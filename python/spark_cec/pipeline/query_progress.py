"""Reads the progress of a flow's query: its newest batch, and the input that the batch left for later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_cec.availability.failure import Progress
from spark_cec.availability.keep import Unread
from spark_cec.log.manifest import read_batch, read_bucket_end
from spark_cec.recovery.margin import needed_partitions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WAITS = "org.apache.spark.sql.cec.source.BucketWaits"

_WORTH_SAYING_S = 2.0
"""Rows wait for a short time in each batch. Nobody needs to know which input they wait for then."""


def last_batch(query: StreamingQuery) -> int | None:
    """The newest batch; None before the first trigger since the start. It may be one of an earlier run."""
    try:
        progress = query._jsq.lastProgress()
        return None if progress is None else int(progress.batchId())
    except Exception:  # the session has ended
        return None


def has_run_batch(query: StreamingQuery) -> bool:
    """Whether the query has run a batch since its start, if it has watermarks."""
    try:
        return is_of_batch(query._jsq.lastProgress())
    except Exception:  # the session has ended
        return False


def is_of_batch(progress: Any) -> bool:
    """Whether a progress tells of a batch of the present run, if the query has watermarks. None is no progress.

    The first trigger of a run may be idle. Then Spark reports the offsets of the run before, and neither a watermark
    nor operators.
    """
    return progress is not None and (
        bool(progress.durationMs().containsKey("addBatch")) or bool(progress.eventTime().containsKey("watermark"))
    )


def complete_to_ms(query: StreamingQuery) -> int | None:
    """The watermark of the newest batch, in ms since the epoch: no older row counts. None without one."""
    try:
        text = query._jsq.lastProgress().eventTime().get("watermark")
        found = None if text is None else int(datetime.fromisoformat(str(text)).timestamp() * 1000)
        # Spark begins at the epoch, and a stream by buckets a millisecond later.
        return None if found is None or found <= 1 else found
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


@dataclass(frozen=True, slots=True)
class Wait:
    """The channels for which rows wait, in a channel or in the query's state, and for how long, in s.

    `back`: the channels for which it does not wait, and which are back. `given_up`: those for which it waits no more,
    because too much has waited, or for too long. All is of its last plan.
    """

    held_s: Mapping[str, float] = field(default_factory=dict)
    back: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()

    @property
    def long_waited_for(self) -> tuple[str, ...]:
        """The channels for which rows have waited for some time."""
        return tuple(name for name, held_s in self.held_s.items() if held_s >= _WORTH_SAYING_S)


def read_wait(query: StreamingQuery) -> Wait:
    """For what a query waits that reads by buckets."""
    try:
        said = str(_find_waits().of(str(query.id)))
        held, back, given_up = ([each for each in part.split(",") if each] for part in (said or ";;").split(";"))
        waits = (each.partition(" ") for each in held)
        return Wait({name: int(ms) / 1000 for ms, _, name in waits}, frozenset(back), frozenset(given_up))
    except Exception:  # the session has ended
        return Wait()


def leave_out(query: StreamingQuery, channels: Iterable[str]) -> None:
    """Has a running query by buckets wait for all channels but these, from its next batch on, until it is stopped.

    Raises if the session has ended.
    """
    _find_waits().leaveOut(str(query.id), ",".join(sorted(channels)))


def read_unread(query: StreamingQuery) -> tuple[Unread, ...] | None:
    """What is unread of each channel of a query by buckets that measures it; None before its first plan."""
    try:
        said = [each.split(" ", 2) for each in str(_find_waits().unreadBy(str(query.id))).split(",") if each]
        return tuple(Unread(name, int(due), int(waiting)) for due, waiting, name in said) or None
    except Exception:  # the session has ended
        return None


def _find_waits() -> Any:
    """The object in the JVM that knows for what queries wait, and must not wait. Raises if the session has ended."""
    from pyspark import SparkContext

    found: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
    for name in _WAITS.split("."):
        found = getattr(found, name)
    return found


def read_progress(query: StreamingQuery) -> Progress:
    """How far a query is that reads by buckets, by its newest batch; unknown before the first one since its start."""
    try:
        found = query._jsq.lastProgress()
        if not is_of_batch(found):  # it says nothing of what operators hold
            return Progress()
        ends = [read_bucket_end(str(source.endOffset())) for source in found.sources()]
        until_ms = max((end for end in ends if end is not None), default=None)
        # Operators with state give rows out when the watermark has passed them.
        return Progress(until_ms, complete_to_ms(query) if len(found.stateOperators()) else until_ms)
    except Exception:  # there is no batch yet, or the session has ended
        return Progress()
