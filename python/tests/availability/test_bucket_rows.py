"""The rows of a bucket range, also of columns whose type pyarrow has no class for: Spark's INTERVAL YEAR TO MONTH."""

from __future__ import annotations

import ctypes

import numpy as np
import pyarrow as pa
import pytest

from spark_cec.availability import bucket_rows
from spark_cec.availability.bucket_rows import sort_by_time, take_range, take_rows

TIMES_US = [4_000, 1_000, None, 3_000, 2_000]
MONTHS = [12, None, 1, -3, 7]


class _Schema(ctypes.Structure):
    """The head of a schema in Arrow's C interface."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_ARRAY_BYTES = 80


@pytest.fixture
def rows() -> pa.Table:
    """Times and months, as the JVM writes them: 32-bit numbers with the type of intervals."""
    times = pa.array(TIMES_US, pa.timestamp("us", "UTC"))
    numbers = pa.record_batch({"time": times, "months": pa.array(MONTHS, pa.int32())})
    schema, array = _Schema(), (ctypes.c_byte * _ARRAY_BYTES)()
    numbers._export_to_c(ctypes.addressof(array), ctypes.addressof(schema))
    schema.children[1].contents.format = b"tiM"
    batch = pa.RecordBatch._import_from_c(ctypes.addressof(array), ctypes.addressof(schema))
    table = pa.Table.from_batches([batch])
    assert str(table.schema.field("months").type) == "month_interval"
    return table


def rows_at(rows: pa.Table, places: list[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("replicated", [True, False])
def test_a_range_of_rows_with_months(fresh: bool, replicated: bool, rows: pa.Table) -> None:
    due, late = take_range(rows, "time", 2, 4, fresh=fresh, replicated=replicated)
    assert due.equals(rows_at(rows, [2, 3, 4] if fresh and not replicated else [3, 4]))
    wanted = ([1, 2] if replicated else [1]) if fresh else []
    assert late.schema == rows.schema and late.equals(rows_at(rows, wanted))


@pytest.mark.parametrize("fresh", [True, False])
def test_rows_with_months_and_without_a_time(fresh: bool, rows: pa.Table) -> None:
    due, late = take_range(rows, None, 2, 4, fresh=fresh)
    assert due.num_rows == (rows.num_rows if fresh else 0) and late.num_rows == 0
    assert due.schema == late.schema == rows.schema


def test_rows_with_months_are_sorted_by_time(rows: pa.Table) -> None:
    assert sort_by_time(rows, "time").equals(rows_at(rows, [2, 1, 4, 3, 0]))


def test_rows_are_taken_out_of_more_than_two_gib_of_text() -> None:
    """The chunks share their bytes. One array of 32-bit offsets has no room for all of them."""
    chunk = pa.array([letter * (10 << 20) for letter in "abcdefghij"])
    rows = pa.table({"text": pa.chunked_array([chunk] * 21), "number": pa.array(range(210))})
    assert rows.nbytes > 1 << 31
    taken = take_rows(rows, np.array([201, 3, 100]))
    assert taken["number"].to_pylist() == [201, 3, 100]
    assert [text.as_py()[0] for text in taken["text"]] == ["b", "d", "a"]


@pytest.mark.parametrize("most", [0, 100, 2_000])
def test_rows_sorted_in_parts_are_as_if_sorted_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = pa.array(np.random.default_rng(most).integers(0, 50, 300) * 1000, pa.timestamp("us", "UTC"))
    rows = pa.table({"time": times, "text": [str(each) * (each % 7) for each in range(300)], "number": range(300)})
    wanted = sort_by_time(rows, "time")
    monkeypatch.setattr(bucket_rows, "_TAKE_BYTES", most)
    assert sort_by_time(rows, "time").equals(wanted)
