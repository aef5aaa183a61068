"""The spool: private, given back, and swept when its owner died, but never from under one who lives."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_cec.agent import spool as spool_module
from spark_cec.agent.spool import Spool, record_batches, write_rows

LONG_AGO = 1_000_000


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`shm` stands for shared memory, `tmp` for the temp directory."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    yield tmp_path


def dead_agents_spool(places: Path) -> tuple[Path, Path]:
    """The directories of a process that was killed; a file for one of its calls is in the first."""
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[2]\n"
        "from spark_cec.agent.spool import Spool\n"
        "s = Spool(sys.argv[1]); print(s.directory); print(s.overflow, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(places / "shm"), str(places / "tmp")]
    path = str(Path(spool_module.__file__).parents[2])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -9, done.stderr
    directory, overflow = map(Path, done.stdout.split())
    (directory / "pending.arrow").write_bytes(b"rows")
    return directory, overflow


def age(*directories: Path) -> None:
    """As if the process had died long ago."""
    for directory in directories:
        for path in (*directory.iterdir(), directory):
            os.utime(path, (LONG_AGO, LONG_AGO))


def new_spool(places: Path, inherited: tuple[str, ...] = ()) -> Spool:
    return Spool(str(places / "shm"), inherited)


def test_directories_are_private_and_removed_at_the_end(places: Path) -> None:
    spool = new_spool(places)
    assert (spool.directory.parent, spool.overflow.parent) == (places / "shm", places / "tmp")
    for directory in (spool.directory, spool.overflow):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert directory.name.startswith(f"spark-cec-{os.getuid()}-")
    Path(spool.new_file()).write_bytes(b"left over")
    spool.close()
    assert list((places / "shm").iterdir()) == list((places / "tmp").iterdir()) == []


def test_a_spool_in_use_does_not_age(places: Path) -> None:
    """Systems delete old files from their temp directories."""
    spool = new_spool(places)
    age(spool.directory, spool.overflow)
    spool.touch()
    for directory in (spool.directory, spool.overflow):
        assert min(each.stat().st_mtime for each in (directory, directory / "lock")) > LONG_AGO + 1
    shutil.rmtree(spool.overflow)
    spool.touch()
    spool.close()


def test_new_files_have_names_of_their_own(places: Path) -> None:
    spool = new_spool(places)
    names = {spool.new_file() for _ in range(100)}
    assert len(names) == 100
    assert {Path(name).parent for name in names} == {spool.directory}
    spool.close()


def test_a_file_too_large_for_shared_memory_goes_elsewhere(places: Path) -> None:
    spool = new_spool(places)
    assert Path(spool.new_file(1 << 60)).parent == spool.overflow
    spool.close()


def test_without_room_in_shared_memory_all_is_in_the_temp_directory(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_has_room", lambda directory, needed: False)
    spool = Spool()
    assert spool.directory.parent == spool.overflow.parent == places / "tmp"
    assert spool.directory != spool.overflow
    spool.close()


def test_the_spool_of_an_agent_that_died_long_ago_is_swept(places: Path) -> None:
    left = dead_agents_spool(places)
    age(*left)
    spool = new_spool(places)
    assert not any(directory.exists() for directory in left)
    spool.close()


def test_the_spool_of_a_living_agent_is_left_alone(places: Path) -> None:
    living = new_spool(places)
    file = Path(living.new_file())
    file.write_bytes(b"rows")
    age(living.directory, living.overflow)
    other = new_spool(places)
    other.close()
    assert file.read_bytes() == b"rows"
    assert living.overflow.exists()
    living.close()


def test_what_is_not_ours_is_left_alone(places: Path) -> None:
    strange = places / "shm" / f"spark-cec-{os.getuid()}-strange"
    strange.mkdir()
    (strange / "file").write_bytes(b"x")
    another = places / "shm" / "something-else"
    another.mkdir()
    age(strange, another)
    new_spool(places).close()
    assert (strange / "file").exists()
    assert another.exists()


def trap(place: Path, victim: Path, mode: int = 0o777) -> None:
    """A directory with the name of a spool that somebody else could have made, whose lock is a file of ours."""
    place.mkdir()
    (place / "lock").symlink_to(victim)
    place.chmod(mode)


@pytest.mark.parametrize("mode", [0o777, 0o700], ids=["of others", "ours, with a link"])
def test_a_file_that_a_lock_links_to_is_never_locked_nor_its_directory_removed(places: Path, mode: int) -> None:
    victim = places / "victim"
    victim.touch()
    prefix = f"spark-cec-{os.getuid()}-"
    for place in ("shm", "tmp"):
        trap(places / place / f"{prefix}trap", victim, mode)
        os.utime(places / place / f"{prefix}trap", (LONG_AGO, LONG_AGO))
    tried: list[int] = []
    flock = fcntl.flock

    def watched(descriptor: int, operation: int) -> None:
        tried.append(os.fstat(descriptor).st_ino)
        flock(descriptor, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", watched)
        spool = new_spool(places, tuple(str(places / place / f"{prefix}trap") for place in ("shm", "tmp")))
    assert victim.stat().st_ino not in tried
    assert spool.directory.name != spool.overflow.name != f"{prefix}trap" != spool.directory.name
    spool.close()
    assert all((places / place / f"{prefix}trap" / "lock").is_symlink() for place in ("shm", "tmp"))


def test_a_directory_that_others_can_write_to_is_not_inherited(places: Path) -> None:
    left = dead_agents_spool(places)
    for directory in left:
        directory.chmod(0o777)
    successor = new_spool(places, (str(left[0]), str(left[1])))
    assert successor.directory not in left and successor.overflow not in left
    age(*left)
    new_spool(places).close()
    assert all((directory / "lock").exists() for directory in left), "nor is it swept"
    successor.close()


def test_a_successor_takes_over_and_cleans_up(places: Path) -> None:
    directory, overflow = dead_agents_spool(places)
    successor = new_spool(places, (str(directory), str(overflow)))
    assert (successor.directory, successor.overflow) == (directory, overflow)
    assert (directory / "pending.arrow").read_bytes() == b"rows"
    stranger = new_spool(places)
    stranger.close()
    assert (directory / "pending.arrow").exists(), "it is held again"
    successor.close()
    assert not directory.exists()
    assert not overflow.exists()


def test_a_successor_whose_inheritance_is_gone_has_a_spool_all_the_same(places: Path) -> None:
    successor = new_spool(places, (str(places / "shm" / "gone"), str(places / "tmp" / "gone")))
    assert successor.directory.is_dir()
    assert successor.overflow.is_dir()
    successor.close()


def test_what_a_living_agent_holds_is_not_inherited(places: Path) -> None:
    living = new_spool(places)
    other = new_spool(places, (str(living.directory), str(living.overflow)))
    assert other.directory != living.directory
    assert other.overflow != living.overflow
    other.close()
    assert living.directory.is_dir()
    living.close()


def test_a_stranger_leaves_what_a_successor_is_about_to_inherit(places: Path) -> None:
    """Another session's agent may start in the moment between an agent's death and its successor."""
    directory, overflow = dead_agents_spool(places)
    stranger = new_spool(places)
    successor = new_spool(places, (str(directory), str(overflow)))
    assert (successor.directory / "pending.arrow").read_bytes() == b"rows"
    successor.close()
    stranger.close()


def binary(*sizes: int) -> pa.Table:
    return pa.table({"window": pa.array([bytes([i % 256]) * size for i, size in enumerate(sizes)], pa.binary())})


def test_batches_end_by_rows_and_by_bytes() -> None:
    rows = pa.concat_tables([binary(*[10] * 7), binary(500), binary(*[10] * 5), binary(*[90] * 4)])
    batches = list(record_batches(rows, most_rows=6, most_bytes=200))
    assert pa.Table.from_batches(batches).equals(rows)
    assert max(batch.num_rows for batch in batches) == 6
    assert [batch.num_rows for batch in batches if batch.nbytes > 200] == [1], "only one row alone may be too large"
    assert len(batches) == 6, "small pieces are put together"


def test_a_chunk_larger_than_a_batch_is_split() -> None:
    rows = binary(*[1000] * 1000)
    batches = list(record_batches(rows, most_bytes=64_000))
    assert pa.Table.from_batches(batches).equals(rows.combine_chunks())
    assert all(30_000 < batch.nbytes <= 64_000 for batch in batches)
    assert list(record_batches(rows.slice(0, 0))) == []


@pytest.mark.parametrize(("inherits", "locks"), [(False, 0), (False, 1), (True, 1)])
def test_a_spool_that_cannot_be_made_leaves_nothing_behind(
    inherits: bool, locks: int, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither directories, which nobody would ever sweep while they have no name yet, nor descriptors."""
    inherited = dead_agents_spool(places)
    shutil.rmtree(inherited[1])
    lock, left = fcntl.flock, locks

    def fail_after(descriptor: int, how: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", fail_after)
    with pytest.raises(OSError, match="locks"):
        new_spool(places, tuple(map(str, inherited)) if inherits else ())
    assert open_below(places) == []
    assert [*(places / "shm").iterdir(), *(places / "tmp").iterdir()] == [inherited[0]]


def open_below(directory: Path) -> list[str]:
    """What this process has open below a directory."""
    found = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sorted(path for path in found if path.startswith(str(directory)))


def test_rows_that_do_not_fit_leave_the_room_that_they_took(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks again after a full /dev/shm must not find it fuller each time."""
    spool = new_spool(places)
    path = spool.new_file()

    def full(_: object) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1]})
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spool_module, "record_batches", full)
    with pytest.raises(OSError, match="No space left"):
        write_rows(path, pa.table({"a": [1, 2]}))
    assert not Path(path).exists()
    spool.close()
