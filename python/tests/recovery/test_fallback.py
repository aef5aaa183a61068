"""Falling back: which version a query can begin from when frames are lost, and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from spark_cec.checkpoint.eventual import rebuild
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.ids import NO_CHECKPOINT, StoreId, new_id
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.index import Index, MemoryIndex
from spark_cec.log.record import RecordKind, encode_records
from spark_cec.log.segment import Location, segment_path
from spark_cec.recovery.decide import choose_base, refuse_foreign_fallback
from spark_cec.recovery.facts import is_fallback_done
from spark_cec.recovery.fallback import (
    Base,
    Loss,
    NoBase,
    StoreProbe,
    WholeStore,
    estimate_cost,
    find_base,
    make_probe,
)
from spark_cec.recovery.query_files import CARRIED, FALLBACK, Fallback, read_carried, save_carried
from tests.checkpoint.support import Log, record_table
from tests.hold_rule_model import Run, random_run
from tests.log.support import LOG_ID, commit_meta, memory_storage
from tests.recovery.fallback_model import base_of, eventual_checkpoint, footers, random_loss

FIRST, SECOND = StoreId(0, 0), StoreId(0, 1)


def lost_at(losses: dict[tuple[StoreId, int], int], dirty_from: int = 0) -> StoreProbe:
    """At (store, version) the frame of that version is lost; elsewhere all is there, and D so many batches back."""

    def probe(store: StoreId, version: int) -> WholeStore | Loss:
        lost = losses.get((store, version))
        return Loss(store, lost, "lost") if lost is not None else WholeStore(None, version - dirty_from)

    return probe


@pytest.mark.parametrize(
    ("losses", "dirty_from", "oldest", "wanted"),
    [
        pytest.param({}, 0, 0, (10, 10), id="nothing lost"),
        pytest.param({(FIRST, 10): 7}, 0, 0, (6, 6), id="the version before the lost one"),
        pytest.param({(FIRST, 10): 7}, 3, 0, (6, 3), id="and what is dirty there"),
        pytest.param({(FIRST, 10): 7}, 3, 2, (6, 3), id="within Spark's memory, with the batch before"),
        pytest.param({(FIRST, 10): 7}, 3, 3, None, id="just out of it"),
        pytest.param({(FIRST, 10): 7, (SECOND, 10): 5}, 0, 0, (4, 4), id="the store that lost most decides"),
        pytest.param({(FIRST, 10): 7, (FIRST, 6): 3}, 0, 0, (2, 2), id="another loss further back"),
        pytest.param({(FIRST, 10): 7, (SECOND, 6): 6}, 0, 0, (5, 5), id="in another store"),
        pytest.param({(FIRST, 10): 1}, 0, 0, (0, 0), id="from the very beginning"),
        pytest.param({(FIRST, 10): 1}, 0, 1, None, id="which Spark has forgotten"),
        pytest.param({(FIRST, 10): 10}, 0, 9, None, id="the newest, and the batch before it is forgotten"),
        pytest.param({(FIRST, 10): 10}, 0, 8, (9, 9), id="the newest"),
    ],
)
def test_the_newest_base(
    losses: dict[tuple[StoreId, int], int], dirty_from: int, oldest: int, wanted: tuple[int, int] | None
) -> None:
    found = find_base((FIRST, SECOND), 9, oldest, lost_at(losses, dirty_from))
    if wanted is None:
        assert isinstance(found, NoBase)
        assert found.oldest_batch == oldest
    else:
        assert isinstance(found, Base)
        assert (found.version, found.replay_from) == wanted
    assert {(each.store, each.version) for each in found.losses} == {(s, lost) for (s, _), lost in losses.items()}


def test_there_is_no_base_before_the_state_was_carried_here() -> None:
    """Spark has all batches, but those from before ran with another number of partitions, or another provider."""
    probe = lost_at({(FIRST, 10): 7}, 0)
    assert isinstance(find_base((FIRST, SECOND), 9, 0, probe, carried=6), Base)
    found = find_base((FIRST, SECOND), 9, 0, probe, carried=7)
    assert isinstance(found, NoBase)
    assert found.carried == 7


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": "many"}'])
def test_a_damaged_record_of_where_the_state_came_from_is_named(text: str) -> None:
    own = memory_storage()
    assert read_carried(own) == 0
    save_carried(own, 13)
    assert read_carried(own) == 13
    own.replace(CARRIED.name, text.encode())
    with pytest.raises(UnsuitableCheckpoint, match=r"carried\.json cannot be read"):
        read_carried(own)


@dataclass
class OnDisk:
    """A run's commits as frames."""

    run: Run
    log: Log = field(default_factory=Log)
    places: dict[int, Location] = field(default_factory=dict)

    def __post_init__(self) -> None:
        base, footprint = NO_CHECKPOINT, dict[int, int]()
        before: set[int] = set()
        for footer, (version, records) in zip(footers(self.run)[1:], self.run.log, strict=True):
            for key, window in records:
                footprint.update({key: version}) if window else footprint.pop(key)
            table = record_table(
                False,
                [
                    (_kind(window is None, key in before), b"%d" % key, {b"%d" % key: b"%d %d" % (window or (0, 0))})
                    for key, window in records
                ],
            )
            before = set(footprint)
            meta = commit_meta(
                version, store=FIRST, dirty_from=footer.dirty_from, open_windows=footer.open_windows,
                oldest_footprint=min(footprint.values(), default=version), records=len(records),
                checkpoint_id=new_id(), base_checkpoint_id=base, inputs=len(self.run.batches[version - 1]),
            )  # fmt: skip
            base = meta.checkpoint_id
            payload = encode_records(table, "lz4") if table is not None else b""
            header, self.places[version] = self.log.writer.append(FrameKind.COMMIT, meta, payload)
            self.log.catalog.note(header, self.places[version])

    def damage(self, version: int, *, header: bool) -> None:
        """Flips a byte of the frame's payload, or of its header."""
        place = self.places[version]
        path = segment_path(place.segment)
        data = bytearray(self.log.storage.read(path))
        data[place.offset + 40 if header else place.end - 6] ^= 0x40
        self.log.storage.replace(path, bytes(data))

    def seen_anew(self) -> MemoryIndex:
        """The index of somebody who opens the log now."""
        index = MemoryIndex(LOG_ID)
        Catalog(self.log.storage, index).refresh()
        return index


def _kind(closed: bool, was_open: bool) -> RecordKind:
    return RecordKind.CLOSE if closed else RecordKind.CHECK if was_open else RecordKind.OPEN


def base_without_headers(run: Run, lost: set[int]) -> int:
    """The newest version down from which no frame is missing, as far back as its oldest footprint."""
    version, known = len(run.batches), footers(run)
    while version:
        whole = eventual_checkpoint(run, version, known[version], ())
        assert not isinstance(whole, int)
        oldest = min((at for _, at in whole.values()), default=version)
        missing = lost & set(range(oldest, version + 1))
        if not missing:
            break
        version = max(missing) - 1
    return version


@pytest.mark.parametrize("header", [False, True], ids=["payloads", "headers"])
def test_frames_that_are_lost_lead_to_the_base_of_the_model(header: bool) -> None:
    """A frame without records has no payload to lose, but its header is a link of the chain.

    The last frame of a segment whose payload is wrong counts as unfinished, header and all: none is damaged there.
    """
    fell_back = 0
    for seed in range(150):
        run = random_run(seed)
        lost = {at for at in random_loss(run, seed) if header or (run.log[at - 1][1] and at < len(run.batches))}
        disk = OnDisk(run)
        for version in lost:
            disk.damage(version, header=header)
        index = disk.seen_anew()
        found = find_base((FIRST,), len(run.batches) - 1, 0, make_probe(disk.log.storage, index, lambda _: True))
        assert isinstance(found, Base), f"seed {seed}"
        assert found.version == (base_without_headers(run, lost) if header else base_of(run, lost)[0]), f"seed {seed}"
        assert found.replay_from == footers(run)[found.version].dirty_from, f"seed {seed}"
        fell_back += found.version < len(run.batches)
        for head in found.heads:
            rows = rebuild(disk.log.storage, index, head).records.to_pylist()
            whole = eventual_checkpoint(run, found.version, footers(run)[found.version], ())
            assert not isinstance(whole, int)
            assert {int(row["window"]): row["footprint"] for row in rows} == {key: at for key, (_, at) in whole.items()}
    assert fell_back > 30


def test_what_falling_back_costs_is_told_by_the_footers() -> None:
    run = random_run(3)
    disk = OnDisk(run)
    committed = len(run.batches) - 1
    base = Base(2, 1, (), ())
    cost = estimate_cost(disk.log.catalog.index, disk.log.catalog.index.stores(), base, committed)
    assert cost.batches == committed
    assert cost.inputs == sum(len(batch) for batch in run.batches[1:])


def done_entries(*commits: tuple[StoreId, int, int, int, int]) -> Index:
    """(store, version, generation, oldest footprint, dirty windows) each."""
    log = Log()
    for store, version, generation, oldest, dirty in commits:
        meta = commit_meta(
            version, store=store, generation=generation, oldest_footprint=oldest, dirty_windows=dirty,
            checkpoint_id=new_id(),
        )  # fmt: skip
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    return log.catalog.index


OLD = [(FIRST, 10, 4, 3, 2), (SECOND, 10, 4, 3, 2)]


@pytest.mark.parametrize(
    ("commits", "committed", "pending"),
    [
        pytest.param(OLD, 9, True, id="not begun"),
        pytest.param([*OLD, (FIRST, 10, 5, 10, 0)], 9, True, id="one store is done"),
        pytest.param(
            [*OLD, (FIRST, 10, 5, 10, 0), (SECOND, 10, 5, 3, 0)], 9, True, id="one still rests on older frames"
        ),
        pytest.param([*OLD, (FIRST, 10, 5, 10, 0), (SECOND, 10, 5, 10, 1)], 9, True, id="one is dirty"),
        pytest.param([*OLD, (FIRST, 10, 5, 10, 0), (SECOND, 10, 6, 10, 0)], 9, False, id="all are done"),
        pytest.param(OLD, 10, False, id="Spark has gone on"),
        pytest.param([], 9, True, id="of no store anything is left"),
        pytest.param([(FIRST, 10, 5, 10, 0)], 9, True, id="of one store nothing is left"),
    ],
)
def test_a_fallback_is_pending_until_every_store_has_been_written_whole(
    commits: list[tuple[StoreId, int, int, int, int]], committed: int, pending: bool
) -> None:
    fallback = Fallback(6, 9, 4)
    is_done = is_fallback_done(done_entries(*commits), (FIRST, SECOND), fallback)
    assert choose_base(fallback, is_done, committed) == (fallback.version if pending else committed + 1)


def test_nothing_is_pending_where_nothing_was_recorded() -> None:
    assert choose_base(None, False, 9) == 10


def test_a_fallback_of_another_copy_is_refused() -> None:
    with pytest.raises(UnsuitableCheckpoint, match="ends at batch 9, and this one ends at 8"):
        refuse_foreign_fallback(Fallback(6, 9, 4), False, 8)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1, "committed_batch": "x", "generation": 2}'])
def test_a_fallback_that_cannot_be_read_stops_the_start(text: str) -> None:
    own = memory_storage()
    own.replace(FALLBACK.name, text.encode())
    with pytest.raises(UnsuitableCheckpoint, match=r"fallback\.json cannot be read"):
        FALLBACK.read(own)
