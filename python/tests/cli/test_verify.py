"""`cec verify`: whatever is done to a log is found, and a log that is only being written is not accused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin import find_log as find_log_module
from spark_cec.admin.check import Verification, verify_log
from spark_cec.admin.find_log import Place, find_log
from spark_cec.admin.read_only import ReadOnlyStorage
from spark_cec.ids import new_writer_id
from spark_cec.log.bundles import Bundles
from spark_cec.log.bundling import bundle_segments
from spark_cec.log.frame import FrameKind
from spark_cec.log.home import join_log
from spark_cec.log.manifest import manifest_path
from spark_cec.log.record import RecordKind, encode_records
from spark_cec.log.segment import SEGMENTS, list_segments, segment_path
from spark_cec.log.storage import Listing, StoredFile
from tests.cli.support import STORES, Checkpoint, answer, make_checkpoint, query_json, run, write_log
from tests.log.support import (
    LOG_ID,
    SEGMENT,
    CannotAppend,
    commit_meta,
    frame_bytes,
    make_writer,
    payload_of,
    records,
)

OTHER_WRITER = "0198c0ffee09-00112233445566ff"
_roots = count()


def check(place: Place, stores_begin: Callable[[int], None] = lambda _: None) -> Verification:
    return verify_log(place, stores_begin, lambda: None)


def test_a_sound_log_is_sound_and_every_store_is_rebuilt(checkpoint: Checkpoint) -> None:
    result = run("verify", str(checkpoint.path), "--json")
    found = answer(result)
    assert result.exit_code == 0
    assert (found["ok"], found["damages"], found["output_batches"]) == (True, [], 4)
    (segment,) = found["segments"]
    assert (segment["bytes"], segment["frames"]) == (checkpoint.segment.stat().st_size, 1 + 4 * (2 + len(STORES)))
    stores = [(s["version"], s["ok"], s["open_windows"], s["scanned_records"]) for s in found["stores"]]
    assert stores == [(4, True, 4, 4)] * len(STORES)
    assert run("verify", str(checkpoint.path)).stdout.startswith("ok: ")


def test_the_committed_and_the_newest_version_are_both_rebuilt(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=6, last_commit=3)
    stores = answer(run("verify", str(checkpoint.path), "--json"))["stores"]
    assert [(s["partition"], s["version"]) for s in stores if s["operator"] == 0] == [(0, 4), (0, 6), (1, 4), (1, 6)]


def _memory_checkpoint() -> tuple[str, bytes]:
    """The URL of a checkpoint in memory, all of it committed, and its segment's bytes."""
    url = f"memory://cli-tests-{next(_roots)}"
    storage, home = open_storage(url), open_storage(f"{url}/cec/log")
    write_log(home, 3, STORES[:2])
    storage.create("cec/query.json", query_json(f"{url}/cec/log").encode())
    for batch in range(3):
        storage.create(f"offsets/{batch}", b"")
        storage.create(f"commits/{batch}", b"")
    return url, home.read(segment_path(SEGMENT))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_single_byte_can_change_unseen(data: st.DataObject) -> None:
    url, whole = _memory_checkpoint()
    at = data.draw(st.integers(0, len(whole) - 1), "byte")
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255), "bits")
    open_storage(f"{url}/cec/log").replace(segment_path(SEGMENT), bytes(changed))
    assert check(find_log(url)).findings


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_end_can_be_cut_off_unseen(data: st.DataObject) -> None:
    url, whole = _memory_checkpoint()
    length = data.draw(st.integers(0, len(whole) - 1), "length")
    open_storage(f"{url}/cec/log").replace(segment_path(SEGMENT), whole[:length])
    result = check(find_log(url))
    assert result.findings


def test_the_untouched_log_of_these_properties_is_sound() -> None:
    assert check(find_log(_memory_checkpoint()[0])).findings == ()


def _lose_log_json(checkpoint: Checkpoint) -> None:
    (checkpoint.home / "log.json").unlink()


def _break_log_json(checkpoint: Checkpoint) -> None:
    (checkpoint.home / "log.json").write_text("{")


def _break_manifest(checkpoint: Checkpoint) -> None:
    path = checkpoint.home / "manifests" / f"{2:020d}.json"
    path.write_text(path.read_text().replace('"rows":6', '"rows":7'))


def _spoil_payload(checkpoint: Checkpoint) -> None:
    checkpoint.flip(-6)


def _zero_tail(checkpoint: Checkpoint) -> None:
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + bytes(100))


def _drop_last_frame(checkpoint: Checkpoint) -> None:
    meta = commit_meta(4, store=STORES[2], extent=4, replay=40, dirty_from=1, dirty_windows=2)
    checkpoint.cut(len(frame_bytes(meta, payload_of(4))))


def _lose_all_frames(checkpoint: Checkpoint) -> None:
    checkpoint.segment.unlink()


def _foreign_segment(checkpoint: Checkpoint) -> None:
    (checkpoint.home / "log.json").write_text('{"format_version": 1, "log_id": "' + "f" * 32 + '"}')
    (checkpoint.path / "cec" / "query.json").write_text(query_json(f"file:{checkpoint.home}", log_id="f" * 32))


DAMAGE = [
    # name, damage, kinds found, where, a piece of the reason
    ("log.json lost", _lose_log_json, ["lost"], "log.json", "it is missing, although there are segments"),
    ("log.json broken", _break_log_json, ["corrupt"], "log.json", "cannot be read"),
    ("manifest changed", _break_manifest, ["corrupt"], f"manifests/{2:020d}.json", "fails its checksum"),
    ("payload changed", _spoil_payload, ["corrupt", "lost"], SEGMENT, "the payload fails its checksum"),
    ("zeros at the end", _zero_tail, ["torn"], SEGMENT, "nothing acknowledged"),
    ("last frame gone", _drop_last_frame, ["lost"], "store 1/0/left", "no commit frame of version 4"),
    ("segment gone", _lose_all_frames, ["lost"] * 4, f"manifests/{0:020d}.json", "no segment holds 2 of its 2"),
    ("another log's segment", _foreign_segment, ["corrupt"] + ["lost"] * 4, SEGMENT, "the segment belongs to log"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "kinds", "where", "reason"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE]
)
def test_damage_is_named_with_its_place(
    checkpoint: Checkpoint, damage: Callable[[Checkpoint], None], kinds: list[str], where: str, reason: str
) -> None:
    damage(checkpoint)
    result = run("verify", str(checkpoint.path), "--json")
    found = answer(result)["damages"]
    assert result.exit_code == 1
    assert [each["kind"] for each in found] == kinds
    assert (found[0]["where"], reason in found[0]["reason"]) == (where, True), found[0]
    text = run("verify", str(checkpoint.path))
    assert text.exit_code == 1
    assert all(line.startswith(kind) for line, kind in zip(text.stdout.splitlines(), kinds, strict=False))
    assert text.stdout.splitlines()[-1].startswith(f"{len(kinds)} damage{'s' if len(kinds) > 1 else ''} found: ")


def test_a_hole_in_the_chain_is_found_though_every_byte_is_sound(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=1, last_commit=2)
    writer = make_writer(checkpoint.storage, writer_id=OTHER_WRITER)
    for store in STORES:
        writer.append(FrameKind.COMMIT, commit_meta(3, store=store), payload_of(3))
    found = answer(run("verify", str(checkpoint.path), "--json"))
    assert [d["where"] for d in found["damages"]] == [f"store {store}" for store in STORES]
    assert "version 3 cannot be rebuilt: the commit frame of version 2" in found["damages"][0]["reason"]
    assert [s["ok"] for s in found["stores"]] == [False] * 3
    assert run("inspect", str(checkpoint.path)).exit_code == 0


def test_a_footer_that_promises_more_windows_than_the_log_has_is_found(checkpoint: Checkpoint) -> None:
    meta = commit_meta(5, store=STORES[0], open_windows=9)
    make_writer(checkpoint.storage, writer_id=OTHER_WRITER).append(FrameKind.COMMIT, meta, payload_of(5))
    (damage,) = answer(run("verify", str(checkpoint.path), "--json"))["damages"]
    assert "9 open windows at version 5, but the log holds footprints of 5" in damage["reason"]


class _Growing(ReadOnlyStorage):
    """A storage whose first listing of segments is 10 bytes behind, as when a frame is in flight."""

    behind = 10

    def list(self, directory: str) -> Listing:
        behind, self.behind = self.behind, 0
        return [StoredFile(file.name, file.size - behind) for file in super().list(directory)]


def test_a_frame_in_flight_is_not_torn(checkpoint: Checkpoint) -> None:
    place = find_log(str(checkpoint.path))
    result = check(replace(place, storage=_Growing(place.storage)))
    assert result.findings == ()
    assert (result.segments[0].size, result.segments[0].frames) == (checkpoint.segment.stat().st_size, 21)


def test_a_frame_that_stays_torn_while_the_segment_grows_is_torn(checkpoint: Checkpoint) -> None:
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + b"\x89CECFRM\n" + bytes(12))
    place = find_log(str(checkpoint.path))
    (finding,) = check(replace(place, storage=_Growing(place.storage))).findings
    assert (finding.kind.value, finding.bytes_lost) == ("torn", 20)


class _Vanishing(ReadOnlyStorage):
    """A storage that lists a segment which is gone when it is read."""

    def list(self, directory: str) -> Listing:
        gone = {"segments": [StoredFile(SEGMENT.replace("0198", "0197"), 100)]}
        return [*gone.get(directory, []), *super().list(directory)]


def test_a_segment_that_is_trimmed_meanwhile_is_left_out(checkpoint: Checkpoint) -> None:
    """A query that trims its log each few seconds would never be verified otherwise."""
    place = find_log(str(checkpoint.path))
    whole, result = check(place), check(replace(place, storage=_Vanishing(place.storage)))
    assert result.findings == () and result.segments == whole.segments and result.stores == whole.stores


class _Retiring(ReadOnlyStorage):
    """A storage in which the oldest manifest is retired after the listing."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path == manifest_path(0):
            raise FileNotFoundError(path)
        return super().read(path, offset, length)


def test_a_manifest_that_is_retired_meanwhile_is_no_damage(checkpoint: Checkpoint) -> None:
    place = find_log(str(checkpoint.path))
    assert check(replace(place, storage=_Retiring(place.storage))).findings == ()


def test_a_query_that_moves_on_and_trims_is_not_accused(checkpoint: Checkpoint) -> None:
    def move_on(_: int) -> None:
        writer = make_writer(checkpoint.storage, writer_id=OTHER_WRITER)
        rows: pa.Table = records(*(b"window-%d" % n for n in range(1, 5)), kind=RecordKind.CHECK)
        for store in STORES:
            meta = commit_meta(5, store=store, open_windows=4, oldest_footprint=5, opened=0, checked=4, records=4)
            writer.append(FrameKind.COMMIT, meta, encode_records(rows))
        checkpoint.commit(4)
        old = list_segments(checkpoint.storage)[0].name
        checkpoint.storage.delete(segment_path(old))

    result = check(find_log(str(checkpoint.path)), move_on)
    assert result.findings == ()
    assert [each.version for each in result.stores] == [5] * len(STORES)


def test_damage_that_stays_is_accused_though_it_is_looked_at_twice(checkpoint: Checkpoint) -> None:
    result = check(find_log(str(checkpoint.path)), lambda _: checkpoint.segment.unlink())
    assert [finding.where for finding in result.findings] == [f"store {store}" for store in STORES]


def _metadata(checkpoint: Checkpoint, text: str) -> None:
    path = checkpoint.path / "state" / "0" / "_metadata" / "metadata"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_a_store_without_a_single_frame_is_missed(checkpoint: Checkpoint) -> None:
    _metadata(checkpoint, 'v1\n{"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3}]}')
    lost = "store 0/2/default"
    for command in ("inspect", "verify"):
        result = run(command, str(checkpoint.path), "--json")
        assert result.exit_code == 1
        (damage,) = answer(result)["damages"]
        assert (damage["kind"], damage["where"]) == ("lost", lost)
        assert "newest" in damage["reason"] and damage["reason"].endswith("none")


def test_a_log_that_lost_all_state_is_not_sound(checkpoint: Checkpoint) -> None:
    _metadata(checkpoint, 'v1\n{"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3}]}')
    checkpoint.segment.unlink()
    for manifest in (checkpoint.home / "manifests").iterdir():
        manifest.unlink()
    (damage,) = answer(run("verify", str(checkpoint.path), "--json"))["damages"]
    assert damage["where"] == "store 0/0/default"


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}',
        'v2\n{"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":9}]}',
        'v1\n{"stateStoreInfo":[{}]}',
        "v1",
        "",
    ],
)
def test_metadata_that_tells_nothing_more_accuses_nobody(checkpoint: Checkpoint, text: str) -> None:
    _metadata(checkpoint, text)
    assert run("verify", str(checkpoint.path)).exit_code == 0


def test_partitions_that_an_aggregation_without_keys_does_not_use_are_not_missed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    write_log(checkpoint.storage, 1, STORES[:1])
    (checkpoint.path / "cec" / "query.json").write_text(query_json(f"file:{checkpoint.home}"))
    checkpoint.commit(0)
    _metadata(checkpoint, 'v1\n{"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":5}]}')
    assert run("verify", str(checkpoint.path)).exit_code == 0


@pytest.mark.parametrize("batch", [1, 2])
def test_a_manifest_that_is_lost_is_found_by_the_gap(checkpoint: Checkpoint, batch: int) -> None:
    (path,) = (checkpoint.home / "manifests").glob(f"*{batch:020d}*")
    path.unlink()
    result = run("verify", str(checkpoint.path), "--json")
    assert result.exit_code == 1
    assert f"the manifest of batch {batch} is missing" in result.stdout


def test_the_segments_of_a_bundle_are_read_in_large_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for each of its small segments would wait for as many answers."""
    home = open_storage(str(tmp_path))
    join_log(home, LOG_ID)
    writer = make_writer(home, segment_bytes=1)
    for version in range(1, 41):
        writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version))
    writer.close()
    names = [file.name for file in list_segments(home)]
    view = Bundles(home)
    assert bundle_segments(view, names, new_writer_id(1)) is not None
    view.delete_files(names)
    asked = list[str]()

    class Counting(CannotAppend):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            asked.append(path)
            return super().read(path, offset, length)

    monkeypatch.setattr(find_log_module, "open_storage", lambda url: Counting(open_storage(url)))
    found = check(find_log(str(tmp_path)))
    assert (len(found.segments), found.findings) == (len(names), ())
    assert sum(path.startswith(f"{SEGMENTS}/") for path in asked) < 10
