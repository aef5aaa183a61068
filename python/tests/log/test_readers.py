"""What streams say of how far they are, and what is kept for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import DamagedLog
from spark_cec.log.readers import begin_reader, note_reader, read_reader, slowest_reader


def test_a_reader_never_moves_back(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert read_reader(storage, "alerts") == -1
    for batch in (4, 2, 4):
        note_reader(storage, "alerts", batch)
        assert read_reader(storage, "alerts") == 4
    note_reader(storage, "alerts", 5)
    assert read_reader(storage, "alerts") == 5


def test_a_reader_that_begins_anew_takes_nothing_over(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    note_reader(storage, "alerts", 990)
    begin_reader(storage, "alerts", 970)
    assert slowest_reader(storage, ["alerts"]) == 971


def test_all_is_kept_for_a_reader_that_has_not_begun(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    note_reader(storage, "fast", 9)
    note_reader(storage, "slow", 3)
    assert slowest_reader(storage, ["fast", "slow"]) == 4
    assert slowest_reader(storage, ["fast", "slow", "new"]) == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"batch": null}', b'{"batch": "x"}'])
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    storage = open_storage(str(tmp_path))
    note_reader(storage, "alerts", 1)
    storage.replace("readers/alerts.json", content)
    with pytest.raises(DamagedLog, match=r"readers/alerts\.json.*delete it"):
        slowest_reader(storage, ["alerts"])
