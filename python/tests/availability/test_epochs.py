"""The notes of epochs: numbers go up, and damage is named."""

from __future__ import annotations

import pytest

from spark_cec.availability.epochs import (
    Epoch,
    close_epoch,
    epoch_checkpoint,
    forget_epochs,
    list_numbers,
    newest_epoch,
    open_epoch,
)
from spark_cec.errors import AlreadyExists, DamagedLog
from tests.log.support import memory_storage


def test_an_epoch_is_open_until_it_is_closed() -> None:
    flow = memory_storage()
    assert newest_epoch(flow) is None
    first = Epoch(1, 7, 6, ("app", "web"), 1_000)
    open_epoch(flow, first)
    assert newest_epoch(flow) == first and first.is_open
    with pytest.raises(AlreadyExists):
        open_epoch(flow, first)
    closed = close_epoch(flow, first, 12, 2_000)
    assert newest_epoch(flow) == closed == Epoch(1, 7, 6, ("app", "web"), 2_000, 12) and not closed.is_open


def test_the_number_of_a_forgotten_epoch_is_not_taken_again() -> None:
    flow = memory_storage()
    for number in range(1, 12):
        open_epoch(flow, Epoch(number, 7, 7, (), 1_000))
    forget_epochs(flow, 4)
    assert list_numbers(flow) == list(range(5, 12))
    forget_epochs(flow, 11)
    assert list_numbers(flow) == [11] and (newest := newest_epoch(flow)) is not None and newest.number == 11
    flow.create("epochs/x.json", b"")
    flow.create("epochs/12", b"")
    assert list_numbers(flow) == [11]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"number":1,"crc32c":1,"format_version":1}'])
def test_a_damaged_note_is_named(content: bytes) -> None:
    flow = memory_storage()
    flow.create("epochs/1.json", content)
    with pytest.raises(DamagedLog, match=r"epochs/1\.json"):
        newest_epoch(flow)


def test_the_checkpoint_of_an_epoch_lies_below_that_of_its_flow() -> None:
    assert epoch_checkpoint("s3://bucket/shop/flows/totals/", 3) == "s3://bucket/shop/flows/totals/epochs/3"
