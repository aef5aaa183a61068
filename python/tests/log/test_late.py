"""Late rows: those of output that was taken back are no rows any more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_cec.log.late import keep_late, list_late
from spark_cec.log.manifest import Manifest, manifest_path, publish, restore_retirement, take_back
from spark_cec.log.storage import Storage
from tests.log.support import memory_storage

READER = "totals"


def _publish(storage: Storage, batch: int, frame: int, generation: int) -> None:
    publish(storage, Manifest(batch, (_frame(frame).hex(),), 1, "{}", False, generation, 7, ()))


def _frame(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _keep(storage: Storage, batch: int, frame: int) -> str:
    keep_late(storage, READER, batch, _frame(frame), pa.table({"n": [frame]}))
    return f"late/{READER}/{batch:020d}-{_frame(frame).hex()}.late"


@pytest.fixture
def storage() -> Storage:
    """A log whose batches 2 and 3 were taken back, and of which 2 was written anew."""
    made = memory_storage()
    for batch in range(4):
        _publish(made, batch, batch, generation=1)
    take_back(made, 1, 2)
    _publish(made, 2, 12, generation=2)
    return made


def test_rows_of_output_that_was_taken_back_are_left_out(storage: Storage) -> None:
    kept = [_keep(storage, 0, 0), _keep(storage, 1, 1)]
    _keep(storage, 2, 2)
    anew = _keep(storage, 2, 12)
    _keep(storage, 3, 3)
    assert list_late(storage, READER) == [*kept, anew]


def test_rows_of_output_that_was_let_go_or_is_damaged_count(storage: Storage) -> None:
    old, damaged = _keep(storage, 2, 12), _keep(storage, 3, 3)
    storage.delete(manifest_path(2))
    restore_retirement(storage, 3)
    storage.replace(manifest_path(3), b"rubbish")
    assert list_late(storage, READER) == [old, damaged]
