"""The golden logs of format version 1, which never change: all are read, the newest is written too.

In `v1.cec` the metas of commits end before the forecast, in `v1-forecast.cec` before the sketch, in `v1-sketch.cec` no
records are in planes, in `v1-planes.cec` metas end before the rows, in `v1-rows.cec` no ids are in steps, and in
`v1-steps.cec` metas end before the decoded bytes: these came later.

Their payloads are not compressed, because the bytes that a compressor makes may change with its release. So
`v1-packed.cec`, whose commits are packed where they can be, is read alone.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.frame import CommitFlags, FrameFlags, FrameKind, Meta, SegmentMeta
from spark_cec.log.meta import kind_of
from spark_cec.log.reader import commit_records, payload_table, read_frame
from spark_cec.log.record import RecordKind, encode_commit, encode_table, records_schema
from spark_cec.log.scan import FoundFrame, scan
from spark_cec.log.segment import segment_path
from tests.log.support import (
    LOG_ID,
    SEGMENT,
    STORE,
    WRITER_ID,
    checkpoint_id,
    commit_meta,
    loaded_meta,
    make_writer,
    memory_storage,
    output_meta,
    put_segment,
    records,
)

FIRST = Path(__file__).parents[1] / "golden" / "v1.cec"
SECOND = FIRST.with_name("v1-forecast.cec")
THIRD = FIRST.with_name("v1-sketch.cec")
FOURTH = FIRST.with_name("v1-planes.cec")
FIFTH = FIRST.with_name("v1-rows.cec")
SIXTH = FIRST.with_name("v1-steps.cec")
GOLDEN = FIRST.with_name("v1-decoded.cec")
PACKED = FIRST.with_name("v1-packed.cec")
JOINED = StoreId(1, 7, "left-keyToNumValues")


def _grouped() -> pa.Table:
    """Two keys of one session window, in a store with column families."""
    columns = {
        "kind": pa.array([RecordKind.CHECK] * 2, pa.int8()),
        "window": pa.array([b"user"] * 2, pa.binary()),
        "key": pa.array([b"user-1", b"user-2"], pa.binary()),
        "value": pa.array([b"\x00\x01", b""], pa.binary()),
        "family": pa.array([0, 3], pa.int16()),
    }
    return pa.table(columns, schema=records_schema(grouped=True, families=True))


def _turned() -> pa.Table:
    """Enough rows of one length for planes; every fourth closes, and has no value."""
    closes = [place % 4 == 3 for place in range(200)]
    columns = {
        "kind": pa.array([RecordKind.CLOSE if each else RecordKind.OPEN for each in closes], pa.int8()),
        "window": pa.array([place.to_bytes(8, "little") for place in range(0, 2000, 10)], pa.binary()),
        "value": pa.array([None if each else b"\x00\x00\x01" for each in closes], pa.binary()),
    }
    return pa.table(columns, schema=records_schema())


def _output() -> pa.Table:
    return pa.table({"word": pa.array(["a", None, "ü"]), "count": pa.array([1, 2, 3], pa.int64())})


LAST = commit_meta(
    9, store=JOINED, checkpoint_id=checkpoint_id(9, 1), base_checkpoint_id=checkpoint_id(8, 1), generation=2,
    open_windows=4, dirty_from=6, oldest_footprint=2, opened=0, checked=2, records=2, inputs=2**40, dirty_windows=3,
    wall_ms=1_700_000_000_123, watermark_ms=-1, digest=2**64 - 2, elapsed_us=1234, extent=17, replay=99,
    flags=CommitFlags.EAGER | CommitFlags.GROUPED,
)  # fmt: skip
FRAMES: list[tuple[Meta, pa.Table | bytes]] = [
    (commit_meta(1, base_checkpoint_id=NO_CHECKPOINT, opened=2, records=2), records(b"\x01", b"two")),
    (commit_meta(2, opened=0, checked=1), records(b"two", kind=RecordKind.CHECK)),
    (commit_meta(3, opened=0, records=0), records()),
    (commit_meta(4, opened=0, closed=1), records(b"\x01", kind=RecordKind.CLOSE)),
    (output_meta(77, batch=3, partition=5, attempt=1, generation=2), _output()),
    (loaded_meta(store=STORE, version=4, generation=2, wall_ms=1_700_000_000_000), b'{"held":0}'),
    (LAST, _grouped()),
]
FRAMES_SECOND: list[tuple[Meta, pa.Table | bytes]] = [
    *FRAMES,
    (
        commit_meta(
            5, opened=0, records=0, load_us_per_record=1.5, replay_us_per_tuple=20.25, recovery_base_ms=1234.5,
            recovery_estimate_ms=2345.75,
        ),
        records(),
    ),
]  # fmt: skip
FLUSH = commit_meta(
    5, opened=0, checked=1, records=1, inputs=0, dirty_from=5, flags=CommitFlags.FLUSH | CommitFlags.SKETCHED,
    sketch=-(2**63) + 5,
)  # fmt: skip
FRAMES_THIRD = [*FRAMES_SECOND, (FLUSH, records(b"two", kind=RecordKind.CHECK))]
FRAMES_FOURTH = [*FRAMES_THIRD, (commit_meta(6, opened=150, closed=50, records=200), _turned())]
FRAMES_FIFTH = [*FRAMES_FOURTH, (commit_meta(7, opened=0, records=0, state_rows=11), records())]
FRAMES_SIXTH = [*FRAMES_FIFTH, (commit_meta(8, opened=150, closed=50, records=200), _turned())]
FRAMES_NOW = [*FRAMES_SIXTH, (commit_meta(9, opened=0, records=0, decoded_bytes=2**40), records())]


def _payload(
    meta: Meta, rows: pa.Table | bytes, compression: str | None
) -> tuple[bytes | memoryview, FrameFlags]:
    if isinstance(rows, bytes):
        return rows, FrameFlags.PLAIN
    if kind_of(meta) is FrameKind.COMMIT:
        return encode_commit(rows, compression)
    return encode_table(rows, compression), FrameFlags.PLAIN


def write_golden(compression: str | None = None) -> bytes:
    """The bytes of the golden log, as this release writes them."""
    storage = memory_storage()
    writer = make_writer(storage)
    for meta, rows in FRAMES_NOW:
        writer.append(kind_of(meta), meta, *_payload(meta, rows, compression))
    return storage.read(segment_path(SEGMENT))


def test_the_same_frames_are_the_same_bytes() -> None:
    assert write_golden() == GOLDEN.read_bytes()


@pytest.mark.parametrize(
    ("golden", "written"),
    [
        (FIRST, FRAMES), (SECOND, FRAMES_SECOND), (THIRD, FRAMES_THIRD), (FOURTH, FRAMES_FOURTH),
        (FIFTH, FRAMES_FIFTH), (SIXTH, FRAMES_SIXTH), (GOLDEN, FRAMES_NOW), (PACKED, FRAMES_SIXTH),
    ],
)
@pytest.mark.parametrize("headers_only", [True, False])
def test_the_golden_log_is_read(headers_only: bool, golden: Path, written: list[tuple[Meta, pa.Table | bytes]]) -> None:
    storage = memory_storage()
    put_segment(storage, golden.read_bytes())
    found = list(scan(storage, SEGMENT, headers_only=headers_only))
    assert all(isinstance(item, FoundFrame) for item in found)
    frames = [read_frame(storage, item.location) for item in found if isinstance(item, FoundFrame)]
    assert [frame.meta for frame in frames] == [SegmentMeta(LOG_ID, WRITER_ID, 0, 7), *(meta for meta, _ in written)]
    for frame, (meta, rows) in zip(frames[1:], written, strict=True):
        if isinstance(rows, bytes):
            assert frame.payload == rows
        else:
            assert (commit_records(frame) if kind_of(meta) is FrameKind.COMMIT else payload_table(frame)).equals(rows)


def test_the_golden_log_has_every_kind() -> None:
    assert {kind_of(meta) for meta, _ in FRAMES} | {FrameKind.SEGMENT} == set(FrameKind)
    tables = [rows for meta, rows in FRAMES if kind_of(meta) is FrameKind.COMMIT and not isinstance(rows, bytes)]
    assert {kind for table in tables for kind in table["kind"].to_pylist()} == set(RecordKind)
