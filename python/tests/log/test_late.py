"""Late rows: a rollback deletes those of the output that it takes back."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from spark_cec.log import late
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import FrameKind, encode_frame
from spark_cec.log.late import count_late, forget_late, keep_late, list_late
from spark_cec.log.storage import Storage
from tests.log.support import loaded_meta, memory_storage


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


class Watched(DelegatingStorage):
    """Notes the bytes of each read, and fails the reads if `fails`."""

    def __init__(self, inner: Storage, *, fails: bool = False) -> None:
        super().__init__(inner)
        self.reads: list[int] = []
        self._fails = fails
        self._lock = threading.Lock()

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes, or an error."""
        found = super().read(path, offset, length)
        with self._lock:
            self.reads.append(len(found))
        if self._fails:
            raise OSError(f"{path}: no answer")
        return found


def test_late_rows_are_counted_without_a_read_of_them() -> None:
    """Only rollbacks delete late rows, so there may be more than the memory has room for."""
    storage = Watched(memory_storage())
    for batch in range(5):
        keep_late(storage, "board", batch, bytes(16), pa.table({"n": range(batch * 100_000)}))
    files = storage.list("late/board")
    assert count_late(storage, "board") == (100_000 * sum(range(5)), [])
    assert len(storage.reads) == 5 and sum(storage.reads) < 50_000 < files[-1].size
    assert count_late(storage, "totals") is None


@pytest.mark.parametrize("damage", ["short", "long", "head", "kind", "empty"])
def test_late_rows_whose_object_is_damaged_hide_no_other(damage: str) -> None:
    storage = memory_storage()
    for batch in range(3):
        _keep(storage, "board", batch)
    path = list_late(storage, "board")[1]
    data = storage.read(path)
    other = b"".join(encode_frame(FrameKind.LOADED, loaded_meta().encode(), b""))
    broken = {"short": data[:-1], "long": data + b"x", "head": b"x" + data[1:], "kind": other, "empty": b""}
    storage.replace(path, broken[damage])
    found = count_late(storage, "board")
    assert found is not None
    assert found[0] == 2 and [each.segment for each in found[1]] == [path]


def test_late_rows_that_a_rollback_deletes_meanwhile_are_none() -> None:
    class Gone(Watched):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            forget_late(self.inner, 0)
            return super().read(path, offset, length)

    storage = memory_storage()
    for batch in range(3):
        _keep(storage, "board", batch)
    assert count_late(Gone(storage), "board") == (1, [])


def test_few_reads_of_late_rows_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_COUNTED_AT_ONCE", 2)
    storage = Watched(memory_storage(), fails=True)
    for batch in range(10):
        _keep(storage, "board", batch)
    with pytest.raises(OSError, match="no answer"):
        count_late(storage, "board")
    assert len(storage.reads) <= 2
