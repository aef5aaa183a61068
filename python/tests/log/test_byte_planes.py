"""Byte planes: what comes back is what went in, to the schema."""

from __future__ import annotations

from random import Random
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.errors import DamagedLog
from spark_cec.log import record
from spark_cec.log.byte_planes import LEAST_ROWS, MOST_BYTES, from_planes, sort_order, to_planes, varying_words
from spark_cec.log.frame import Frame, FrameFlags, Newer, encode_frame, parse_frame
from spark_cec.log.meta import FrameKind
from spark_cec.log.reader import commit_records
from spark_cec.log.record import decode_records, encode_commit, encode_records, encode_table, records_schema
from tests.log.support import commit_meta


def unsafe_rows(*words: np.ndarray) -> pa.Array:
    """Spark's rows of whole numbers: a word for nulls, then one for each number."""
    count = len(words[0])
    matrix = np.zeros((count, 1 + len(words)), dtype=np.int64)
    matrix[:, 1:] = np.stack(words, axis=1)
    return pa.array([row.tobytes() for row in matrix], pa.binary())


def commit(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    keys, sums = rng.choice(10 * count, count, replace=False), rng.integers(-5, 10_000, count)
    kinds = pa.array(np.full(count, 2, dtype=np.int8))
    return pa.table([kinds, unsafe_rows(keys), unsafe_rows(np.arange(count) % 7, sums)], schema=records_schema())


def by_window(rows: pa.Table) -> pa.Table:
    """In the order of the windows' ids as little-endian words, those of one window as they were."""
    ids = rows["window"].to_pylist()
    every = [[int.from_bytes(each[i : i + 8], "little") for i in range(0, len(each), 8)] for each in ids]
    vary = [i for i in range(len(every[0])) if len({words[i] for words in every}) > 1][:4]
    words = [[each[i] for i in vary] for each in every]
    return rows.take(sorted(range(len(ids)), key=words.__getitem__))


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize("count", [LEAST_ROWS, 1_000, 20_000])
def test_rows_of_state_take_less_room(count: int, compression: str) -> None:
    rows = commit(count, seed=count)
    payload, flags = encode_commit(rows, compression)
    packed = FrameFlags.PACKED if count <= 1_000 and compression != "none" else FrameFlags.PLAIN
    assert flags == FrameFlags.PLANES | FrameFlags.STEPS | packed
    found = decode_records(payload, flags=flags)
    assert found.equals(by_window(rows))
    assert found.schema.equals(rows.schema)
    assert found.combine_chunks().validate(full=True) is None
    least = {"lz4": 3.0, "zstd": 1.5, "none": 3.0}[compression] if count > 500 else 1.0
    assert len(payload) < len(encode_records(rows, compression)) / least


def test_few_rows_and_rows_of_several_lengths_stay_as_they_are() -> None:
    few = commit(LEAST_ROWS - 1, seed=1)
    assert encode_commit(few, "none") == (encode_records(few, "none"), FrameFlags.PLAIN)
    packed, flags = encode_commit(few)
    assert flags is FrameFlags.PACKED
    assert decode_records(packed, flags=flags).equals(few)
    uneven = pa.array([b"x" * (i % 9) for i in range(100)], pa.binary())
    long = pa.array([b"x" * (MOST_BYTES + 1)] * 100, pa.binary())
    for column in (uneven, long, pa.array([b""] * 100, pa.binary())):
        assert to_planes(pa.table({"window": column})) is None
    assert encode_commit(None) == (memoryview(b""), FrameFlags.PLAIN)


def _binary(width: int, nullable: bool) -> st.SearchStrategy[bytes | None]:
    values = st.binary(min_size=width, max_size=width) | st.just(bytes(width))
    return values | st.none() if nullable else values


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Grouped records of any widths, in chunks and slices, with nulls anywhere."""
    count = draw(st.integers(LEAST_ROWS, LEAST_ROWS + 20))
    columns = {"kind": pa.chunked_array([pa.array(np.arange(count) % 3 + 1, pa.int8())])}
    for name in ("window", "key", "value"):
        width = draw(st.sampled_from([None, 0, 1, 8, 16, MOST_BYTES]))
        one = st.binary(max_size=5) if width is None else _binary(width, nullable=name == "value")
        values = draw(st.lists(one, min_size=count, max_size=count))
        cut = draw(st.integers(0, count))
        padded = pa.array([b"padding", *values, None], pa.binary())
        columns[name] = pa.chunked_array([padded.slice(1, cut), padded.slice(1 + cut, count - cut)], pa.binary())
    return pa.table(columns, schema=records_schema(grouped=True))


@given(tables())
def test_what_comes_back_is_what_went_in(rows: pa.Table) -> None:
    planes = to_planes(rows)
    if planes is None:
        packed, flags = encode_commit(rows)
        assert decode_records(packed, grouped=True, flags=flags).equals(rows)
        return
    assert not {"window", "key", "value"} & set(planes.column_names) or planes.num_columns > rows.num_columns - 3
    found = from_planes(planes)
    found.validate(full=True)
    assert found.equals(rows)
    assert found.schema.equals(rows.schema)
    payload, flags = encode_commit(rows)
    in_order = len({len(each) for each in rows["window"].to_pylist()}) == 1 and len(rows["window"][0].as_py()) % 8 == 0
    assert decode_records(payload, grouped=True, flags=flags).equals(by_window(rows) if in_order else rows)


@given(st.lists(st.integers(0, 9) | st.integers(0, 1 << 62) | st.integers((1 << 64) - 9, (1 << 64) - 1), min_size=2))
def test_the_order_of_words_is_stable_however_far_apart_they_are(words: list[int]) -> None:
    order = sort_order(pa.chunked_array([pa.array([word.to_bytes(8, "little") for word in words], pa.binary())]))
    if len(set(words)) == 1:
        assert order is None
    else:
        assert order is not None
        assert order.tolist() == sorted(range(len(words)), key=words.__getitem__)


@given(tables(), st.randoms(use_true_random=False))
def test_any_order_and_any_words_come_back_from_steps(rows: pa.Table, random: Random) -> None:
    """Differences are taken modulo 2^64, so that it does not matter whether words ascend."""
    order = np.array(random.sample(range(rows.num_rows), rows.num_rows))
    for stepped in ("window", "key"):
        planes = to_planes(rows, order, stepped if varying_words(rows[stepped]) is not None else None)
        if planes is not None:
            found = from_planes(planes, stepped if varying_words(rows[stepped]) is not None else None)
            found.validate(full=True)
            assert found.equals(rows.take(order))


def test_windows_in_order_and_in_steps_take_less_room() -> None:
    """As a commit of slow windows has them: few keys of many, which come in the order of a hash."""
    rows, planes = commit(6_000, seed=9), to_planes(commit(6_000, seed=9))
    ordered = to_planes(rows, sort_order(rows["window"]))
    assert planes is not None
    assert ordered is not None
    assert len(encode_table(ordered)) < 0.9 * len(encode_table(planes))
    assert len(encode_commit(rows)[0]) < 0.9 * len(encode_table(ordered))


@pytest.mark.parametrize("count", [10, LEAST_ROWS, 100, 500])
def test_what_is_small_takes_less_room_as_one(count: int) -> None:
    rows = commit(count, seed=count)
    payload, flags = encode_commit(rows)
    with mock.patch.object(record, "_PACKED_BYTES", 0):
        by_column, _ = encode_commit(rows)
    assert flags & FrameFlags.PACKED
    assert len(payload) < (0.7 if count <= 100 else 0.9) * len(by_column)


def test_a_packed_payload_that_says_another_length_is_damage() -> None:
    payload, flags = encode_commit(commit(200, seed=4))
    assert flags & FrameFlags.PACKED
    length = int.from_bytes(payload[:4], "little")
    others = [(length + step).to_bytes(4, "little") + payload[4:] for step in (-length, -1, 1, 2**32 - 1 - length)]
    for wrong in (b"\0\0", bytes(payload[:4]), bytes(payload[:-1]), bytes(payload) + b"\0", *others):
        frame = parse_frame(b"".join(encode_frame(FrameKind.COMMIT, commit_meta().encode(), wrong, flags)))
        assert isinstance(frame, Frame)
        with pytest.raises(DamagedLog, match="version"):
            commit_records(frame)


def test_steps_of_what_has_no_words_are_damage() -> None:
    uneven = pa.table({"window": pa.array([b"123"] * 99), "value": pa.array([b"12345678"] * 99)})
    planes = to_planes(uneven)
    assert planes is not None
    with pytest.raises(ValueError, match="3 bytes have no words"):
        from_planes(planes, "window")
    with pytest.raises(ValueError, match="is not described"):
        from_planes(planes, "key")
    with pytest.raises(ValueError, match="in no planes"):
        decode_records(encode_table(uneven), flags=FrameFlags.STEPS)


def test_very_many_rows_stay_in_the_order_and_in_the_pieces_that_they_came_in() -> None:
    """A column of 2 GiB has no room in one piece, which an order would make of it."""
    rows = pa.concat_tables([commit(1_500, seed=seed) for seed in (1, 2)])
    with mock.patch.object(record, "_MOST_ORDERED_BYTES", 1):
        payload, flags = encode_commit(rows)
    assert flags is FrameFlags.PLANES
    assert decode_records(payload, flags=flags).equals(rows)
    with pa.ipc.open_stream(pa.py_buffer(payload)) as stream:
        assert [batch.num_rows for batch in stream] == [1_500, 1_500]


def test_plain_and_turned_records_go_together() -> None:
    """A rebuild puts frames of both kinds into one table."""
    turned = [encode_commit(commit(count, seed=2)) for count in (3, 500)]
    both = [decode_records(payload, flags=flags) for payload, flags in turned]
    assert pa.concat_tables(both).num_rows == 503


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"{",
        b'[["window", 8]]',
        b'[["window", 16, false], ["value", 24, true]]',
        b'[["windows", 0, false]]',
        b'[["value", "x", true]]',
        b"7",
    ],
)
def test_planes_that_are_not_described_well_are_damage(wrong: bytes | None) -> None:
    planes = to_planes(commit(200, seed=4))
    assert planes is not None
    payload = encode_table(planes.replace_schema_metadata({b"cec.planes": wrong} if wrong else None))
    frame = parse_frame(b"".join(encode_frame(FrameKind.COMMIT, commit_meta().encode(), payload, FrameFlags.PLANES)))
    assert isinstance(frame, Frame)
    with pytest.raises(DamagedLog, match="version"):
        commit_records(frame)


def test_planes_of_another_kind_or_with_nulls_are_damage() -> None:
    planes = to_planes(commit(200, seed=5))
    assert planes is not None
    place = planes.column_names.index("window.9")
    for wrong in (pa.array(np.zeros(200, dtype=np.int16)), pa.array([None] * 200, pa.uint8())):
        with pytest.raises(ValueError, match=r"plane window\.9 is"):
            from_planes(planes.set_column(place, pa.field("window.9", wrong.type), wrong))


def test_an_older_release_says_that_the_frame_is_newer() -> None:
    payload, flags = encode_commit(commit(200, seed=3))
    data = b"".join(encode_frame(FrameKind.COMMIT, commit_meta().encode(), payload, flags))
    assert data[11] == 7, "format 1 has 0 there, and an older reader stops at anything else"
    found = parse_frame(data)
    assert not isinstance(found, Newer)
    for kind, wrong in ((FrameKind.OUTPUT, 1), (FrameKind.OUTPUT, 4), (FrameKind.COMMIT, 8), (FrameKind.COMMIT, 9)):
        newer = parse_frame(b"".join(encode_frame(kind, commit_meta().encode(), payload, FrameFlags(wrong))))
        assert newer == Newer(f"frame flags {wrong:#04x}")
