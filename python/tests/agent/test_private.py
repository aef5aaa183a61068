"""Directories in shared places: what another user has made or may write to is left alone, and never used."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_cec.agent import private
from spark_cec.agent.logs import OpenLogs, index_root
from spark_cec.agent.private import is_private, private_directory
from spark_cec.errors import SettingsError
from spark_cec.settings import PREFIX, parse_settings

NAME = f"spark-cec-index-{os.getuid()}"
STRANGER = 65534

Trap = Callable[[Path, pytest.MonkeyPatch], None]


def of_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(mode=0o700)
    belongs_to_another(place, monkeypatch)


def belongs_to_another(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can give a directory away; for others the look of it is changed."""
    if os.geteuid() == 0:
        os.chown(place, STRANGER, STRANGER)
        return
    lstat = Path.lstat

    def strange(path: Path) -> os.stat_result:
        found = lstat(path)
        return os.stat_result((*found[:4], STRANGER, *found[5:])) if path == place else found

    monkeypatch.setattr(Path, "lstat", strange)


def open_to_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    place.chmod(0o777)


def open_to_a_group(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    place.chmod(0o770)


def readable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    place.chmod(0o755)


def link_to_a_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.parent / "elsewhere").mkdir(mode=0o700, exist_ok=True)
    place.symlink_to(place.parent / "elsewhere")


def link_to_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.symlink_to(place.parent / "nothing")


def file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_text("")


TRAPS = [of_another_user, open_to_all, open_to_a_group, readable, link_to_a_directory, link_to_nothing, file]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temp directory that everyone can write to."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_a_trap_is_not_used_and_another_place_is_found_again(
    shared: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap(shared / NAME, monkeypatch)
    trap(shared / f"{NAME}-0", monkeypatch)
    before = look(shared)
    found = private_directory(shared / NAME)
    assert found.parent == shared and found.name.startswith(f"{NAME}-") and found.name != f"{NAME}-0"
    assert is_private(found)
    for _ in range(3):
        assert private_directory(shared / NAME) == found
    assert {path: seen for path, seen in look(shared).items() if path != found} == before


def look(place: Path) -> dict[Path, tuple[int, int]]:
    """All that is there, with owner and mode."""
    return {path: (path.lstat().st_uid, path.lstat().st_mode) for path in place.rglob("*")}


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_an_index_in_the_temp_directory_is_never_in_a_trap(
    shared: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap(shared / NAME, monkeypatch)
    before = set(shared.rglob("*"))
    logs = OpenLogs()
    logs.get(str(tmp_path / "log"), parse_settings({}))
    logs.close()
    (made,) = set(shared.iterdir()) - before
    assert is_private(made)
    assert any(made.rglob("CURRENT")), "the index is there"
    assert not any((shared / "elsewhere").glob("*"))


def test_with_no_trap_the_place_is_the_same_as_ever(shared: Path) -> None:
    assert [private_directory(shared / NAME) for _ in range(3)] == [shared / NAME] * 3
    assert list(shared.iterdir()) == [shared / NAME]
    assert stat.S_IMODE((shared / NAME).stat().st_mode) == 0o700


def test_where_the_file_system_names_another_owner_the_place_is_the_same_at_each_call(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does, which makes root nobody."""
    lstat = Path.lstat

    def squashed(path: Path) -> os.stat_result:
        found = lstat(path)
        return os.stat_result((*found[:4], STRANGER, *found[5:]))

    monkeypatch.setattr(Path, "lstat", squashed)
    assert [private_directory(shared / NAME) for _ in range(3)] == [shared / NAME] * 3
    assert list(shared.iterdir()) == [shared / NAME]


@pytest.mark.parametrize("step", range(3))
def test_two_agents_that_look_for_a_place_leave_each_other_theirs(
    shared: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The other one looks, from beginning to end, within the `step`-th look of the first."""
    open_to_all(shared / NAME, monkeypatch)
    found: list[Path] = []
    look_of = private._owner_and_mode
    looks = iter(range(100))

    def look_of_both(path: Path) -> tuple[int, int] | None:
        if next(looks) == step:
            found.append(private_directory(shared / NAME))
        return look_of(path)

    monkeypatch.setattr(private, "_owner_and_mode", look_of_both)
    found.append(private_directory(shared / NAME))
    assert len(found) == 2
    assert all(is_private(each) for each in found), found
    assert private_directory(shared / NAME) in found


def test_a_place_that_is_given_and_private_is_used_itself(tmp_path: Path) -> None:
    for given in (tmp_path / "new" / "index", tmp_path / "made"):
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made").chmod(0o755)
        assert index_root(parse_settings({PREFIX + "index.path": str(given)})) == given


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770])
def test_within_a_place_that_is_given_and_shared_the_index_is_private(tmp_path: Path, mode: int) -> None:
    given = tmp_path / "scratch"
    given.mkdir()
    given.chmod(mode)
    found = index_root(parse_settings({PREFIX + "index.path": str(given)}))
    assert found == given / NAME
    assert is_private(found)


def test_a_place_that_is_given_and_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "of-another"
    given.mkdir()
    monkeypatch.setattr("spark_cec.agent.logs.is_writable_by_others", lambda place: True)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(given / NAME))

    monkeypatch.setattr("spark_cec.agent.logs.private_directory", denied)
    with pytest.raises(SettingsError, match=r"index\.path='.*/of-another': the directory cannot be made \(Permission"):
        index_root(parse_settings({PREFIX + "index.path": str(given)}))
