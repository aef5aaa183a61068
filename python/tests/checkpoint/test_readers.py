"""The views as tables: projections, places, and what is said of dirty windows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.readers import log_records, output_batches, output_rows, window_rows
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.frame import FrameKind
from spark_cec.log.reader import read_frame
from spark_cec.log.record import encode_table
from tests.checkpoint.support import Log, Rows, Tip, record_table, request
from tests.log.support import output_meta

STORE = StoreId(2, 5)


def commit(log: Log, before: Tip, changes: dict[bytes, Rows], checked: set[bytes], *, grouped: bool = False) -> Tip:
    after, records = before.next(changes, checked)
    log.commit(request(STORE, before, after, records, grouped, whole=True), record_table(grouped, records))
    return after


def put_output(log: Log, batch: int, frame_id: int, table: pa.Table) -> str:
    meta = output_meta(frame_id, batch=batch, rows=table.num_rows)
    log.catalog.note(*log.writer.append(FrameKind.OUTPUT, meta, encode_table(table)))
    return meta.frame_id.hex()


def publish(log: Log, batch: int, *frames: str, truncate: bool = False) -> None:
    manifest.publish(log.storage, manifest.Manifest(batch, frames, 0, "{}", truncate, 1, 0))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_row_that_may_be_old_says_so(grouped: bool) -> None:
    """`dirty` is false where the row is certainly the state; the log cannot say which of the others are old."""
    log = Log()
    rows = {w: {w + b"/1": b"1", w + b"/2": b"2"} if grouped else {w: b"1"} for w in (b"a", b"b", b"c")}
    first = commit(log, Tip(), rows, set(), grouped=grouped)
    second = commit(log, first, {b"a": rows[b"a"]}, {b"b"}, grouped=grouped)
    for tip, dirty in (
        (first, {b"a": False, b"b": False, b"c": False}),
        (second, {b"a": None, b"b": False, b"c": None}),
    ):
        found = window_rows(
            rebuild(log.storage, log.catalog.index, head_at(log.catalog.index, STORE, tip.version))
        ).to_pylist()
        assert {row["key"][:1]: row["dirty"] for row in found} == dirty
        assert {row["key"]: row["value"] for row in found} == {k: v for w in rows for k, v in rows[w].items()}
        assert {row["key"][:1]: row["footprint_version"] for row in found} == tip.footprints
        assert {row["partition"] for row in found} == {5}


def test_a_store_without_windows_has_no_rows() -> None:
    log = Log()
    commit(log, Tip(), {}, set())
    assert window_rows(rebuild(log.storage, log.catalog.index, head_at(log.catalog.index, STORE, 1))).num_rows == 0


def test_log_records_of_plain_and_grouped_stores_are_one_table() -> None:
    log = Log()
    tip = commit(log, Tip(), {b"a": {b"a": b"1"}}, set())
    commit(log, tip, {b"a": {}}, set())
    commit(log, Tip(), {b"g": {b"k": b"2"}}, set(), grouped=True)
    places = [entry.location for entry in log.catalog.index.commits(STORE, 0, 9)]
    rows = log_records(log.storage, places, None).to_pylist()
    assert sorted((row["version"], row["kind"], row["window"], row["key"], row["value"]) for row in rows) == [
        (1, "OPEN", b"a", b"a", b"1"), (1, "OPEN", b"g", b"k", b"2"), (2, "CLOSE", b"a", b"a", None),
    ]  # fmt: skip
    assert {(row["segment"], row["offset"]) for row in rows} == {(place.segment, place.offset) for place in places}


@pytest.mark.parametrize("held", [None, 0, 1])
@pytest.mark.parametrize("columns", [None, ["n"], ["text", "n"], []])
def test_frames_of_two_schemas_are_one_table(columns: list[str] | None, held: int | None) -> None:
    """A query that was changed and restarted writes other columns; one of the frames may be in memory still."""
    log = Log()
    first = put_output(log, 0, 1, pa.table({"n": [1, 2]}))
    second = put_output(log, 1, 2, pa.table({"n": [3], "text": ["x"]}))
    publish(log, 0, first)
    publish(log, 1, second)
    found = output_batches(log.storage, log.catalog, 0, 9, whole=True, published=range(2))
    places = {entry.meta.frame_id: entry.location for entry in found}
    held_ids = list(places)[held : held + 1] if held is not None else []
    at_hand = {frame: memoryview(read_frame(log.storage, places[frame]).payload) for frame in held_ids}
    rows = output_rows(log.storage, places, columns, at_hand.get)
    assert rows.num_rows == 3
    whole: list[dict[str, object]] = [{"n": 1, "text": None}, {"n": 2, "text": None}, {"n": 3, "text": "x"}]
    if columns != []:
        assert rows.to_pylist() == [{name: row[name] for name in columns or ["n", "text"]} for row in whole]


def test_a_frame_that_has_taken_the_place_of_another_is_not_it() -> None:
    """`cec repair` moves frames to the front; two of the same length may change places."""
    log = Log()
    names = [put_output(log, batch, batch + 1, pa.table({"n": [batch]})) for batch in range(2)]
    places = {bytes.fromhex(name): log.catalog.index.output(bytes.fromhex(name)) for name in names}
    first, second = (entry.location for entry in places.values() if entry)
    moved = {bytes.fromhex(names[1]): first}
    with pytest.raises(DamagedLog, match="another frame is there"):
        output_rows(log.storage, moved, None)
    assert output_rows(log.storage, {bytes.fromhex(names[1]): second}, None).to_pylist() == [{"n": 1}]


def test_batches_and_their_order() -> None:
    log = Log()
    late = put_output(log, 1, 9, pa.table({"n": [9]}))
    early = put_output(log, 0, 3, pa.table({"n": [3]}))
    orphan = put_output(log, 0, 4, pa.table({"n": [4]}))
    twice = put_output(log, 1, 9, pa.table({"n": [9]}))
    assert twice == late
    publish(log, 1, late)
    publish(log, 0, early)
    found = output_batches(log.storage, log.catalog, 0, 9, whole=True, published=range(2))
    assert [entry.meta.frame_id.hex() for entry in found] == [early, late]
    assert orphan not in {entry.meta.frame_id.hex() for entry in found}


@pytest.mark.parametrize(("whole", "wanted"), [(True, [2, 3]), (False, [0, 1, 2, 3])])
def test_output_that_was_replaced_is_left_out_of_a_whole_read(whole: bool, wanted: list[int]) -> None:
    log = Log()
    for batch in range(4):
        publish(log, batch, put_output(log, batch, batch + 1, pa.table({"n": [batch]})), truncate=batch in (0, 2))
    found = output_batches(log.storage, log.catalog, 0, 9, whole, range(4))
    assert [entry.meta.batch for entry in found] == wanted


def test_a_frame_that_a_manifest_names_and_nobody_has_is_damage() -> None:
    log = Log()
    publish(log, 3, "cd" * 16)
    with pytest.raises(
        DamagedLog, match=r"output frame (cd)+ of batch 3: the manifest names it, but no segment holds it"
    ):
        output_batches(log.storage, log.catalog, 0, 9, whole=True, published=range(3, 4))
