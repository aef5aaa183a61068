"""Reads frames at known places, and verifies the whole log; never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.bundles import damaged_bundles
from spark_cec.log.frame import Bad, CommitFlags, CommitMeta, Frame, NeedMore, Newer, parse_frame
from spark_cec.log.home import read_log_id
from spark_cec.log.manifest import load_each, readable_batches, retired_before
from spark_cec.log.meta import Meta, SegmentMeta, decode_meta
from spark_cec.log.record import decode_records, decode_table
from spark_cec.log.scan import Corrupt, Damage, FoundFrame, Scanned, Torn, scan
from spark_cec.log.segment import Location, list_segments, segment_path
from spark_cec.log.storage import Storage, StoredFile, reads_at_once

__all__ = [
    "Corrupt",
    "Damage",
    "FoundFrame",
    "Scanned",
    "SegmentReport",
    "Torn",
    "VerifyReport",
    "commit_records",
    "payload_table",
    "read_frame",
    "read_many",
    "scan_whole",
    "verify",
]

_GAP_BYTES = 128 << 10
_RUN_BYTES = 32 << 20
_ROUNDS = 4
"""So many segments for each read that may be under way are asked for together, so that no log is too long for it."""


def read_frame(storage: Storage, location: Location) -> Frame:
    """The frame at a place, all checksums verified. `DamagedLog` if it is missing or damaged."""
    return read_many(storage, [location])[0]


def read_many(storage: Storage, locations: Iterable[Location]) -> list[Frame]:
    """The frames at these places, in the order given; one read fetches neighbours, and several reads run at a time.

    Errors: `DamagedLog` with segment, offset and reason; `NewerFormat`.
    """
    wanted = list(locations)
    runs = _group_reads(sorted(set(wanted)))
    if len(runs) <= 1:
        parts = [_read_run(storage, run) for run in runs]
    else:
        with ThreadPoolExecutor(min(reads_at_once(storage), len(runs))) as pool:
            parts = list(pool.map(lambda run: _read_run(storage, run), runs))
    frames = {location: frame for part in parts for location, frame in part}
    return [frames[location] for location in wanted]


def commit_records(frame: Frame) -> pa.Table:
    """The records of a COMMIT frame, columns as in `log.record.records_schema`. `DamagedLog` if they are unreadable."""
    meta = frame.meta
    if not isinstance(meta, CommitMeta):
        raise ValueError(f"a {frame.kind.name} frame has no records; give a COMMIT frame")
    try:
        grouped = bool(meta.flags & CommitFlags.GROUPED)
        return decode_records(frame.payload, grouped=grouped, flags=frame.header.flags)
    except (
        pa.ArrowException,
        OSError,
        KeyError,
        ValueError,
        TypeError,
    ) as error:  # errors of Arrow and planes
        raise DamagedLog(f"commit of {meta.store} version {meta.version}", -1, f"no Arrow stream: {error}") from error


def payload_table(frame: Frame) -> pa.Table:
    """The stored payload of an OUTPUT or COMMIT frame. `DamagedLog` if it is no Arrow stream."""
    try:
        return decode_table(frame.payload)
    except pa.ArrowException as error:
        raise DamagedLog(f"{frame.kind.name} frame", -1, f"no Arrow stream: {error}") from error


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The result of a full read of one segment, or of a bundle whose head is damaged; `size` in bytes.

    `other_log`: the log to which the segment belongs, if that is another one. Then the whole segment is the damage.
    """

    segment: str
    size: int
    frames: int
    damages: tuple[Damage, ...]
    other_log: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a full read of the log. `files`: damaged files beside the segments."""

    segments: tuple[SegmentReport, ...]
    files: tuple[DamagedLog, ...] = ()

    @property
    def damages(self) -> tuple[Damage, ...]:
        """All damage of segments, by segment and offset."""
        return tuple(damage for segment in self.segments for damage in segment.damages)

    @property
    def clean(self) -> bool:
        """Whether nothing is corrupt; a torn tail is no loss."""
        return not self.files and not any(isinstance(damage, Corrupt) for damage in self.damages)


def verify(storage: Storage, log_id: str | None = None) -> VerifyReport:
    """Reads every byte of segments, cuts, manifests, the retirement note, and `log.json`. Errors: `NewerFormat`.

    With the id of the log, segments of another log are damage. Leaves out files that a running query deletes meanwhile.
    It does not look whether all needed files are there.
    """
    sound = [each for each in _verify_segments(storage, log_id) if each is not None]
    damaged = [SegmentReport(each.segment, each.bytes_lost, 0, (each,)) for each in damaged_bundles(storage)]
    segments = (*sound, *damaged)
    batches, damaged_cuts = readable_batches(storage)
    files = [*damaged_cuts]
    checks: list[Callable[[], object]] = [
        partial(read_log_id, storage),
        partial(retired_before, storage),
    ]
    for check in checks:
        try:
            check()
        except DamagedLog as error:
            files.append(error)
    files += [each for _, each in load_each(storage, batches) if isinstance(each, DamagedLog)]
    return VerifyReport(segments, tuple(files))


def scan_whole(storage: Storage, segment: str, start: int, size: int) -> Iterator[tuple[Scanned, Meta | None]]:
    """As `scan` of every byte, with the meta of each frame; a frame whose meta cannot be decoded is corrupt."""
    for found in scan(storage, segment, start, size, headers_only=False):
        meta = _decode_or_damage(segment, found) if isinstance(found, FoundFrame) else None
        yield (meta, None) if isinstance(meta, Corrupt) else (found, meta)


def _decode_or_damage(segment: str, frame: FoundFrame) -> Meta | Corrupt:
    try:
        return decode_meta(frame.header.kind, frame.header.meta)
    except ValueError as error:
        return Corrupt(segment, frame.location.offset, frame.location.length, str(error))


def _verify_segments(storage: Storage, log_id: str | None) -> Iterator[SegmentReport | None]:
    """Reads the segments, in the order of the listing. Several objects at once: each read waits for its answer."""
    files, most = list_segments(storage), reads_at_once(storage)
    if storage.can_append or len(files) <= 1:
        yield from (_verify_segment(storage, log_id, file) for file in files)
        return
    with ThreadPoolExecutor(min(most, len(files))) as pool:
        for first in range(0, len(files), most * _ROUNDS):
            yield from pool.map(partial(_verify_segment, storage, log_id), files[first : first + most * _ROUNDS])


def _verify_segment(storage: Storage, log_id: str | None, file: StoredFile) -> SegmentReport | None:
    frames, damages, other_log = 0, list[Damage](), None
    try:
        for found, meta in scan_whole(storage, file.name, 0, file.size):
            if isinstance(found, FoundFrame):
                frames += 1
            else:
                damages.append(found)
            if isinstance(meta, SegmentMeta) and log_id not in (None, meta.log_id):
                other_log = other_log or meta.log_id
    except FileNotFoundError:
        return None
    if other_log is not None:
        damages = [Corrupt(file.name, 0, file.size, f"the segment belongs to log {other_log}")]
    return SegmentReport(file.name, file.size, frames, tuple(damages), other_log)


def _group_reads(locations: Sequence[Location]) -> list[list[Location]]:
    """Sorted places in groups, where one read for the group is cheaper."""
    runs: list[list[Location]] = []
    for location in locations:
        last = runs[-1] if runs else None
        if (
            last is not None
            and last[-1].segment == location.segment
            and location.offset - last[-1].end <= _GAP_BYTES
            and location.end - last[0].offset <= _RUN_BYTES
        ):
            last.append(location)
        else:
            runs.append([location])
    return runs


def _read_run(storage: Storage, run: Sequence[Location]) -> list[tuple[Location, Frame]]:
    first, last = run[0], run[-1]
    try:
        data = memoryview(storage.read(segment_path(first.segment), first.offset, last.end - first.offset))
    except FileNotFoundError as error:
        raise DamagedLog(first.segment, first.offset, "the segment is missing") from error
    return [(location, _parse_located(data[location.offset - first.offset :], location)) for location in run]


def _parse_located(data: memoryview, location: Location) -> Frame:
    parsed = parse_frame(data[: location.length])
    if isinstance(parsed, Newer):
        raise NewerFormat(f"{location.segment} at byte {location.offset}", parsed.found)
    if isinstance(parsed, NeedMore):
        raise DamagedLog(location.segment, location.offset, f"{len(data)} bytes are there, {parsed.length} are needed")
    if isinstance(parsed, Bad):
        raise DamagedLog(location.segment, location.offset, parsed.reason)
    return parsed
