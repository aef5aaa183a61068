"""Late rows: a rollback deletes those of the output that it takes back."""

from __future__ import annotations

import pyarrow as pa

from spark_cec.log.late import forget_late, keep_late, list_late
from spark_cec.log.storage import Storage
from tests.log.support import memory_storage


def _keep(storage: Storage, reader: str, batch: int) -> str:
    if not storage.exists(f"readers/{reader}.json"):
        storage.create(f"readers/{reader}.json", b"{}")
    keep_late(storage, reader, batch, bytes(16), pa.table({"n": [batch]}))
    return f"late/{reader}/{batch:020d}-{bytes(16).hex()}.late"


def test_a_rollback_deletes_the_late_rows_of_what_it_takes_back() -> None:
    storage = memory_storage()
    kept = {reader: [_keep(storage, reader, batch) for batch in range(5)] for reader in ("board", "totals")}
    forget_late(storage, 2)
    forget_late(storage, 2)
    assert {reader: list_late(storage, reader) for reader in kept} == {name: each[:3] for name, each in kept.items()}
    forget_late(storage, -1)
    assert not any(list_late(storage, reader) for reader in kept)
