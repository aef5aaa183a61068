"""The eventual checkpoint against a dict: random histories, interleaved stores, rival attempts, pieces of all sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from spark_cec.checkpoint import eventual
from spark_cec.checkpoint.eventual import _keep_newest, _number_windows, chain_of, head_at, rebuild
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.meta import CommitFlags, CommitMeta
from spark_cec.log.reader import read_frame
from spark_cec.log.segment import segment_path
from tests.checkpoint.support import Log, Rows, Tip, found_state, record_table, request
from tests.log.support import FaultyStorage, make_writer, memory_storage

STORES = (StoreId(0, 0), StoreId(0, 1), StoreId(3, 0, "left-keyToNumValues"))
GROUPED = {STORES[0]: False, STORES[1]: True, STORES[2]: False}
WINDOWS = [b"%d" % i for i in range(7)]

values = st.binary(max_size=3)
changed = st.dictionaries(
    st.sampled_from(WINDOWS), st.lists(st.tuples(st.integers(0, 3), values), max_size=3), max_size=5
)
choices = st.sets(st.sampled_from(WINDOWS), max_size=7)


def rows_of(store: StoreId, window: bytes, content: list[tuple[int, bytes]]) -> Rows:
    """Rows of a window in that store: some keys in a grouped one, else the window itself."""
    if not content:
        return {}
    return {b"%s/%d" % (window, key): value for key, value in content} if GROUPED[store] else {window: content[0][1]}


def commit(log: Log, store: StoreId, before: Tip, changes: dict[bytes, Rows], checked: set[bytes], **more: int) -> Tip:
    """One commit of a store; what it is then."""
    after, records = before.next(changes, checked)
    grouped = GROUPED[store]
    log.commit(request(store, before, after, records, grouped, whole=True, **more), record_table(grouped, records))
    return after


def flush(log: Log, store: StoreId, tip: Tip, generation: int) -> Tip:
    """A flush of an attempt; the attempt after that."""
    after, records = tip.flushed()
    grouped = GROUPED[store]
    more = {"inputs": 0, "generation": generation, "flags": CommitFlags.FLUSH}
    sent = request(store, tip, after, records, grouped, whole=True, **more)
    log.flush(sent, record_table(grouped, records))
    return after


def check(log: Log, store: StoreId, tip: Tip, read_bytes: int) -> None:
    """The eventual checkpoint of this attempt is what it must be, in pieces of that size or so many records."""
    index = log.catalog.index
    with mock.patch.object(eventual, "READ_BYTES", read_bytes), mock.patch.object(eventual, "READ_RECORDS", read_bytes):
        checkpoint = rebuild(log.storage, index, head_at(index, store, tip.version, tip.checkpoint_id))
    assert found_state(checkpoint, GROUPED[store]) == (tip.seen, tip.footprints)
    assert checkpoint.live() == {at: list(tip.footprints.values()).count(at) for at in tip.footprints.values()}


class Histories(RuleBasedStateMachine):
    """Tips of all attempts that were ever committed; a commit may rest on any of them."""

    tips: Bundle[tuple[StoreId, Tip, int]] = Bundle("tips")

    @initialize(
        read_bytes=st.sampled_from([1, 600, 2_000, 1 << 20]), segment_bytes=st.sampled_from([500, 4_000, 1 << 20])
    )
    def begin(self, read_bytes: int, segment_bytes: int) -> None:
        self.read_bytes = read_bytes
        self.log = Log(segment_bytes=segment_bytes)
        self.clock = self.writers = 0
        self.all: list[tuple[StoreId, Tip, int, int]] = []

    @initialize(target=tips)
    def new_stores(self) -> MultipleResults[tuple[StoreId, Tip, int]]:
        return multiple(*[(store, Tip(), 1) for store in STORES])

    @rule(target=tips, tip=tips, batches=st.lists(st.tuples(changed, choices), min_size=1, max_size=4))
    def commits(
        self, tip: tuple[StoreId, Tip, int], batches: list[tuple[dict[bytes, list[tuple[int, bytes]]], set[bytes]]]
    ) -> tuple[StoreId, Tip, int]:
        """Batches on top of any attempt: the newest one, a retry, or a zombie's."""
        store, at, generation = tip
        for changes, checked in batches:
            self.clock += 1
            rows = {window: rows_of(store, window, content) for window, content in changes.items()}
            at = commit(self.log, store, at, rows, checked, generation=generation, wall_ms=self.clock)
            self.all.append((store, at, generation, self.clock))
        return store, at, generation

    @rule(target=tips, tip=consumes(tips))
    def is_flushed(self, tip: tuple[StoreId, Tip, int]) -> tuple[StoreId, Tip, int]:
        """The next commit rests on the flush."""
        store, at, generation = tip
        return store, self._flush(*tip) if at.version else at, generation

    @rule(tip=tips)
    def is_flushed_unknown_to_what_rests_on_it(self, tip: tuple[StoreId, Tip, int]) -> None:
        """As where an executor has written an older version for another one, or where the answer was lost."""
        if tip[1].version:
            self._flush(*tip)

    def _flush(self, store: StoreId, at: Tip, _: int) -> Tip:
        place = next(i for i, each in enumerate(self.all) if each[1].checkpoint_id == at.checkpoint_id)
        known, generation, wall_ms = self.all[place][1:]
        after = flush(self.log, store, at, generation) if known.dirty else known
        self.all[place] = (store, after, generation, wall_ms)
        return after

    @rule(target=tips, tip=consumes(tips))
    def a_new_run(self, tip: tuple[StoreId, Tip, int]) -> tuple[StoreId, Tip, int]:
        store, at, generation = tip
        return store, at, generation + 1

    @rule(seq=st.integers(0, 1 << 20))
    def another_writer(self, seq: int) -> None:
        self.log.writer = make_writer(self.log.storage, self.log.segment_bytes, self._name_writer(seq))

    @rule()
    def the_index_is_lost(self) -> None:
        self.log = Log(self.log.storage, self._name_writer((1 << 30) + self.clock), self.log.segment_bytes)

    def _name_writer(self, began: int) -> str:
        """A writer's id, which no other one has: a flush moves neither the clock nor the attempts."""
        self.writers += 1
        return f"{began:012x}-{self.writers:016x}"

    def _index(self) -> Index:
        return self.log.catalog.index

    @invariant()
    def each_attempt_has_its_own_checkpoint(self) -> None:
        for store, tip, _, _ in self.all[-4:]:
            check(self.log, store, tip, self.read_bytes)

    @invariant()
    def the_newest_runs_last_attempt_stands_for_a_version(self) -> None:
        best: dict[tuple[StoreId, int], tuple[int, int, bytes]] = {}
        for store, tip, generation, wall_ms in self.all:
            rank = (generation, wall_ms, tip.checkpoint_id)
            best[(store, tip.version)] = max(best.get((store, tip.version), rank), rank)
        for (store, version), (_, _, checkpoint_id) in best.items():
            assert head_at(self._index(), store, version).meta.checkpoint_id == checkpoint_id


TestHistories = Histories.TestCase
TestHistories.settings = budget(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("store", STORES[:2], ids=["plain", "grouped"])
def test_long_histories(store: StoreId) -> None:
    """Deeper than the machine goes: windows that open, close and open again, old footprints, pieces of all sizes."""
    for seed in range(10):
        rng = random.Random(seed)
        log, tip = Log(segment_bytes=rng.choice([500, 4_000, 1 << 20])), Tip()
        for _ in range(20):
            touched = rng.sample(WINDOWS, rng.choice([0, 1, 2, 4]))
            rows = {
                w: rows_of(store, w, [(rng.randrange(4), rng.randbytes(2))] * rng.choice([0, 1, 2])) for w in touched
            }
            tip = commit(log, store, tip, rows, {w for w in WINDOWS if rng.random() < 0.1})
            try:
                check(log, store, tip, rng.choice([1, 2_000, 1 << 20]))
            except Exception as error:
                raise AssertionError(f"seed {seed} at version {tip.version}") from error


def ten_versions(log: Log) -> list[Tip]:
    """Window i opens in version i + 1; nothing is checked, so that every frame is needed."""
    tips = [Tip()]
    for version in range(10):
        after, records = tips[-1].next({b"w%d" % version: {b"w%d" % version: b"v"}}, set())
        log.commit(request(STORES[0], tips[-1], after, records, False, whole=True), record_table(False, records))
        tips.append(after)
    return tips


def rewritten(log: Log, **changes: Callable[[CommitMeta], Any]) -> Index:
    """A log with the same frames, but for what is changed in the newest one's meta; its checksums are right."""
    entries = log.catalog.index.commits(STORES[0], 0, 99)
    other = Log()
    for entry in entries:
        meta = entry.meta
        frame = read_frame(log.storage, entry.location)
        if meta.version == 10:
            fields = {name: change(meta) for name, change in changes.items()}
            meta = CommitMeta(**{**{f: getattr(meta, f) for f in CommitMeta.__dataclass_fields__}, **fields})
        other.catalog.note(*other.writer.append(frame.kind, meta, frame.payload, frame.header.flags))
    log.storage = other.storage
    return other.catalog.index


@pytest.mark.parametrize("change", [1, 3, -1])
def test_a_number_of_windows_that_the_log_does_not_hold_is_damage(change: int) -> None:
    log = Log()
    ten_versions(log)
    index = rewritten(log, open_windows=lambda meta: meta.open_windows + change)
    head = head_at(index, STORES[0], 10)
    with pytest.raises(
        DamagedLog, match=rf"has {10 + change} open windows at version 10, but the log holds footprints of 10"
    ) as damage:
        rebuild(log.storage, index, head)
    assert (damage.value.segment, damage.value.offset) == (head.location.segment, head.location.offset)


def test_a_frame_that_is_missing_is_named() -> None:
    log = Log(segment_bytes=1)
    ten_versions(log)
    gone = log.catalog.index.commits(STORES[0], 4, 4)[0]
    log.storage.delete(segment_path(gone.location.segment))
    head = head_at(log.catalog.index, STORES[0], 10)
    with pytest.raises(DamagedLog, match="the segment is missing") as damage:
        rebuild(log.storage, log.catalog.index, head)
    assert damage.value.segment == gone.location.segment
    log.catalog.refresh()
    with pytest.raises(DamagedLog, match="the commit frame of version 4, which version 5 rests on, is lost"):
        rebuild(log.storage, log.catalog.index, head)


def test_a_frame_whose_payload_is_damaged_is_named() -> None:
    log = Log(segment_bytes=1)
    ten_versions(log)
    bad = log.catalog.index.commits(STORES[0], 7, 7)[0].location
    data = bytearray(log.storage.read(segment_path(bad.segment)))
    data[bad.end - 6] ^= 1
    log.storage.replace(segment_path(bad.segment), bytes(data))
    with pytest.raises(DamagedLog, match="the payload fails its checksum") as damage:
        rebuild(log.storage, log.catalog.index, head_at(log.catalog.index, STORES[0], 10))
    assert (damage.value.segment, damage.value.offset) == (bad.segment, bad.offset)


@pytest.mark.parametrize(
    ("version", "checkpoint_id", "says"),
    [
        (11, None, r"store 0/0/default: no commit frame of version 11; newest at or below it: 10"),
        (0, None, r"no commit frame of version 0; newest at or below it: none"),
        (3, bytes(16), r"no commit frame of version 3 with checkpoint id 0{32}; newest at or below it: 3"),
    ],
)
def test_a_version_that_is_not_there_is_named(version: int, checkpoint_id: bytes | None, says: str) -> None:
    log = Log()
    ten_versions(log)
    with pytest.raises(DamagedLog, match=says):
        head_at(log.catalog.index, STORES[0], version, checkpoint_id)


def test_a_chain_goes_no_further_back_than_it_must() -> None:
    log = Log()
    tips = ten_versions(log)
    after, records = tips[-1].next({}, set(tips[-1].state))
    log.commit(request(STORES[0], tips[-1], after, records, False, whole=True), record_table(False, records))
    head = head_at(log.catalog.index, STORES[0], 11)
    assert [entry.meta.version for entry in chain_of(log.catalog.index, head)] == [11]
    assert [entry.meta.version for entry in chain_of(log.catalog.index, head, 9)] == [11, 10, 9]
    checkpoint = rebuild(log.storage, log.catalog.index, head)
    assert checkpoint.scanned == 10
    assert set(checkpoint.live()) == {11}


def test_values_are_not_put_together_to_count_windows() -> None:
    """`take` makes one chunk of each column, and 2 GB of values have no room in one: no grouped store would load."""
    rows = pa.table(
        {"window": [b"a", b"a", b"b"], "key": [b"1", b"2", b"3"], "value": [b"x"] * 3, "footprint": [1] * 3}
    )
    first = eventual._keep_one_row(rows)
    assert first.to_pydict() == {"window": [b"a", b"b"], "footprint": [1, 1]}


def long_windows(chunks: int) -> pa.Table:
    """Chunks of 120 MB that share their bytes: windows of a megabyte, which differ within a chunk."""
    rows, size = 120, 1_000_000
    data = b"".join(number.to_bytes(4, "little") * (size // 4) for number in range(rows))
    offsets = pa.array(range(0, (rows + 1) * size, size), pa.int32()).buffers()[1]
    chunk = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(data)])
    return pa.table({"window": pa.chunked_array([chunk] * chunks)})


def test_newer_windows_of_more_than_two_gib_decide() -> None:
    """One array of 32-bit offsets has no room for them."""
    windows = long_windows(18)
    assert windows.nbytes > 1 << 31
    others = pa.table({"window": [windows["window"][7].as_py(), b"another"]})
    assert eventual._drop_decided(others, [windows.slice(0, 0), windows])["window"].to_pylist() == [b"another"]
    assert eventual._drop_decided(windows, [windows.slice(0, 120)]).num_rows == 0


def test_windows_are_numbered_by_a_table_that_may_exceed_two_gib() -> None:
    """The hash table has a copy of all windows, so this test looks at the type alone."""
    column = mock.Mock(type=pa.binary())
    column.cast.return_value = pa.chunked_array([[b"a", b"bc"], [b"a"]], pa.large_binary())
    codes, distinct = eventual._encode_values(column)
    assert (codes.tolist(), distinct) == ([0, 1, 0], 2)
    column.cast.assert_called_once_with(pa.large_binary())


def test_rows_of_families_keep_their_order() -> None:
    """A join of Arrow's mixes them, and puts values together in batches without room for 2 GiB."""
    number = 200_000
    rows = pa.table(
        {
            "family": pa.array([each % 3 for each in range(number)], pa.int16()),
            "window": [b"%d" % each for each in range(number)],
            "value": pa.array(range(number)),
        }
    )
    newer = rows.slice(1000, 5).select(["family", "window"])
    kept = eventual._drop_decided(rows, [newer])
    assert kept["value"].to_pylist() == [each for each in range(number) if not 1000 <= each < 1005]


@pytest.mark.parametrize("families", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_windows_are_told_apart_by_all_their_bytes(seed: int, families: bool) -> None:
    """Whatever way is taken: word by word, or as they are."""
    rng = np.random.default_rng(seed)
    for width, varying in ((8, 1), (8, 2), (16, 1), (24, 2), (40, 3), (48, 5), (12, 2), (264, 1), (0, 0), (16, 0)):
        rows = np.zeros((300, width), dtype=np.uint8)
        places = rng.permutation(width)[:varying]
        rows[:, places] = rng.integers(0, 7, (300, varying))
        values = [row.tobytes() for row in rows]
        if seed % 2:
            values[rng.integers(300)] = b"of another length"
        columns = {"window": pa.chunked_array([values[:100], values[100:101], [], values[101:]], pa.binary())}
        if families:
            columns["family"] = pa.array(rng.integers(0, 3, 300), pa.int16())
        table = pa.table(columns)
        codes, distinct = _number_windows(table)
        wanted = list(zip(*table.to_pydict().values(), strict=True))
        same = dict(zip(wanted, codes.tolist(), strict=True))
        assert [same[each] for each in wanted] == codes.tolist(), f"seed {seed}, width {width}"
        assert len(set(same.values())) == len(same), f"seed {seed}, width {width}"
        assert max(codes) < distinct
        kept = _keep_newest(table.append_column("footprint", pa.array(range(300))))
        assert kept["footprint"].to_pylist() == [wanted.index(each) for each in dict.fromkeys(wanted)]


def test_a_flush_that_the_log_has_already_is_synced() -> None:
    """An agent may have died between its write and its sync. The one that comes after it acknowledges the flush."""
    store, storage = STORES[0], FaultyStorage(memory_storage())
    log = Log(storage=storage)
    tip = commit(log, store, Tip(), {w: rows_of(store, w, [(1, b"a")]) for w in WINDOWS}, set())
    for times in range(3):
        flush(log, store, tip, generation=1)
        assert storage.fault.seen.count("sync") == times


@pytest.mark.parametrize("store", STORES[:2], ids=["plain", "grouped"])
def test_a_flush_that_came_later_does_not_count_for_what_rests_on_its_commit(store: StoreId) -> None:
    """An executor has written an older version for another one, or the answer to a flush was lost."""
    log = Log()
    rows = {w: rows_of(store, w, [(1, b"a")]) for w in WINDOWS}
    first = commit(log, store, Tip(), rows, set())
    base = commit(log, store, first, {w: rows_of(store, w, [(1, b"b")]) for w in WINDOWS[:4]}, set())
    child = commit(log, store, base, {WINDOWS[0]: rows_of(store, WINDOWS[0], [(1, b"c")])}, {WINDOWS[1]})
    whole = flush(log, store, base, generation=1)
    check(log, store, child, 1 << 20)
    assert child.dirty == {WINDOWS[0]: 1, WINDOWS[2]: 1, WINDOWS[3]: 1}
    check(log, store, whole, 1 << 20)
    check(log, store, commit(log, store, child, {}, set()), 1 << 20)
    check(log, store, commit(log, store, whole, {}, set()), 1 << 20)
