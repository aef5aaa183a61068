"""Trimming: which segments nobody needs any more, and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_cec.ids import StoreId
from spark_cec.index import Index
from spark_cec.log.manifest import batches, retire
from spark_cec.log.meta import CommitMeta, LoadedMeta, Meta, OutputMeta
from spark_cec.log.scan import Torn, scan
from spark_cec.log.segment import Location, SegmentName, list_segments, segment_path
from spark_cec.log.storage import Storage, StoredFile

NO_GENERATION = -1
"""Newest generation of a segment that holds no frame with one."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What a segment holds, as far as it matters here.

    `generation`: the newest in it. `commits`: highest version of each store's commit frames. `output_batch`: highest
    batch of its output frames, None if it has none.
    """

    name: SegmentName
    generation: int = NO_GENERATION
    commits: Mapping[StoreId, int] = field(default_factory=dict)
    output_batch: int | None = None


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """What must be kept. Only versions that Spark has committed may speak here.

    `stores`: for each store the smallest `oldest_footprint` of any retained version; frames of smaller versions are
    not needed. A store that is missing keeps all its frames. `generation`: the run of the query that is writing now.
    `output_before`: output of smaller batches is not retained; None keeps all output.
    """

    stores: Mapping[StoreId, int]
    generation: int
    output_before: int | None = None


def removable_segments(segments: Iterable[SegmentSummary], keep: TrimHorizon) -> list[str]:
    """Names of the segments that hold nothing to be kept, sorted; never one that the present run may append to."""
    known = list(segments)
    writing = _being_written(known, keep.generation)
    return sorted(str(segment.name) for segment in known if segment.name not in writing and _unneeded(segment, keep))


def trim(storage: Storage, index: Index, horizon: TrimHorizon) -> list[str]:
    """Delete the removable segments and forget them in the index; returns their names.

    Manifests of output that is not retained go first, so that no reader is sent to rows that are gone. The newest
    manifest and its output always stay: readers learn the schema from it.

    A segment that the index does not cover to its end stays, unless what is left of it is only torn. Bring the index up
    to date first (`Catalog.refresh`).
    """
    horizon = replace(horizon, output_before=_retire_output(storage, horizon.output_before))
    covered = index.covered()
    files = [file for file in list_segments(storage) if file.name in covered]
    summaries = {file.name: summarize(file.name, index.entries(file.name)) for file in files}
    wanted = set(removable_segments(summaries.values(), horizon))
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
    commits: dict[StoreId, int] = {}
    batches: list[int] = []
    generation = NO_GENERATION
    for meta, _ in entries:
        if isinstance(meta, CommitMeta):
            commits[meta.store] = max(meta.version, commits.get(meta.store, meta.version))
        if isinstance(meta, OutputMeta):
            batches.append(meta.batch)
        if isinstance(meta, CommitMeta | OutputMeta | LoadedMeta):
            generation = max(generation, meta.generation)
    return SegmentSummary(name, generation, commits, max(batches, default=None))


def _being_written(segments: Sequence[SegmentSummary], generation: int) -> set[SegmentName]:
    """The newest segment of each writer that has written in the present run, or in a later one."""
    writers = {segment.name.writer_id for segment in segments if segment.generation >= generation}
    newest: dict[str, SegmentName] = {}
    for segment in segments:
        writer = segment.name.writer_id
        newest[writer] = max(segment.name, newest.get(writer, segment.name))
    return {name for writer, name in newest.items() if writer in writers}


def _unneeded(segment: SegmentSummary, keep: TrimHorizon) -> bool:
    if any(version >= keep.stores.get(store, version) for store, version in segment.commits.items()):
        return False
    return segment.output_batch is None or (
        keep.output_before is not None and segment.output_batch < keep.output_before
    )


def _is_known(storage: Storage, file: StoredFile, end: int) -> bool:
    return file.size == end or all(isinstance(item, Torn) for item in scan(storage, file.name, end, file.size))
