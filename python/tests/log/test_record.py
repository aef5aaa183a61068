"""Records as tables and payloads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_cec.errors import DamagedLog
from spark_cec.log.frame import CommitFlags, Frame, FrameKind, encode_frame, parse_frame
from spark_cec.log.reader import commit_records, payload_table
from spark_cec.log.record import (
    GROUPED_SCHEMA,
    PLAIN_SCHEMA,
    RecordKind,
    decode_records,
    decode_table,
    encode_records,
    encode_table,
    records_schema,
)
from tests.log.support import commit_meta, frame_bytes, loaded_meta, records

MANY = records(*[b"%06d" % n for n in range(5000)])


def _frame(data: bytes) -> Frame:
    frame = parse_frame(data)
    assert isinstance(frame, Frame)
    return frame


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none", None])
def test_records_round_trip(compression: str | None) -> None:
    payload = encode_records(MANY, compression)
    assert decode_records(payload).equals(MANY)
    assert decode_records(bytes(payload)).equals(MANY)
    assert (len(payload) < MANY.nbytes) == (compression in ("lz4", "zstd"))


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(Exception, match="lz4, zstd or None"):
        encode_records(MANY, "snappy")


def test_no_records_are_no_bytes() -> None:
    assert len(encode_records(records())) == 0
    assert decode_records(b"").schema == PLAIN_SCHEMA
    assert decode_records(b"", grouped=True).schema == GROUPED_SCHEMA


def test_output_without_rows_keeps_its_schema() -> None:
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    assert decode_table(encode_table(schema.empty_table())).schema == schema


def test_record_batches_and_chunked_tables() -> None:
    batch = MANY.to_batches()[0]
    assert decode_records(encode_records(batch)).equals(MANY)
    chunked = pa.concat_tables([MANY, MANY])
    assert decode_records(encode_records(chunked)).equals(chunked)


def test_schemas() -> None:
    assert records_schema().names == ["kind", "window", "value"]
    assert records_schema(grouped=True).names == ["kind", "window", "key", "value"]
    assert records_schema(families=True).names == ["kind", "window", "value", "family"]
    assert records_schema(grouped=True, families=True).names == ["kind", "window", "key", "value", "family"]
    assert records_schema().field("value").nullable
    assert 0 not in set(RecordKind)


def test_records_of_a_frame() -> None:
    data = frame_bytes(commit_meta(), bytes(encode_records(MANY)))
    assert commit_records(_frame(data)).equals(MANY)
    assert payload_table(_frame(data)).equals(MANY)


@pytest.mark.parametrize("flags", [0, CommitFlags.GROUPED, CommitFlags.GROUPED | CommitFlags.EAGER])
def test_an_empty_commit_has_the_columns_of_its_store(flags: int) -> None:
    found = commit_records(_frame(frame_bytes(commit_meta(flags=flags))))
    assert found.num_rows == 0
    assert found.schema == (GROUPED_SCHEMA if flags & CommitFlags.GROUPED else PLAIN_SCHEMA)


def test_only_commits_have_records() -> None:
    with pytest.raises(ValueError, match="COMMIT"):
        commit_records(_frame(frame_bytes(loaded_meta(), b"{}")))


@pytest.mark.parametrize("payload", [b"no arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00", bytes(64)])
def test_a_payload_that_is_no_stream_is_damage(payload: bytes) -> None:
    frame = _frame(b"".join(encode_frame(FrameKind.COMMIT, commit_meta(9).encode(), payload)))
    with pytest.raises(DamagedLog, match="version 9"):
        commit_records(frame)
    with pytest.raises(DamagedLog):
        payload_table(frame)
