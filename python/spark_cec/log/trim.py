"""Trimming: deletes the segments in which nothing is needed any more.

The caller says by a `TrimHorizon` what is needed: `agent.queries` computes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.manifest import batches, retire
from spark_cec.log.meta import CommitMeta, Meta, OutputMeta, SegmentMeta
from spark_cec.log.scan import Torn, scan
from spark_cec.log.segment import GIVEN_UP_AFTER_IDLE_MS, Location, SegmentName, list_segments, segment_path
from spark_cec.log.storage import Storage, StoredFile, delete_until

MOST_S = 60.0
"""A call deletes for about so long. The JVM takes an agent for dead that does not answer for ten minutes."""

NO_GENERATION = -1
"""The newest generation of a segment whose frames have none."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The content of a segment, as far as trimming needs it.

    `generation`: its newest generation. `commits`: highest version of each store's commit frames. `output_batch`:
    highest batch of its output frames, None if it has none. `wall_ms`: time of its newest frame, 0 if none has a time.
    """

    name: SegmentName
    generation: int = NO_GENERATION
    commits: Mapping[StoreId, int] = field(default_factory=dict)
    output_batch: int | None = None
    wall_ms: int = 0

    def add_entries(self, entries: Sequence[tuple[Meta, Location]]) -> SegmentSummary:
        """The summary with more frames; a repeated frame changes nothing."""
        commits, output, generation, wall_ms = dict(self.commits), self.output_batch, self.generation, self.wall_ms
        for meta, _ in entries:
            wall_ms = max(wall_ms, meta.wall_ms)
            if isinstance(meta, SegmentMeta):
                continue
            generation = max(generation, meta.generation)
            if isinstance(meta, CommitMeta):
                commits[meta.store] = max(meta.version, commits.get(meta.store, meta.version))
            if isinstance(meta, OutputMeta):
                output = meta.batch if output is None else max(meta.batch, output)
        return SegmentSummary(self.name, generation, commits, output, wall_ms)


class Summaries:
    """The summaries of one log's segments, updated by new entries of the index; for one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, SegmentSummary]] = {}

    def of(self, index: Index, segments: Iterable[str]) -> dict[str, SegmentSummary]:
        """The summaries of `segments`; forgets all others."""
        covered = index.covered()
        known: dict[str, tuple[int, SegmentSummary]] = {}
        for segment in segments:
            end, summary = self._known.get(segment, (0, None))
            now = covered[segment].end
            if summary is None or end > now:
                known[segment] = now, summarize(segment, index.entries(segment))
            else:
                known[segment] = now, summary.add_entries(index.entries(segment, end)) if end < now else summary
        self._known = known
        return {segment: summary for segment, (_, summary) in known.items()}


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """The content to keep. Only versions that Spark has committed may decide it.

    `stores`: for each store the smallest `oldest_footprint` of any retained version; frames of smaller versions are not
    needed. A missing store keeps all its frames. `generation`: the query's current run. `output_before`: output of
    smaller batches is not retained; None keeps all output. `now_ms`: the time; trimming does not wait for a writer that
    is long silent by then. With 0 it waits for every writer.
    """

    stores: Mapping[StoreId, int]
    generation: int
    output_before: int | None = None
    now_ms: int = 0


def removable_segments(segments: Iterable[SegmentSummary], keep: TrimHorizon) -> list[str]:
    """Names of the segments without content to keep, sorted; never a segment that the current run may append to."""
    known = list(segments)
    writing = _find_open(known, keep)
    return sorted(str(segment.name) for segment in known if segment.name not in writing and _is_unneeded(segment, keep))


def trim(storage: Storage, index: Index, horizon: TrimHorizon, summaries: Summaries | None = None) -> list[str]:
    """Deletes the removable segments, forgets them in the index, and returns their names.

    Manifests of output that is not retained go first, so that no reader looks for deleted rows. The newest manifest and
    its output always stay, because readers take the schema from it. With `summaries` from the last call, only new
    entries are read. If there is more than a minute's work, the rest is left for the next call.

    If the index does not cover a segment to its end, the segment stays, unless the rest is only torn. Update the index
    first (`Catalog.refresh`).
    """
    end = time.monotonic() + MOST_S
    horizon = replace(horizon, output_before=_retire_output(storage, horizon.output_before, end))
    covered = index.covered()
    files = [file for file in list_segments(storage) if file.name in covered]
    known = (summaries or Summaries()).of(index, [file.name for file in files])
    wanted = set(removable_segments(known.values(), horizon))
    removed = [file.name for file in files if file.name in wanted and _is_known(storage, file, covered[file.name].end)]
    removed = removed[: len(delete_until(storage, [segment_path(segment) for segment in removed], end))]
    for segment in removed:
        index.forget(segment)
    return removed


def _retire_output(storage: Storage, before: int | None, end: float) -> int | None:
    """Retires manifests until `end`, and returns the batch before which output may be deleted."""
    published = batches(storage) if before is not None else []
    if before is None or not published:
        return before
    keep_from = min(before, published[-1])
    retired = {*retire(storage, keep_from, end)}
    return min((batch for batch in published if batch < keep_from and batch not in retired), default=keep_from)


def summarize(segment: str, entries: Sequence[tuple[Meta, Location]]) -> SegmentSummary:
    """The summary of a segment from its index entries. `ValueError` if `segment` is no segment's name."""
    name = SegmentName.parse(segment)
    if name is None:
        raise ValueError(f"{segment!r} is no segment's name")
    return SegmentSummary(name).add_entries(entries)


def _find_open(segments: Sequence[SegmentSummary], keep: TrimHorizon) -> set[SegmentName]:
    """The newest segment of each writer that has written recently, in the current run or a later one.

    A silent executor may be idle or gone. If it writes again, it begins another segment.
    """
    writers = {segment.name.writer_id for segment in segments if segment.generation >= keep.generation}
    newest: dict[str, SegmentSummary] = {}
    for segment in segments:
        writer = segment.name.writer_id
        newest[writer] = max(segment, newest.get(writer, segment), key=lambda each: each.name)
    return {
        last.name
        for writer, last in newest.items()
        if writer in writers and not keep.now_ms - last.wall_ms > GIVEN_UP_AFTER_IDLE_MS
    }


def _is_unneeded(segment: SegmentSummary, keep: TrimHorizon) -> bool:
    if any(version >= keep.stores.get(store, version) for store, version in segment.commits.items()):
        return False
    return segment.output_batch is None or (
        keep.output_before is not None and segment.output_batch < keep.output_before
    )


def _is_known(storage: Storage, file: StoredFile, end: int) -> bool:
    return file.size == end or all(isinstance(item, Torn) for item in scan(storage, file.name, end, file.size))
