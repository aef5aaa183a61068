"""What every storage must do; inherit and give a `storage` fixture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from spark_cec.errors import AlreadyExists
from spark_cec.log.storage import Storage, StoredFile


class StorageContract:
    """The contract of `Storage`, as tests."""

    def test_created_bytes_are_read_back(self, storage: Storage) -> None:
        storage.create("a/b/c.bin", b"\x00hello\xff")
        assert storage.read("a/b/c.bin") == b"\x00hello\xff"
        assert storage.size("a/b/c.bin") == 7
        assert storage.exists("a/b/c.bin")

    def test_any_buffer_can_be_written(self, storage: Storage) -> None:
        storage.create("view", memoryview(bytearray(b"abcdef"))[1:4])
        storage.replace("array", bytearray(b"xyz"))
        assert (storage.read("view"), storage.read("array")) == (b"bcd", b"xyz")

    def test_an_empty_file_is_a_file(self, storage: Storage) -> None:
        storage.create("d/empty", b"")
        assert (storage.read("d/empty"), storage.size("d/empty"), storage.exists("d/empty")) == (b"", 0, True)
        assert storage.list("d") == [StoredFile("empty", 0)]

    def test_what_is_there_can_be_made_durable(self, storage: Storage) -> None:
        storage.create("d/x", b"1")
        storage.sync("d/x")
        with pytest.raises(FileNotFoundError):
            storage.sync("d/y")

    def test_create_never_overwrites(self, storage: Storage) -> None:
        storage.create("x", b"first")
        with pytest.raises(AlreadyExists) as caught:
            storage.create("x", b"second")
        assert caught.value.path == "x"
        assert storage.read("x") == b"first"

    def test_of_many_creators_one_succeeds(self, storage: Storage) -> None:
        def attempt(number: int) -> bool:
            start.wait()
            try:
                storage.create(f"race/{race}", b"%04d" % number * 1000)
            except AlreadyExists:
                return False
            return True

        for race in range(10):
            start = Barrier(8)
            with ThreadPoolExecutor(8) as pool:
                won = [number for number, first in enumerate(pool.map(attempt, range(8))) if first]
            assert len(won) == 1
            assert storage.read(f"race/{race}") == b"%04d" % won[0] * 1000
        assert len(storage.list("race")) == 10

    def test_replace_works_with_and_without_a_file(self, storage: Storage) -> None:
        storage.replace("r/x", b"one")
        storage.replace("r/x", b"twotwo")
        assert storage.read("r/x") == b"twotwo"
        assert storage.list("r") == [StoredFile("x", 6)]

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (0, 4, b"0123"),
            (3, 4, b"3456"),
            (8, 100, b"89"),
            (10, 5, b""),
            (50, 5, b""),
            (50, None, b""),
            (4, 0, b""),
        ],
    )
    def test_ranges(self, storage: Storage, offset: int, length: int | None, expected: bytes) -> None:
        storage.create("digits", b"0123456789")
        assert storage.read("digits", offset, length) == expected

    def test_listing_is_sorted_and_shows_only_files_directly_inside(self, storage: Storage) -> None:
        for name in ("d/b", "d/a", "d/sub/c", "e/z"):
            storage.create(name, name.encode())
        assert storage.list("d") == [StoredFile("a", 3), StoredFile("b", 3)]

    def test_a_missing_directory_is_empty(self, storage: Storage) -> None:
        assert storage.list("nowhere") == []
        assert storage.list("nowhere/deeper") == []

    def test_missing_files(self, storage: Storage) -> None:
        assert not storage.exists("nowhere")
        storage.delete("nowhere")
        with pytest.raises(FileNotFoundError):
            storage.read("nowhere")
        with pytest.raises(FileNotFoundError):
            storage.size("nowhere")

    def test_a_directory_is_no_file(self, storage: Storage) -> None:
        storage.create("d/x", b"1")
        assert not storage.exists("d")

    def test_many_can_be_deleted_at_once(self, storage: Storage) -> None:
        for name in "abcd":
            storage.create(f"d/{name}", b"1")
        storage.delete_all([])
        storage.delete_all(["d/a", "d/nowhere", "d/b", "d/d"])
        storage.delete_all(["d/nowhere"])
        assert storage.list("d") == [StoredFile("c", 1)]

    def test_deleted_is_gone_and_can_be_created_again(self, storage: Storage) -> None:
        storage.create("d/x", b"1")
        storage.delete("d/x")
        assert not storage.exists("d/x")
        assert storage.list("d") == []
        storage.create("d/x", b"2")
        assert storage.read("d/x") == b"2"

    def test_probing_leaves_nothing(self, storage: Storage) -> None:
        storage.probe_writable()
        assert storage.list("") == []

    def test_a_local_path_leads_to_the_bytes(self, storage: Storage) -> None:
        storage.create("d/x", b"bytes")
        path = storage.local_path("d/x")
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123  (a path as another program would open it)
                assert file.read() == b"bytes"

    def test_appends_are_visible_in_order(self, storage: Storage) -> None:
        if not storage.can_append:
            pytest.skip("whole objects only")
        appender = storage.append_to_new("s/one")
        assert storage.list("s") == [StoredFile("one", 0)]
        appender.append([b"ab", memoryview(b"cd"), b"", bytearray(b"e")])
        assert storage.read("s/one") == b"abcde"
        appender.append([b"f" * 100_000])
        assert storage.size("s/one") == 100_005
        appender.close()
        appender.close()
        assert storage.read("s/one", 4, 3) == b"eff"

    def test_many_buffers_in_one_append(self, storage: Storage) -> None:
        if not storage.can_append:
            pytest.skip("whole objects only")
        appender = storage.append_to_new("many")
        appender.append([bytes([n % 256]) * (n % 3) for n in range(3000)])
        assert storage.read("many") == b"".join(bytes([n % 256]) * (n % 3) for n in range(3000))
        appender.close()

    def test_append_needs_a_new_file(self, storage: Storage) -> None:
        storage.create("taken", b"x")
        with pytest.raises(AlreadyExists if storage.can_append else OSError):
            storage.append_to_new("taken")
        assert storage.read("taken") == b"x"

    def test_an_appender_knows_that_its_file_is_gone(self, storage: Storage) -> None:
        if not storage.can_append:
            pytest.skip("whole objects only")
        deleted, replaced, kept = (storage.append_to_new(f"s/{name}") for name in ("deleted", "replaced", "kept"))
        storage.delete("s/deleted")
        storage.replace("s/replaced", b"other")
        assert [deleted.still_linked(), replaced.still_linked(), kept.still_linked()] == [False, False, True]
        replaced.append([b"lost"])
        assert storage.read("s/replaced") == b"other"
        for appender in (deleted, replaced, kept):
            appender.close()
