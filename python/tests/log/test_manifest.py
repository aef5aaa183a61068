"""Manifests: first wins, whole or damaged."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import DamagedLog, NewerFormat, UnsuitableCheckpoint
from spark_cec.log.checked_json import canonical
from spark_cec.log.frame import crc32c
from spark_cec.log.manifest import (
    RELIST_S,
    RETIRED,
    Consumed,
    Manifest,
    PublishedBatches,
    batches,
    last_within,
    load,
    load_back,
    load_between,
    manifest_path,
    publish,
    restore_retirement,
    retire,
    retired_before,
)
from spark_cec.log.reader import verify
from spark_cec.log.storage import Storage
from tests.log.support import CannotAppend, Fault, memory_storage

ONE = Manifest(3, ("0a" * 16, "0b" * 16), 17, '{"type":"struct"}', False, 2, 1_700_000_000_000)


def test_published_is_loaded() -> None:
    storage = memory_storage()
    assert publish(storage, ONE) is ONE
    assert load(storage, 3) == ONE
    assert batches(storage) == [3]
    assert manifest_path(3) == "manifests/00000000000000000003.json"


def test_what_went_into_a_batch_is_kept() -> None:
    storage = memory_storage()
    read = (Consumed("cec /flows/bids", "17"), Consumed('KafkaV2[Subscribe["é"]]', None))
    publish(storage, dataclasses.replace(ONE, consumed=read, boundary_ms=-5))
    found = load(storage, 3)
    assert (found.consumed, found.boundary_ms) == (read, -5)


def test_a_manifest_of_an_earlier_release_is_read() -> None:
    """It says nothing of inputs, nor of a watermark; a field that a later release adds is passed over."""
    storage = memory_storage()
    fields = {
        "batch": 3, "frames": list(ONE.frames), "rows": 17, "schema_json": ONE.schema_json, "truncate": False,
        "generation": 2, "wall_ms": ONE.wall_ms, "format_version": 1,
    }  # fmt: skip
    for added in ({}, {"of_later": [1]}):
        crc = crc32c(canonical({**fields, **added}))
        storage.replace(manifest_path(3), canonical({**fields, **added, "crc32c": crc}))
        assert load(storage, 3) == ONE


def test_the_first_manifest_wins() -> None:
    storage = memory_storage()
    publish(storage, ONE)
    rival = dataclasses.replace(ONE, frames=(), rows=0, generation=3)
    assert publish(storage, rival) == ONE
    assert load(storage, 3) == ONE


@pytest.mark.parametrize("ends", [("7", None), ("8", "8"), ("7",), ("7", "8", None)])
def test_rows_of_other_input_do_not_stand_for_these(ends: tuple[str | None, ...]) -> None:
    """A batch that was planned anew, with more input, after a power loss took the plan and not the manifest."""

    def made_of(*ends: str | None, names: str = "ab") -> Manifest:
        return dataclasses.replace(ONE, consumed=tuple(Consumed(n, end) for n, end in zip(names, ends, strict=False)))

    storage = memory_storage()
    publish(storage, made_of("7", "8"))
    words = r"batch 3 .* made of input up to 7 and 8, and is planned up to .* with --to 2 take this output back"
    with pytest.raises(UnsuitableCheckpoint, match=words):
        publish(storage, made_of(*ends, names="abc"))
    for same in (made_of("7", "8", names="xy"), made_of()):
        assert publish(storage, same) == made_of("7", "8"), "names change, and what is not known is no difference"


def test_of_many_publishers_all_learn_the_same(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    rivals = [dataclasses.replace(ONE, generation=number) for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        counting = set(pool.map(lambda rival: publish(storage, rival), rivals))
    assert counting == {load(storage, 3)}


@pytest.mark.parametrize(
    ("first", "last", "rows", "end"),
    [
        (0, 5, 100, 5),
        (0, 5, 10, 1),  # 4 + 4, and the third would be too much
        (0, 5, 12, 3),  # batch 3 has no manifest, and so no rows
        (0, 5, 1, 0),  # one at least
        (2, 5, 4, 3),
        (4, 3, 4, 3),  # nothing is new
    ],
)
def test_whole_batches_of_so_many_rows(first: int, last: int, rows: int, end: int) -> None:
    storage = memory_storage()
    for batch in (0, 1, 2, 4, 5):
        publish(storage, dataclasses.replace(ONE, batch=batch, rows=4))
    assert last_within(storage, first, last, rows) == end


def test_a_damaged_manifest_is_the_last_of_a_bounded_read() -> None:
    """Who reads its batch is told of the damage; nothing after it is read before."""
    storage = memory_storage()
    for batch in range(4):
        publish(storage, dataclasses.replace(ONE, batch=batch, rows=4))
    storage.replace(manifest_path(2), b"{}")
    assert last_within(storage, 0, 3, 100) == 2


def test_batches_are_sorted_and_other_files_do_not_count() -> None:
    storage = memory_storage()
    for batch in (11, 2, 10**19, 0):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    for name in ("x.json", "3.json", "00000000000000000009.json.bak", "0000000000000000000x.json"):
        storage.create(f"manifests/{name}", b"{}")
    assert batches(storage) == [0, 2, 11, 10**19]
    assert batches(memory_storage()) == []


def test_a_missing_manifest() -> None:
    with pytest.raises(FileNotFoundError):
        load(memory_storage(), 3)


def test_a_negative_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        publish(memory_storage(), dataclasses.replace(ONE, batch=-1))


def test_every_changed_byte_is_noticed() -> None:
    storage = memory_storage()
    publish(storage, ONE)
    data = storage.read(manifest_path(3))
    for place in range(len(data)):
        storage.replace(manifest_path(3), data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedLog) as caught:
            load(storage, 3)
        assert caught.value.segment == manifest_path(3)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"crc32c": 1}'])
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    storage = memory_storage()
    storage.create(manifest_path(3), data)
    with pytest.raises(DamagedLog):
        load(storage, 3)
    with pytest.raises(DamagedLog):
        publish(storage, ONE)


def test_every_cut_is_damage() -> None:
    storage = memory_storage()
    publish(storage, ONE)
    data = storage.read(manifest_path(3))
    for length in range(len(data)):
        storage.replace(manifest_path(3), data[:length])
        with pytest.raises(DamagedLog):
            load(storage, 3)


def test_a_manifest_under_another_batchs_name_is_damage() -> None:
    storage = memory_storage()
    publish(storage, ONE)
    storage.create(manifest_path(4), storage.read(manifest_path(3)))
    with pytest.raises(DamagedLog, match="manifest of batch 3"):
        load(storage, 4)


def test_a_newer_manifest() -> None:
    storage = memory_storage()
    publish(storage, ONE)
    fields = json.loads(storage.read(manifest_path(3)))
    fields.pop("crc32c")
    fields["format_version"] = 2
    fields["crc32c"] = crc32c(canonical(fields))
    storage.replace(manifest_path(3), json.dumps(fields).encode())
    with pytest.raises(NewerFormat, match="format version 2"):
        load(storage, 3)


def test_what_was_let_go_is_told_and_a_changed_byte_is_noticed() -> None:
    storage = memory_storage()
    for batch in range(5):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    retire(storage, 3)
    whole = storage.read(RETIRED)
    assert retired_before(storage) == 3
    for at in range(len(whole)):
        storage.replace(RETIRED, whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
        with pytest.raises((DamagedLog, NewerFormat)):
            retired_before(storage)
        assert [each.segment for each in verify(storage).files] == [RETIRED]
    storage.replace(RETIRED, b'{"before":4}')
    assert retired_before(storage) == 4, "an earlier release wrote it"


def test_retiring() -> None:
    storage = memory_storage()
    for batch in range(5):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    assert retire(storage, 3) == [0, 1, 2]
    assert retire(storage, 3) == []
    assert batches(storage) == [3, 4]


class Listings:
    """A storage that counts how often a directory is listed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def list(self, directory: str) -> Any:
        self.count += 1
        return self._storage.list(directory)


def test_new_batches_are_found_without_listing_all() -> None:
    storage: Any = Listings(memory_storage())
    now = [0.0]
    published = PublishedBatches(storage, lambda: now[0])
    assert published.bounds() is None
    publish(storage, dataclasses.replace(ONE, batch=3))
    assert published.bounds() == (3, 3)
    listed = storage.count
    for batch in range(4, 40):
        publish(storage, dataclasses.replace(ONE, batch=batch))
        assert published.bounds() == (3, batch)
    assert storage.count == listed
    retire(storage, 10)
    assert published.bounds() == (10, 39)
    publish(storage, dataclasses.replace(ONE, batch=41))
    assert published.bounds() == (10, 39), "behind a gap"
    now[0] = RELIST_S
    assert published.bounds() == (10, 41)


def test_a_batch_that_is_let_go_and_not_yet_deleted_is_not_the_first_one() -> None:
    """A crash came between the note and the deletion."""
    storage = memory_storage()
    for batch in range(6):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    restore_retirement(storage, 4)
    assert PublishedBatches(storage).bounds() == (4, 5)
    restore_retirement(storage, 6)
    assert PublishedBatches(storage).bounds() is None


def test_what_is_not_there_is_listed_ever_more_seldom() -> None:
    """A log that is read for months has millions of manifests."""
    storage: Any = Listings(memory_storage())
    now = [0.0]
    published = PublishedBatches(storage, lambda: now[0])
    for batch in range(3_600):
        publish(storage, dataclasses.replace(ONE, batch=batch))
        now[0] += 1.0
        assert published.bounds() == (0, batch)
    assert storage.count == 1, "there was news all the time"
    for _ in range(24 * 360):
        now[0] += 10.0
        published.bounds()
    assert storage.count < 24 * 6 + 10


@pytest.mark.parametrize(("first", "last", "wanted"), [(0, 2, []), (2, 5, [3, 5]), (0, 10**9, [3, 5, 8]), (-5, 3, [3])])
def test_manifests_between_two_batches(first: int, last: int, wanted: list[int]) -> None:
    storage: Any = Listings(memory_storage())
    for batch in (3, 5, 8):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    found = [each.batch for _, each in load_between(storage, first, last) if isinstance(each, Manifest)]
    assert found == wanted
    assert storage.count == (last > 10)


class Together(CannotAppend):
    """An object store whose manifests can be read only two at a time, but for the first ones."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.barrier, self.read_so_far = threading.Barrier(2, timeout=30.0), 0

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.read_so_far += 1
        if manifest_path(self.alone_up_to) < path:
            self.barrier.wait()
        return super().read(path, offset, length)

    alone_up_to = 1


def test_an_object_store_is_asked_for_several_manifests_at_once() -> None:
    storage = memory_storage()
    for batch in range(22):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    found = list(load_between(Together(storage), 0, 21))
    assert [(batch, each) for batch, each in found if isinstance(each, Manifest) and each.batch == batch] == found
    assert [batch for batch, _ in found] == list(range(22))
    assert list(load_back(CannotAppend(storage), 21, 0)) == found[::-1]


def test_one_who_stops_early_asks_for_few() -> None:
    storage = memory_storage()
    for batch in range(500):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    for taken in (1, 2, 5, 30):
        faulty = CannotAppend(storage)
        assert len(list(itertools.islice(load_between(faulty, 0, 499), taken))) == taken
        assert len(faulty.fault.seen) <= 2 * taken


@pytest.mark.parametrize("appends", [True, False], ids=["file system", "object store"])
def test_missing_and_damaged_manifests_have_their_places(appends: bool) -> None:
    storage = memory_storage()
    for batch in range(100):
        if batch % 7:
            publish(storage, dataclasses.replace(ONE, batch=batch))
        if batch % 10 == 3 and batch % 7:
            storage.replace(manifest_path(batch), b"{")
    found = list(load_between(storage if appends else CannotAppend(storage), 0, 99))
    assert [batch for batch, _ in found] == list(range(100))
    for batch, each in found:
        kind = type(None) if batch % 7 == 0 else DamagedLog if batch % 10 == 3 else Manifest
        assert isinstance(each, kind), batch


def test_a_storage_that_does_not_answer_is_an_error() -> None:
    storage = memory_storage()
    for batch in range(100):
        publish(storage, dataclasses.replace(ONE, batch=batch))
    away = CannotAppend(storage, Fault(50, error=lambda: OSError("503 Slow Down")))
    with pytest.raises(OSError, match="503"):
        list(load_between(away, 0, 99))
