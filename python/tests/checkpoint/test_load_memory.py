"""The estimate of what a rebuild takes, beside what its records take."""

from __future__ import annotations

import random

import pytest

from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.load_memory import LEAST_BYTES, estimate_memory
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitMeta
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


def estimate(log: Log, tip: Tip) -> int:
    index = log.catalog.index
    return estimate_memory(index, head_at(index, STORE, tip.version))


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


def test_a_store_without_windows_takes_nothing() -> None:
    log = Log()
    assert estimate(log, write(log, {}, {})) == 0


def test_frames_of_earlier_releases_count_by_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = CommitMeta.encode
    monkeypatch.setattr(CommitMeta, "encode", lambda meta: encode(meta)[:-8])
    log = Log()
    tip = write(log, batch_of(random.Random(0), 200, 1000, zeros=False))
    again = Log(log.storage)
    assert [each.meta.decoded_bytes for each in again.catalog.index.commits(STORE, 0, 99)] == [0]
    assert estimate(again, tip) >= 4 * 3 * 200 * 1000
