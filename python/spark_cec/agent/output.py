"""The sink's calls on the driver: the manifest that makes a batch visible, and the boundary of the output.

`agent.appends` writes the frames.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.checkpoint_files import NewestEntries
from spark_cec.agent.logs import OpenLog, OpenLogs
from spark_cec.agent.messages import BoundaryRequest, ColumnTimes, Done, PublishAnswer, PublishRequest
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.errors import DamagedLog
from spark_cec.log import manifest
from spark_cec.log.boundary import Boundary, note_boundary
from spark_cec.log.frame import crc32c
from spark_cec.log.times import TimeRange, merge_ranges
from spark_cec.recovery.replay_input import PlannedBatch, parse_planned, read_planned

_LOG = logging.getLogger(__name__)
_NUMBER_OF_FILES = re.compile(r'\{"logOffset":(\d+)\}')


class OutputCalls:
    """The sink's calls on the driver."""

    def __init__(
        self, logs: OpenLogs, protocols: ProtocolCalls, newest: NewestEntries, run_of: Callable[[str], int | None]
    ) -> None:
        """`run_of` gives the run that has the lease of a checkpoint in this process."""
        self._logs = logs
        self._protocols = protocols
        self._newest = newest
        self._run_of = run_of

    def publish(self, request: PublishRequest) -> PublishAnswer:
        """Makes a batch visible in one step, and answers whether this manifest was the batch's first, which wins.

        Raises `Fenced` if a later run has taken the output back.
        """
        log, checkpoint = self._logs.get_known(request.home), request.checkpoint
        planned = self._read_planned(checkpoint, request.batch)
        wanted = manifest.Manifest(
            batch=request.batch,
            frames=request.frames,
            rows=request.rows,
            schema_json=request.schema,
            truncate=request.truncate,
            generation=request.generation,
            wall_ms=self._next_wall_ms(log, request.batch),
            consumed=_describe_inputs(checkpoint, request.sources, planned),
            boundary_ms=planned.watermark_ms if planned else None,
            piggyback=self._protocols.sends(checkpoint, request.batch),
            times=_merge_times(request.times),
        )
        log.refuse_vanished_log()
        looks = self._must_look(log, request)
        counts = manifest.publish(log.storage, wanted, log.published.cuts, looks=looks)
        log.cuts_looked_by = request.generation
        return PublishAnswer(first=counts == wanted)

    def note_boundary(self, request: BoundaryRequest) -> Done:
        """Notes up to which time all input is in the published batches, which end with the run's last one.

        Notes nothing if that batch is not there. Raises `Fenced` if a later run has taken the output back.
        """
        log, batch = self._logs.get_known(request.home), request.batch
        log.published.cuts.look()
        manifest.refuse_taken_back(log.storage.url, log.published.cuts, batch, request.generation)
        try:
            crc = manifest.load(log.storage, batch).crc if batch >= 0 else None
        except (FileNotFoundError, DamagedLog):  # a reader of that batch has no use for the boundary, or gets the error
            return Done()
        note_boundary(log.storage, Boundary(batch, crc, request.quiet_ms, request.columns))
        return Done()

    def _must_look(self, log: OpenLog, request: PublishRequest) -> bool:
        """Whether a new cut may have come: not on an object store while this run has the lease, which a rollback needs.

        If the run has lost the lease without knowing, readers still see that the cut takes its manifest back.
        """
        has_looked = log.cuts_looked_by == request.generation
        return log.storage.can_append or not has_looked or self._run_of(request.checkpoint) != request.generation

    def _read_planned(self, checkpoint: str, batch: int) -> PlannedBatch | None:
        """The planned batch; None if it is unreadable now.

        The rows are durable, so their publication does not wait for metadata.
        """
        known = self._newest.find(checkpoint, f"offsets/{batch}")
        try:
            return parse_planned(known) if known is not None else read_planned(open_storage(checkpoint), batch)
        except OSError as error:
            _LOG.warning("what went into batch %d is not noted with its output: %s", batch, error)
            return None

    def _next_wall_ms(self, log: OpenLog, batch: int) -> int:
        """The wall clock, or the previous batch's time if the clock was set back.

        So times in a log's output never decrease. Else a reader from a given time on would miss some batches.
        """
        newest = log.newest_output_ms
        if newest is None:
            before = manifest.load_between(log.storage, batch - 1, batch - 1)
            newest = max((each.wall_ms for _, each in before if isinstance(each, manifest.Manifest)), default=0)
        newest = max(newest, int(time.time() * 1000))
        log.newest_output_ms = newest
        return newest


def _merge_times(tasks: Sequence[ColumnTimes]) -> dict[str, TimeRange]:
    """The times of each column in all tasks together."""
    ranges: dict[str, list[TimeRange]] = {}
    for each in tasks:
        ranges.setdefault(each.column, []).append(TimeRange(each.first_ms, each.last_ms, each.nulls))
    return {column: merge_ranges(found) for column, found in ranges.items()}


def _describe_inputs(
    checkpoint: str, sources: Sequence[str], planned: PlannedBatch | None
) -> tuple[manifest.Consumed, ...]:
    """The input of a batch; empty if the offset log has another format or another number of sources."""
    if planned is None or len(planned.offsets) != len(sources):
        return ()
    return tuple(
        manifest.Consumed(source, end, _checksum_entries(checkpoint, end, len(sources)))
        for source, end in zip(sources, planned.offsets, strict=True)
    )


def _checksum_entries(checkpoint: str, end: str | None, sources: int) -> int | None:
    """The checksum of the file-source entries with the number in `end`; None for another kind of source.

    Spark does not sync these entries. It does not record which source has which directory, so the entries of all
    sources with that number count. A batch that runs again finds all of them unchanged.
    """
    found = _NUMBER_OF_FILES.fullmatch(end or "")
    if found is None:
        return None
    storage, notes = open_storage(checkpoint), []
    for source in range(sources):
        for name in (found[1], f"{found[1]}.compact"):
            with contextlib.suppress(OSError):
                notes.append(f"{source} ".encode() + storage.read(f"sources/{source}/{name}"))
    return crc32c(b"".join(notes)) if notes else None
