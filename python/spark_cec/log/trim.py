"""Trimming: which segments nobody needs any more, and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.manifest import batches, retire
from spark_cec.log.meta import CommitMeta, Meta, OutputMeta, SegmentMeta
from spark_cec.log.scan import Torn, scan
from spark_cec.log.segment import GIVEN_UP_AFTER_IDLE_MS, Location, SegmentName, list_segments, segment_path
from spark_cec.log.storage import Storage, StoredFile

NO_GENERATION = -1
"""Newest generation of a segment that holds no frame with one."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What a segment holds, as far as it matters here.

    `generation`: the newest in it. `commits`: highest version of each store's commit frames. `output_batch`: highest
    batch of its output frames, None if it has none. `wall_ms`: of its newest frame, 0 if none has a time.
    """

    name: SegmentName
    generation: int = NO_GENERATION
    commits: Mapping[StoreId, int] = field(default_factory=dict)
    output_batch: int | None = None
    wall_ms: int = 0

    def with_more(self, entries: Sequence[tuple[Meta, Location]]) -> SegmentSummary:
        """The summary when more frames are known; to say of a frame twice what is in it changes nothing."""
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
    """The summaries of one log's segments, brought up to date by what the index has learnt since; for one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, SegmentSummary]] = {}

    def of(self, index: Index, segments: Iterable[str]) -> dict[str, SegmentSummary]:
        """The summaries of these segments; all others are forgotten."""
        covered = index.covered()
        known: dict[str, tuple[int, SegmentSummary]] = {}
        for segment in segments:
            end, summary = self._known.get(segment, (0, None))
            now = covered[segment].end
            if summary is None or end > now:
                known[segment] = now, summarize(segment, index.entries(segment))
            else:
                known[segment] = now, summary.with_more(index.entries(segment, end)) if end < now else summary
        self._known = known
        return {segment: summary for segment, (_, summary) in known.items()}


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """What must be kept. Only versions that Spark has committed may speak here.

    `stores`: for each store the smallest `oldest_footprint` of any retained version; frames of smaller versions are
    not needed. A store that is missing keeps all its frames. `generation`: the run of the query that is writing now.
    `output_before`: output of smaller batches is not retained; None keeps all output. `now_ms`: the time; a writer that
    has been silent for long by then is not waited for. With 0 every writer is.
    """

    stores: Mapping[StoreId, int]
    generation: int
    output_before: int | None = None
    now_ms: int = 0


def removable_segments(segments: Iterable[SegmentSummary], keep: TrimHorizon) -> list[str]:
    """Names of the segments that hold nothing to be kept, sorted; never one that the present run may append to."""
    known = list(segments)
    writing = _being_written(known, keep)
    return sorted(str(segment.name) for segment in known if segment.name not in writing and _unneeded(segment, keep))


def trim(storage: Storage, index: Index, horizon: TrimHorizon, summaries: Summaries | None = None) -> list[str]:
    """Delete the removable segments and forget them in the index; returns their names.

    Manifests of output that is not retained go first, so that no reader is sent to rows that are gone. The newest
    manifest and its output always stay: readers learn the schema from it. With the `summaries` of the time before, only
    what is new is looked at.

    A segment that the index does not cover to its end stays, unless what is left of it is only torn. Bring the index up
    to date first (`Catalog.refresh`).
    """
    horizon = replace(horizon, output_before=_retire_output(storage, horizon.output_before))
    covered = index.covered()
    files = [file for file in list_segments(storage) if file.name in covered]
    known = (summaries or Summaries()).of(index, [file.name for file in files])
    wanted = set(removable_segments(known.values(), horizon))
    removed = [file.name for file in files if file.name in wanted and _is_known(storage, file, covered[file.name].end)]
    for segment in removed:
        storage.delete(segment_path(segment))
        index.forget(segment)
    return removed


def _retire_output(storage: Storage, before: int | None) -> int | None:
    """Retire manifests; the batch below which output may go."""
    published = batches(storage) if before is not None else []
    if before is None or not published:
        return before
    keep_from = min(before, published[-1])
    retire(storage, keep_from)
    return keep_from


def summarize(segment: str, entries: Sequence[tuple[Meta, Location]]) -> SegmentSummary:
    """The summary of a segment from what an index knows of it. `ValueError` if `segment` is no segment's name."""
    name = SegmentName.parse(segment)
    if name is None:
        raise ValueError(f"{segment!r} is no segment's name")
    return SegmentSummary(name).with_more(entries)


def _being_written(segments: Sequence[SegmentSummary], keep: TrimHorizon) -> set[SegmentName]:
    """The newest segment of each writer that has written in the present run, or in a later one, and not long ago.

    An executor may be idle for the rest of the run, or gone. Should it write again after all, it begins another
    segment.
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


def _unneeded(segment: SegmentSummary, keep: TrimHorizon) -> bool:
    if any(version >= keep.stores.get(store, version) for store, version in segment.commits.items()):
        return False
    return segment.output_batch is None or (
        keep.output_before is not None and segment.output_batch < keep.output_before
    )


def _is_known(storage: Storage, file: StoredFile, end: int) -> bool:
    return file.size == end or all(isinstance(item, Torn) for item in scan(storage, file.name, end, file.size))
