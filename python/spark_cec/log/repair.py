"""Repair: the only way in which bytes leave a segment. It is explicit, and saves the bytes that it removes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from spark_cec.errors import AlreadyExists, TransientError, UnsuitableCheckpoint
from spark_cec.ids import new_writer_id
from spark_cec.log.bundles import encode_bundle
from spark_cec.log.frame import FrameKind, Location
from spark_cec.log.meta import Meta, SegmentMeta, decode_meta
from spark_cec.log.reader import SegmentReport, verify
from spark_cec.log.scan import Damage, FoundFrame, scan_bytes
from spark_cec.log.segment import SegmentName, bundle_name, is_bundle, segment_path
from spark_cec.log.storage import Storage

BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Removed:
    """Damaged bytes, and the file below the log's home that has them now (or would have, in a dry run)."""

    damage: Damage
    kept_as: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The bytes that a repair removed, or in a dry run would remove."""

    dry_run: bool
    removed: tuple[Removed, ...]

    @property
    def bytes_removed(self) -> int:
        """Bytes removed from segments."""
        return sum(removed.damage.bytes_lost for removed in self.removed)

    @property
    def has_bundles(self) -> bool:
        """Whether a bundle was damaged, of whose segments another one was made."""
        return any(is_bundle(removed.damage.segment) for removed in self.removed)


def repair(storage: Storage, dry_run: bool, log_id: str | None = None) -> RepairReport:
    """Finds damaged bytes and removes them, or with `dry_run` finds them only. Errors as of the two steps."""
    damaged = find_damaged(storage, log_id)
    return plan_repair(damaged) if dry_run else remove_damage(storage, damaged)


def find_damaged(storage: Storage, log_id: str | None = None) -> list[SegmentReport]:
    """The segments with damage, torn tails included; reads every byte. With the id of the log, also those of others.

    Errors: `NewerFormat`. `UnsuitableCheckpoint` if every segment belongs to another log: then the id is wrong.
    """
    reports = verify(storage, log_id).segments
    others = [report.other_log for report in reports if report.other_log is not None]
    if others and not any(report.frames and report.other_log is None for report in reports):
        raise UnsuitableCheckpoint(
            f"{storage.url}: this is log {log_id}, but every segment belongs to log {others[0]}: bring the segments of "
            f"this log back; or, if log.json is of another log, delete log.json, and repair again"
        )
    return [report for report in reports if report.damages]


def plan_repair(damaged: Sequence[SegmentReport]) -> RepairReport:
    """The bytes that `remove_damage` would remove."""
    return RepairReport(True, tuple(Removed(each, _broken_path(each)) for report in damaged for each in report.damages))


def remove_damage(storage: Storage, damaged: Sequence[SegmentReport]) -> RepairReport:
    """Removes damaged bytes from the segments. No query may write the log meanwhile.

    For each segment with damage:

    1. Copy each damaged range to `broken/<segment>-<offset>`; of a segment of another log all bytes.
    2. Replace the segment, atomically, by its sound bytes. Of a bundle whose head is damaged, make another one of the
       segments that can be found in it, and delete the bundle.

    A crash in between leaves the segment unchanged. Sound segments are not touched. Indexes notice, and fill anew.
    Errors: `TransientError` if a segment grew meanwhile.
    """
    return RepairReport(False, tuple(each for report in damaged for each in _repair_segment(storage, report)))


def _repair_segment(storage: Storage, report: SegmentReport) -> list[Removed]:
    path = segment_path(report.segment)
    data = memoryview(storage.read(path, 0, report.size))  # of a bundle, too: a view of bundles passes its name on
    removed = [
        Removed(damage, _save_broken(storage, damage, data[damage.offset : damage.offset + damage.bytes_lost]))
        for damage in report.damages
    ]
    if storage.size(path) != report.size:
        raise _make_growth_error(report)
    if is_bundle(report.segment):
        _bundle_anew(storage, report.segment, bytes(data))
    else:
        _replace_segment(storage, report, _remove_damage(data, report))
    return removed


def _replace_segment(storage: Storage, report: SegmentReport, sound: bytes) -> None:
    """Replaces the segment by its sound bytes, unless it grows meanwhile: then it is as it was, and `TransientError`.

    A writer that appends later sees that its file has no name any more, and appends the frame to another one. So the
    replaced file has every frame that was acknowledged.
    """
    path = segment_path(report.segment)
    place = storage.local_path(path)
    with ExitStack() as opened:
        replaced: IO[bytes] | None = None
        if place is not None:
            with suppress(FileNotFoundError):  # a bundle has it
                replaced = opened.enter_context(Path(place).open("rb"))
        storage.replace(path, sound)
        if replaced is not None and os.fstat(replaced.fileno()).st_size != report.size:
            storage.replace(path, replaced.read())
            raise _make_growth_error(report)


def _make_growth_error(report: SegmentReport) -> TransientError:
    return TransientError(f"segment {report.segment} grew while it was repaired: stop the query, then repair again")


def _bundle_anew(storage: Storage, bundle: str, data: bytes) -> None:
    """Makes a bundle of the segments that another one has, whose head is damaged, and deletes that one.

    A segment begins with its SEGMENT frame, and ends before the next one, or before damage: what follows damage may be
    of another segment.
    """
    found: dict[str, list[Location]] = {}
    frames: list[Location] | None = None
    for item in scan_bytes(bundle, data):
        meta = _decode(item) if isinstance(item, FoundFrame) else None
        if not isinstance(item, FoundFrame) or (meta is None and item.header.kind is FrameKind.SEGMENT):
            frames = None
            continue
        if isinstance(meta, SegmentMeta):
            frames = found.setdefault(str(SegmentName(meta.writer_id, meta.seq)), [])
        if frames is not None:
            frames.append(item.location)
    segments = {name: data[places[0].offset : places[-1].end] for name, places in found.items()}
    if segments:
        anew = bundle_name(new_writer_id(int(time.time() * 1000)))
        storage.create(segment_path(anew), encode_bundle(segments))
    storage.delete(segment_path(bundle))


def _decode(frame: FoundFrame) -> Meta | None:
    """The meta of a frame; None if it cannot be decoded. The next repair takes such a frame out of its segment."""
    with suppress(ValueError):
        return decode_meta(frame.header.kind, frame.header.meta)
    return None


def _remove_damage(data: memoryview, report: SegmentReport) -> bytes:
    pieces: list[memoryview] = []
    start = 0
    for damage in report.damages:
        pieces.append(data[start : damage.offset])
        start = damage.offset + damage.bytes_lost
    return b"".join([*pieces, data[start:]])


def _broken_path(damage: Damage) -> str:
    return f"{BROKEN}/{damage.segment}-{damage.offset}"


def _save_broken(storage: Storage, damage: Damage, data: memoryview) -> str:
    """Saves the bytes. An interrupted repair may have saved the same bytes, an earlier one others."""
    for attempt in count():
        path = f"{_broken_path(damage)}{f'.{attempt}' if attempt else ''}"
        try:
            storage.create(path, data)
        except AlreadyExists:
            if storage.read(path) != data:
                continue
        return path
    raise AssertionError("unreachable: numbers do not end")
