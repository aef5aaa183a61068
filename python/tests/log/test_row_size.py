"""The size of a row by the beginning of its frame, beside the size of the decoded rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_cec.errors import DamagedLog
from spark_cec.log import row_size
from spark_cec.log.frame import FrameKind
from spark_cec.log.reader import commit_records, read_frame
from spark_cec.log.record import RecordKind, encode_commit, records_schema
from spark_cec.log.row_size import read_row_bytes
from spark_cec.log.segment import Location
from spark_cec.log.storage import Storage
from tests.log.support import commit_meta, make_writer, memory_storage

ROWS = 3000


def rows_of(window: int | None, value: int | None, grouped: bool, families: bool) -> pa.Table:
    """Records with keys and values of these lengths, None: of many lengths; every fifth has no value."""
    dice = random.Random(0)

    def column(length: int | None) -> list[bytes]:
        return [dice.randbytes(8) + b"-" * (dice.randrange(900) if length is None else length) for _ in range(ROWS)]

    columns = {
        "kind": pa.array([RecordKind.CLOSE if each % 5 == 4 else RecordKind.OPEN for each in range(ROWS)], pa.int8()),
        "window": pa.array(column(window), pa.binary()),
        "key": pa.array(column(window), pa.binary()),
        "value": pa.array([None if at % 5 == 4 else each for at, each in enumerate(column(value))], pa.binary()),
        "family": pa.array([3] * ROWS, pa.int16()),
    }
    schema = records_schema(grouped=grouped, families=families)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def put(rows: pa.Table, compression: str | None) -> tuple[Storage, Location]:
    storage = memory_storage()
    payload, flags = encode_commit(rows, compression)
    _, location = make_writer(storage, 1 << 20).append(FrameKind.COMMIT, commit_meta(), payload, flags)
    return storage, location


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize(("grouped", "families"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("window", [8, 400, None])
@pytest.mark.parametrize("value", [8, 400, None])
def test_a_part_tells_what_the_whole_has(
    window: int | None, value: int | None, grouped: bool, families: bool, compression: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    storage, location = put(rows_of(window, value, grouped, families), compression)
    whole = commit_records(read_frame(storage, location)).nbytes / ROWS
    assert read_row_bytes(storage, location) == pytest.approx(whole, rel=0.02 if location.length > 1 << 18 else 0)
    monkeypatch.setattr(row_size, "HEAD_BYTES", 24 << 10)
    # Planes have zeros for nulls, and the whole has bits for them.
    assert read_row_bytes(storage, location) == pytest.approx(whole, rel=0.02)


def test_the_first_record_batch_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(None, None, False, False)
    storage, location = put(pa.concat_tables([rows, rows, rows]), "zstd")
    whole = commit_records(read_frame(storage, location)).nbytes / ROWS / 3
    monkeypatch.setattr(row_size, "HEAD_BYTES", 24 << 10)
    assert read_row_bytes(storage, location) == pytest.approx(whole, rel=0.02)


def test_a_beginning_of_anything_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that a caller does not expect."""
    storage, location = put(rows_of(8, 400, False, False), "zstd")
    data = storage.read(f"segments/{location.segment}")
    monkeypatch.setattr(row_size, "HEAD_BYTES", 8 << 10)
    dice, errors = random.Random(0), 0
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(30):
            damaged[location.offset + dice.randrange(180, 3000)] = dice.choice([0, 255, dice.randrange(256)])
        storage.replace(f"segments/{location.segment}", bytes(damaged))
        try:
            read_row_bytes(storage, location)
        except DamagedLog:
            errors += 1
    assert errors > 100
