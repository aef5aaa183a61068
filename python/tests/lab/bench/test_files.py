"""File accounting: what was written between two looks at a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_cec_lab.bench.files import Written, look, of_the_state, written


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name, content in (("state/0/0/1.delta", "12345"), ("cec/log/segment", "abc"), ("offsets/0", "o")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    return tmp_path


def test_a_look_has_every_file_by_its_relative_path(checkpoint: Path) -> None:
    assert {path: found.size for path, found in look(checkpoint).items()} == {
        "state/0/0/1.delta": 5, "cec/log/segment": 3, "offsets/0": 1,
    }  # fmt: skip


def test_nothing_written(checkpoint: Path) -> None:
    assert written(look(checkpoint), look(checkpoint)) == Written(0, 0)


def test_a_place_that_is_not_there_yet_is_empty(checkpoint: Path) -> None:
    assert look(checkpoint / "later") == {}
    assert written({}, look(checkpoint)) == Written(3, 9)


def test_created_grown_shrunk_removed(checkpoint: Path) -> None:
    before = look(checkpoint)
    (checkpoint / "state/0/0/2.delta").write_text("1234567")
    with (checkpoint / "cec/log/segment").open("a") as file:
        file.write("de")
    os.truncate(checkpoint / "state/0/0/1.delta", 1)
    (checkpoint / "offsets/0").unlink()
    assert written(before, look(checkpoint)) == Written(files=1, bytes=7 + 2)


def test_a_file_replaced_under_its_name_is_new_and_counts_whole(checkpoint: Path) -> None:
    before = look(checkpoint)
    temporary = checkpoint / "temporary"
    temporary.write_text("1234")
    temporary.rename(checkpoint / "state/0/0/1.delta")
    assert written(before, look(checkpoint)) == Written(files=1, bytes=4)


def test_looks_add_up_to_files_that_were_removed_in_between(checkpoint: Path) -> None:
    first = look(checkpoint)
    (checkpoint / "state/0/0/2.delta").write_text("22")
    second = look(checkpoint)
    (checkpoint / "state/0/0/2.delta").unlink()
    (checkpoint / "state/0/0/3.delta").write_text("333")
    assert written(first, second) + written(second, look(checkpoint)) == Written(files=2, bytes=5)


def test_the_state_is_all_but_sparks_own_logs(checkpoint: Path) -> None:
    for name in ("commits/0", "metadata", "sources/0/0"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("x")
    (checkpoint / "state/offsets").write_text("a state file with a name of Spark's")
    assert sorted(of_the_state(look(checkpoint))) == ["cec/log/segment", "state/0/0/1.delta", "state/offsets"]
