"""The estimate of what a rebuild takes, beside what its records take."""

from __future__ import annotations

import random

import pytest

from spark_cec.checkpoint import load_memory
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.load_memory import LEAST_BYTES, estimate_memory
from spark_cec.ids import StoreId
from spark_cec.log import row_size
from spark_cec.log.segment import segment_path
from tests.checkpoint.support import Log, Rows, Tip, record_table, request

STORE = StoreId(0, 0)


def write(log: Log, *batches: dict[bytes, Rows]) -> Tip:
    tip = Tip()
    for batch in batches:
        after, records = tip.next(batch, set())
        log.commit(request(STORE, tip, after, records, False, whole=True), record_table(False, records))
        tip = after
    return tip


def batch_of(dice: random.Random, rows: int, size: int, zeros: bool) -> dict[bytes, Rows]:
    keys = [dice.randbytes(16) for _ in range(rows)]
    return {key: {key: dice.randbytes(8) + bytes(size) if zeros else dice.randbytes(size)} for key in keys}


def estimate(log: Log, tip: Tip, negligible: int = 0) -> int:
    index = log.catalog.index
    return estimate_memory(log.storage, index, head_at(index, STORE, tip.version), negligible)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("size", [8, 200, 1000, 5000])
@pytest.mark.parametrize("batches", [(500,), (300, 1, 0, 500, 2)])
def test_an_estimate_is_three_times_the_records(size: int, zeros: bool, batches: tuple[int, ...]) -> None:
    """However well the rows compress, and whatever frames there are."""
    dice, log = random.Random(size), Log()
    tip = write(log, *(batch_of(dice, rows, size, zeros) for rows in batches))
    index = log.catalog.index
    taken = rebuild(log.storage, index, head_at(index, STORE, tip.version)).records.nbytes
    least = max(3 * taken, len(tip.state) * LEAST_BYTES)
    assert 0.95 * least <= estimate(log, tip) <= 1.5 * least


def test_a_frame_of_closes_does_not_stand_for_the_rows() -> None:
    dice, log = random.Random(0), Log()
    first = batch_of(dice, 600, 1000, zeros=True)
    tip = write(log, first, {key: {} for key in list(first)[:500]}, batch_of(dice, 3, 1000, zeros=True))
    assert estimate(log, tip) >= 3 * 600 * 1000, "the records of windows that are closed are read, too"


def test_a_small_store_costs_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    tip = write(log, batch_of(random.Random(0), 300, 40, zeros=False))
    monkeypatch.setattr(load_memory, "read_row_bytes", None)
    assert estimate(log, tip, negligible=64 << 20) >= 300 * LEAST_BYTES


def test_a_store_without_windows_takes_nothing() -> None:
    log = Log()
    assert estimate(log, write(log, {}, {})) == 0


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_a_frame_that_tells_the_stored_bytes_count(is_damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of its rows is too long, or the frame that would tell is damaged."""
    log = Log()
    tip = write(log, batch_of(random.Random(0), 200, 1000, zeros=False))
    (entry,) = log.catalog.index.commits(STORE, 0, 99)
    if is_damaged:
        path = segment_path(entry.location.segment)
        data = bytearray(log.storage.read(path))
        data[entry.location.end - 6] ^= 1
        log.storage.replace(path, bytes(data))
    else:
        monkeypatch.setattr(row_size, "HEAD_BYTES", 400)
    assert estimate(log, tip) >= 200 * 1000 * 16
