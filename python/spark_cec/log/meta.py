"""Metas: the description in each frame, one dataclass per frame kind (`FORMAT.md`, section 2, kinds)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, TypeAlias

from spark_cec.ids import StoreId

_TEXT = struct.Struct("<H")
_STORE = struct.Struct("<qi")
_SEGMENT = struct.Struct("<Iq")
_COMMIT = struct.Struct("<q16s16s12qQqqqI")
_FORECAST = struct.Struct("<dddd")
_SKETCH = struct.Struct("<q")
_ROWS = struct.Struct("<q")
_DECODED = struct.Struct("<q")
_OUTPUT = struct.Struct("<16sqiqqqq")
_LOADED = struct.Struct("<qqq")


class FrameKind(IntEnum):
    """The kind of a frame; 0 is reserved so that zeroed bytes are never a frame."""

    SEGMENT = 1
    COMMIT = 2
    OUTPUT = 3
    LOADED = 4


class CommitFlags(IntFlag):
    """Bits of `CommitMeta.flags`.

    EAGER: the commit wrote every touched window. GROUPED: several rows per window. FLUSH: the frame has all windows
    that the commit with the same checkpoint id left dirty. SKETCHED: the digest omits floating-point columns (earlier
    releases). ON_FLUSH: the commit builds on the flush of its base. NORMALIZED: the digest has floating-point columns
    as numbers, with one zero and one NaN. COUNTED: `inputs` is the number of shuffle records of the batch.
    """

    EAGER = 1
    GROUPED = 2
    FLUSH = 4
    SKETCHED = 8
    ON_FLUSH = 16
    NORMALIZED = 32
    COUNTED = 64


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """First frame of a segment: the log and writer of the segment.

    `log_id`: 32 hex digits. `wall_ms`: the time of the segment's first frame.
    """

    log_id: str
    writer_id: str
    seq: int
    wall_ms: int

    def encode(self) -> bytes:
        """The bytes of this meta; `ValueError` if the log's id is not 16 bytes long."""
        return (
            _check_id("log id", bytes.fromhex(self.log_id))
            + _encode_text(self.writer_id)
            + _SEGMENT.pack(self.seq, self.wall_ms)
        )

    @classmethod
    def decode(cls, data: bytes) -> SegmentMeta:
        """Inverse of `encode`; trailing bytes are ignored, `ValueError` if too short."""
        _require_length(data, 18)
        writer_id, at = _read_text(data, 16)
        return cls(data[:16].hex(), writer_id, *_unpack(_SEGMENT, data, at))


NO_WATERMARK_MS = -1
"""The watermark of a commit: Spark does not give state stores the watermark."""

IMPOSSIBLE = 1e10
"""No tuple, record or recovery takes this time, in us or ms; release 0.1 wrote infinite times for idle stores."""


def _read_forecast(data: bytes, at: int) -> list[float]:
    """The times; an impossible time becomes 0, for unknown."""
    return [time if 0.0 <= time < IMPOSSIBLE else 0.0 for time in _unpack(_FORECAST, data, at)]


@dataclass(frozen=True, slots=True)
class CommitMeta:
    """One store's commit of one version: the footer that a recovery plans with.

    `open_windows` is the paper's N, `dirty_from` D, `oldest_footprint` O: an eventual checkpoint never needs a frame of
    a version below O. `records` = `opened` + `checked` + `closed` = rows in the payload. `inputs` counts input tuples.
    `wall_ms` and `watermark_ms` are ms since the epoch. `elapsed_us` is in microseconds, `digest` an unsigned 64-bit
    hash. `extent` is q in records and `replay` u in input tuples, after this commit. `flags` holds `CommitFlags` bits;
    unknown ones are kept.

    The next four are the writer's measurements so far, 0 if it had none. `load_us_per_record` and `replay_us_per_tuple`
    are microseconds of a recovery per record of the extent and per input tuple of the replay. `recovery_base_ms` is the
    rest of a recovery. `recovery_estimate_ms` is the estimate of a recovery from this commit.

    `sketch`: with SKETCHED, a sum over floating-point columns. `state_rows`: state keys of the open windows, 0 if the
    frame lacks the number; see `rows`. `decoded_bytes`: the payload's rows in memory; the same.
    """

    store: StoreId
    version: int
    checkpoint_id: bytes
    base_checkpoint_id: bytes
    generation: int
    open_windows: int
    dirty_from: int
    oldest_footprint: int
    opened: int
    checked: int
    closed: int
    records: int
    inputs: int
    dirty_windows: int
    wall_ms: int
    watermark_ms: int
    digest: int = 0
    elapsed_us: int = 0
    extent: int = 0
    replay: int = 0
    flags: int = 0
    load_us_per_record: float = 0.0
    replay_us_per_tuple: float = 0.0
    recovery_base_ms: float = 0.0
    recovery_estimate_ms: float = 0.0
    sketch: int = 0
    state_rows: int = 0
    decoded_bytes: int = 0

    @property
    def rows(self) -> int | None:
        """State keys of the open windows, of which a window may have several; None if the frame lacks the number."""
        if self.state_rows or not self.open_windows:
            return self.state_rows
        return None if self.flags & CommitFlags.GROUPED else self.open_windows

    @property
    def is_flush(self) -> bool:
        """Whether this is the flush of a commit."""
        return bool(self.flags & CommitFlags.FLUSH)

    def encode(self) -> bytes:
        """The bytes of this meta; `ValueError` if an id is not 16 bytes long."""
        return _encode_store(self.store) + _COMMIT.pack(
            self.version, _check_id("checkpoint id", self.checkpoint_id),
            _check_id("base checkpoint id", self.base_checkpoint_id),
            self.generation, self.open_windows,
            self.dirty_from, self.oldest_footprint, self.opened, self.checked, self.closed, self.records, self.inputs,
            self.dirty_windows, self.wall_ms, self.watermark_ms, self.digest, self.elapsed_us, self.extent,
            self.replay, self.flags,
        ) + _FORECAST.pack(
            self.load_us_per_record, self.replay_us_per_tuple, self.recovery_base_ms, self.recovery_estimate_ms
        ) + _SKETCH.pack(self.sketch) + _ROWS.pack(self.state_rows) + _DECODED.pack(self.decoded_bytes)  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> CommitMeta:
        """Inverse of `encode`; trailing bytes are ignored, `ValueError` if too short."""
        store, at = _read_store(data)
        forecast_at = at + _COMMIT.size
        sketch_at = forecast_at + _FORECAST.size
        rows_at = sketch_at + _SKETCH.size
        decoded_at = rows_at + _ROWS.size
        # Frames of earlier releases end before the forecast, the sketch, the rows, or the decoded bytes.
        forecast = _read_forecast(data, forecast_at) if len(data) > forecast_at else ()
        sketch = _unpack(_SKETCH, data, sketch_at) if len(data) > sketch_at else ()
        rows = _unpack(_ROWS, data, rows_at) if len(data) > rows_at else ()
        decoded = _unpack(_DECODED, data, decoded_at) if len(data) > decoded_at else ()
        return cls(store, *_unpack(_COMMIT, data, at), *forecast, *sketch, *rows, *decoded)


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """Rows that one sink partition wrote in one batch; they count only if the batch's manifest names `frame_id`."""

    frame_id: bytes
    batch: int
    partition: int
    attempt: int
    generation: int
    rows: int
    wall_ms: int

    def encode(self) -> bytes:
        """The bytes of this meta; `ValueError` if the id is not 16 bytes long."""
        return _OUTPUT.pack(
            _check_id("frame id", self.frame_id),
            self.batch,
            self.partition,
            self.attempt,
            self.generation,
            self.rows,
            self.wall_ms,
        )

    @classmethod
    def decode(cls, data: bytes) -> OutputMeta:
        """Inverse of `encode`; trailing bytes are ignored, `ValueError` if too short."""
        return cls(*_unpack(_OUTPUT, data, 0))


@dataclass(frozen=True, slots=True)
class LoadedMeta:
    """A store's load at a recovery; the payload, UTF-8 JSON, describes it."""

    store: StoreId
    version: int
    generation: int
    wall_ms: int

    def encode(self) -> bytes:
        """The bytes of this meta."""
        return _encode_store(self.store) + _LOADED.pack(self.version, self.generation, self.wall_ms)

    @classmethod
    def decode(cls, data: bytes) -> LoadedMeta:
        """Inverse of `encode`; trailing bytes are ignored, `ValueError` if too short."""
        store, at = _read_store(data)
        return cls(store, *_unpack(_LOADED, data, at))


Meta: TypeAlias = "SegmentMeta | CommitMeta | OutputMeta | LoadedMeta"

_TYPES: dict[FrameKind, type[SegmentMeta] | type[CommitMeta] | type[OutputMeta] | type[LoadedMeta]] = {
    FrameKind.SEGMENT: SegmentMeta,
    FrameKind.COMMIT: CommitMeta,
    FrameKind.OUTPUT: OutputMeta,
    FrameKind.LOADED: LoadedMeta,
}
_KINDS = {kind_type: kind for kind, kind_type in _TYPES.items()}


def kind_of(meta: Meta) -> FrameKind:
    """The frame kind of this meta."""
    return _KINDS[type(meta)]


def decode_meta(kind: FrameKind, data: bytes) -> Meta:
    """The meta of a frame of this kind; `ValueError` if the bytes are too short, or a text is no UTF-8."""
    return _TYPES[kind].decode(data)


def _check_id(what: str, value: bytes) -> bytes:
    # A struct would silently pad or cut the value.
    if len(value) != 16:
        raise ValueError(f"{what} {value.hex()!r} has {len(value)} bytes, not 16; take one from `ids.new_id`")
    return value


def _require_length(data: bytes, length: int) -> None:
    if len(data) < length:
        raise ValueError(f"the meta has {len(data)} bytes where at least {length} are needed")


def _unpack(shape: struct.Struct, data: bytes, at: int) -> tuple[Any, ...]:
    _require_length(data, at + shape.size)
    return shape.unpack_from(data, at)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(f"a name of {len(data)} bytes is too long for the log: {text[:40]!r}…; at most 65535")
    return _TEXT.pack(len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _unpack(_TEXT, data, at)
    _require_length(data, at + 2 + length)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def _encode_store(store: StoreId) -> bytes:
    return _STORE.pack(store.operator, store.partition) + _encode_text(store.name)


def _read_store(data: bytes) -> tuple[StoreId, int]:
    operator, partition = _unpack(_STORE, data, 0)
    name, at = _read_text(data, _STORE.size)
    return StoreId(operator, partition, name), at
