"""Storages: the contract for each, and what only one of them can get wrong."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_cec.adapters import local_storage
from spark_cec.adapters.fsspec_storage import is_taken, open_storage, remove_all, same_place
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.adapters.memory_storage import MemoryStorage
from spark_cec.adapters.object_storage import ObjectStorage
from spark_cec.errors import AlreadyExists, LogLocationError
from spark_cec.log.storage import Storage, StoredFile
from tests.log.storage_contract import StorageContract
from tests.log.support import CannotAppend, FaultyStorage, ObjectStore, memory_storage


class TestLocal(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(str(tmp_path / "not" / "yet" / "there"))


class TestLocalWithoutLinks(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
        return open_storage(str(tmp_path))


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return memory_storage()


class TestObjects(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return ObjectStorage("s3://bucket", ObjectStore(), "bucket", exclusive=True)


class TestFaultless(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return FaultyStorage(memory_storage())


class TestCannotAppend(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return CannotAppend(memory_storage())


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_forms_of_a_local_location(tmp_path: Path, form: str) -> None:
    home = tmp_path / "with space%20and:colon"
    open_storage(form.format(home)).create("x", b"1")
    assert (home / "x").read_bytes() == b"1"


def test_a_size_is_asked_of_an_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of NFS answers `stat` from its cache for up to a minute, and asks the server if a file is opened."""
    storage = open_storage(str(tmp_path))
    storage.create("x", b"abc")
    monkeypatch.setattr(Path, "stat", lambda *_, **__: SimpleNamespace(st_size=1))
    monkeypatch.setattr(os, "stat", lambda *_, **__: SimpleNamespace(st_size=1))
    assert storage.size("x") == 3


def test_a_relative_path_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("here/log")
    monkeypatch.chdir("/")
    storage.create("x", b"1")
    assert (tmp_path / "here" / "log" / "x").read_bytes() == b"1"


def test_memory_roots_do_not_mix() -> None:
    one, other = memory_storage(), memory_storage()
    one.create("x", b"1")
    assert isinstance(one, MemoryStorage)
    assert not other.exists("x")
    assert open_storage(one.url).read("x") == b"1"
    assert open_storage(one.url.replace("memory://", "memory:/")).read("x") == b"1"


@pytest.mark.parametrize(
    ("url", "mend"),
    [
        ("nonsense://bucket/log", "protocol that fsspec knows"),
        ("", "give a directory"),
        ("file://host/log", "file:///directory"),
    ],
)
def test_unusable_locations_say_what_to_do(url: str, mend: str) -> None:
    with pytest.raises(LogLocationError, match=mend) as caught:
        open_storage(url)
    assert caught.value.url == url
    assert repr(url) in str(caught.value)


def test_a_protocol_whose_package_is_missing_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:

    def missing(url: str, **_: object) -> Any:
        assert url == "s3://bucket/log"
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(LogLocationError, match="Install s3fs"):
        open_storage("s3a://bucket/log")


@pytest.mark.parametrize(("url", "exclusive"), [("s3a://b/x", True), ("abfs://b/x", True), ("sftp:/x", False)])
def test_only_stores_with_conditional_writes_are_written(
    url: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = ObjectStore()
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _, **__: (filesystem, "/b/x"))
    storage = open_storage(url)
    assert not storage.can_append
    if exclusive:
        storage.create("d/x", b"1")
        assert storage.read("d/x") == b"1"
        return
    for write in (storage.probe_writable, lambda: storage.create("d/x", b"1")):
        with pytest.raises(LogLocationError, match="only if it is absent"):
            write()
    assert filesystem.store == {}
    filesystem.pipe_file("/b/x/d/x", b"2")
    assert (storage.read("d/x"), storage.list("d")) == (b"2", [StoredFile("x", 1)])


def test_a_google_bucket_is_reached_by_the_class_for_plain_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own choice asks a second service before each request, and overwrites objects in zonal buckets."""
    plain = ModuleType("gcsfs.core")
    plain.GCSFileSystem = ObjectStore  # type: ignore[attr-defined]
    for name, module in {"gcsfs": ModuleType("gcsfs"), "gcsfs.core": plain}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: pytest.fail("fsspec chooses the class"))
    storage = open_storage("gs://bucket/log")
    storage.create("x", b"1")
    with pytest.raises(AlreadyExists):
        storage.create("x", b"2")
    assert storage.url == "gs://bucket/log"


class Answered(Exception):
    """An answer of a store with an error, as gcsfs and adlfs raise it: no `OSError`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered with {status}")
        self.status_code = status


def answering(error: Exception) -> ObjectStorage:
    """A storage whose every request fails with this error."""
    filesystem = ObjectStore()

    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("pipe_file", "cat_file", "info", "ls"):
        setattr(filesystem, name, fail)
    return ObjectStorage("gs://bucket", filesystem, "bucket", exclusive=True)


def test_a_range_behind_the_end_is_empty_whatever_class_the_error_has() -> None:
    """An empty object has no range at all, not even its first byte."""
    storage = answering(Answered(416))
    assert (storage.read("x", 0, 1), storage.read("x", 7), storage.exists("x")) == (b"", b"", True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Answered(404), FileNotFoundError),
        (Answered(401), PermissionError),
        (Answered(403), PermissionError),
        (OSError("Forbidden: b/bucket/o\nno permission"), PermissionError),
        (Answered(400), OSError),
    ],
)
def test_the_status_of_an_answer_tells_the_class_of_the_error(error: Exception, kind: type[OSError]) -> None:
    storage = answering(error)
    for call in (lambda: storage.replace("x", b"1"), lambda: storage.read("x"), lambda: storage.size("x")):
        with pytest.raises(kind) as failed:
            call()
        assert type(failed.value) is kind and failed.value.filename == "gs://bucket/x"
        assert "\n" not in str(failed.value)


def test_a_missing_container_is_named_whatever_class_the_error_has() -> None:
    with pytest.raises(LogLocationError, match=r"gs://bucket.*does not exist"):
        answering(Answered(404)).probe_writable()


class Caching(ObjectStore):
    """Answers from the last listing, as s3fs, gcsfs and adlfs do."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[str, Any] = {}

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        found = super().ls(path, detail, **more)
        self.listed.update({item["name"]: item for item in found})
        return found

    def info(self, path: str, **more: Any) -> Any:
        return self.listed.get(path) or super().info(path, **more)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed = {name: each for name, each in self.listed.items() if name.rpartition("/")[0] != path}


def test_a_size_is_that_of_now_after_a_listing() -> None:
    filesystem = Caching()
    storage = ObjectStorage("s3://bucket", filesystem, "/bucket", exclusive=True)
    storage.create("d/x", b"1")
    assert storage.list("d") == [StoredFile("x", 1)]
    MemoryFileSystem.pipe_file(filesystem, "/bucket/d/x", b"another writer's")
    assert storage.size("d/x") == len(b"another writer's")


def test_the_retries_of_azures_client_are_off() -> None:
    """Its first pause is 15 seconds, whatever `storage.retry` says."""
    policy, other = SimpleNamespace(total_retries=3), SimpleNamespace()
    filesystem = ObjectStore()
    filesystem.service_client = SimpleNamespace(_pipeline=SimpleNamespace(_impl_policies=[other, policy]))
    ObjectStorage("abfs://container", filesystem, "container", exclusive=True)
    assert policy.total_retries == 0 and not hasattr(other, "total_retries")


def test_a_probe_finds_out_a_store_that_ignores_the_condition() -> None:
    filesystem = ObjectStore()
    filesystem.conditional = False
    storage = ObjectStorage("s3://bucket", filesystem, "bucket", exclusive=True)
    with pytest.raises(LogLocationError, match="created twice"):
        storage.probe_writable()
    assert storage.list("") == []


def test_a_file_system_that_cannot_be_reached_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_: str) -> Any:
        raise OSError("unable to load libfoo" + "\nand why" * 1000)

    monkeypatch.setattr(fsspec.core, "url_to_fs", unreachable)
    with pytest.raises(LogLocationError, match="unable to load libfoo; use a directory"):
        open_storage("foo://host/log")


@pytest.mark.parametrize("url", ["webhdfs://n/log", "ofs://n/log"])
def test_what_spark_reaches_through_hadoop_alone_is_refused_by_name(url: str) -> None:
    with pytest.raises(LogLocationError, match=f"{url}.*fs is not supported, .*cec.log.path.*mounted"):
        open_storage(url)


def test_opening_and_reading_write_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "log"))
    assert storage.list("segments") == []
    assert not storage.exists("log.json")
    assert list(tmp_path.iterdir()) == []


def test_a_location_that_is_a_file_cannot_be_probed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogLocationError, match="cannot be written"):
        open_storage(str(tmp_path / "file")).probe_writable()
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("url", ["memory", "local", "file", "like a pattern"])
def test_what_is_at_a_place_is_seen_and_removed_whole(url: str, tmp_path: Path) -> None:
    places = {"memory": memory_storage().url, "local": str(tmp_path / "log"), "file": (tmp_path / "log").as_uri()}
    place = {**places, "like a pattern": str(tmp_path / "log[1]")}[url]
    assert not is_taken(place)
    remove_all(place)
    storage = open_storage(place)
    storage.create("segments/x", b"1")
    storage.create("log.json", b"1")
    assert is_taken(place)
    remove_all(place)
    assert not is_taken(place)
    assert storage.list("segments") == []


def test_a_hidden_file_takes_a_place(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / ".x").touch()
    assert is_taken(str(tmp_path / "log"))


def test_files_in_the_making_are_not_listed(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.create("d/x", b"1")
    (tmp_path / "d" / ".x.0011").write_bytes(b"half")
    assert storage.list("d") == [StoredFile("x", 1)]


def test_a_failed_write_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "disk full")

    storage = open_storage(str(tmp_path))
    monkeypatch.setattr(os, "writev", full)
    for write in (storage.create, storage.replace):
        with pytest.raises(OSError, match="disk full"):
            write("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: whole(fd, [views[0][:3]]))
    appender = open_storage(str(tmp_path)).append_to_new("x")
    appender.append([b"abcdefgh", b"", b"ij"])
    appender.close()
    assert (tmp_path / "x").read_bytes() == b"abcdefghij"


def test_what_returns_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(sync: Any) -> Any:
        def noting(descriptor: int) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            sync(descriptor)

        return noting

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", note(os.fsync))
    monkeypatch.setattr(os, "fdatasync", note(os.fdatasync))
    storage = LocalStorage("log", tmp_path / "home")
    storage.create("d/x", b"1")
    assert [name.split(".")[1] if name.startswith(".") else name for name in synced] == [
        tmp_path.name,
        "home",
        "x",
        "d",
    ]
    synced.clear()
    appender = storage.append_to_new("d/y")
    appender.append([b"1"])
    appender.close()
    assert synced == ["d", "y"]
    synced.clear()
    storage.replace("d/x", b"2")
    assert [name.split(".")[1] if name.startswith(".") else name for name in synced] == ["x", "d"]


def test_a_link_failure_of_another_kind_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(Path, "hardlink_to", broken)
    with pytest.raises(OSError, match="broken disk"):
        open_storage(str(tmp_path)).create("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_without_links_create_is_still_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errno.EPERM in local_storage._NO_LINKS
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    storage = open_storage(str(tmp_path))
    storage.create("x", b"1")
    with pytest.raises(AlreadyExists):
        storage.create("x", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_was_moved_away_is_not_the_one_in_its_place(tmp_path: Path) -> None:
    """`mv` and `cp -r` back, while the file is open: what is appended must reach the copy, not the original."""
    storage = open_storage(str(tmp_path / "log"))
    appender = storage.append_to_new("segments/one")
    appender.append([b"abc"])
    assert appender.still_linked()
    (tmp_path / "log").rename(tmp_path / "moved")
    assert not appender.still_linked()
    shutil.copytree(tmp_path / "moved", tmp_path / "log")
    assert not appender.still_linked()
    appender.close()


def test_an_error_of_the_store_does_not_mean_that_a_file_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that has run out, or a busy store: fsspec's own `isfile` answers no, whatever went wrong."""
    filesystem = ObjectStore()
    storage = ObjectStorage("s3://bucket/log", filesystem, "bucket/log", exclusive=True)
    storage.create("log.json", b"{}")
    assert storage.exists("log.json") and not storage.exists("other.json") and not storage.exists("")

    def fails(*_: object, **__: object) -> None:
        raise PermissionError("the token has run out")

    monkeypatch.setattr(filesystem, "cat_file", fails)
    with pytest.raises(PermissionError, match="run out"):
        storage.exists("log.json")


def _full(descriptor: int, buffers: list[memoryview]) -> int:
    """A disk that takes two bytes and is full."""
    os.pwrite(descriptor, bytes(buffers[0])[:2], 0)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("call", ["create", "replace"])
def test_what_does_not_fit_on_the_disk_is_not_there(
    links: bool, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where files have no links, and must be written under their own name: the next try finds none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    storage = open_storage(str(tmp_path))
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    write = os.writev
    with monkeypatch.context() as small:
        # Without links the second write is the one to the file's own name.
        left = iter([write] if not links and call == "create" else [])
        small.setattr(os, "writev", lambda *given: next(left, _full)(*given))
        with pytest.raises(OSError, match="No space left"):
            getattr(storage, call)("x", b"12345")
    assert list(tmp_path.iterdir()) == []
    storage.create("x", b"12345")
    assert storage.read("x") == b"12345"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF])
def test_a_file_system_that_cannot_sync_a_directory_is_taken_at_its_word(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names are as durable as it makes them: nothing else could be done for them."""
    sync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    storage = open_storage(str(tmp_path / "new"))
    storage.create("a", b"1")
    storage.replace("a", b"2")
    storage.append_to_new("b").close()
    assert [file.name for file in storage.list("")] == ["a", "b"]


@pytest.mark.parametrize("call", ["create", "replace", "append_to_new"])
def test_a_directory_that_is_not_synced_for_another_reason_is_an_error(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(tmp_path))
    sync = os.fsync

    def broken(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        getattr(storage, call)(*(["a"] if call == "append_to_new" else ["a", b"1"]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("{}/a", "file:{}/a", True),
        ("{}/a/", "file://{}/b/../a", True),
        ("{}/a", "{}/link", True),
        ("{}/a/not/yet", "file:{}/link/not/yet", True),
        ("{}/a", "{}/ab", False),
        ("memory://x/a", "memory:/x/a/", True),
        ("memory://x/a", "memory://x/b", False),
        ("memory:/{}/a", "{}/a", False),
    ],
)
def test_a_place_is_one_however_it_is_written(one: str, other: str, same: bool, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert same_place(one.format(tmp_path), other.format(tmp_path)) is same
    assert same_place(other.format(tmp_path), one.format(tmp_path)) is same
