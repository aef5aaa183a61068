"""The report of a recovery."""

from __future__ import annotations

import json

import pytest

from spark_cec.ids import StoreId
from spark_cec.recovery.decide import RecoveryPlan
from spark_cec.recovery.report import LoadedStore, compose_report, loaded_payload, write_report
from tests.log.support import commit_meta, memory_storage

STORES = (StoreId(0, 0), StoreId(0, 1))


def plan() -> RecoveryPlan:
    heads = tuple(
        commit_meta(9, store=store, extent=40 + i, replay=7 * i, dirty_windows=i) for i, store in enumerate(STORES)
    )
    return RecoveryPlan(8, 5, 9, tuple(head.store for head in heads), heads)


def loaded(store: StoreId, ok: bool | None, wall_ms: int = 1_500) -> LoadedStore:
    return LoadedStore(store, 9, 2.5, ok, 3, wall_ms)


@pytest.mark.parametrize(
    ("verdicts", "digest_ok"),
    [
        ((True, True), True),
        ((True, False), False),
        ((None, False), False),
        ((True, None), None),
        ((None, None), None),
        ((), None),
    ],
)
def test_the_digest_is_right_only_if_every_stores_is(verdicts: tuple[bool | None, ...], digest_ok: bool | None) -> None:
    report = compose_report(plan(), [loaded(store, ok) for store, ok in zip(STORES, verdicts, strict=False)], 1_000)
    assert report["digest_ok"] is digest_ok


def test_what_it_says() -> None:
    report = compose_report(plan(), [loaded(STORES[0], True, 1_700), loaded(STORES[1], True, 1_600)], 1_000)
    assert (report["committed_batch"], report["rewound_to"], report["replayed_batches"]) == (8, 5, 3)
    assert (report["started_unix_ms"], report["duration_ms"]) == (1_000, 700)
    assert report["stores"][1] == {
        "operator": 0,
        "partition": 1,
        "store": "default",
        "version": 9,
        "open_windows": 9,
        "dirty_windows": 1,
        "extent_records": 41,
        "replay_inputs": 7,
        "ec_load_ms": 2.5,
        "digest_ok": True,
        "held": 3,
    }


def test_a_store_that_is_not_back_has_no_numbers_yet() -> None:
    report = compose_report(plan(), [loaded(STORES[0], True)], 1_000)
    assert [store["ec_load_ms"] for store in report["stores"]] == [2.5, None]
    assert report["stores"][1]["digest_ok"] is None


def test_of_a_store_that_was_loaded_twice_the_last_word_counts() -> None:
    twice = [loaded(STORES[0], False, 1_200), loaded(STORES[0], True, 1_300), loaded(STORES[1], True)]
    assert compose_report(plan(), twice, 1_000)["digest_ok"] is True, "the last batch of the replay was run again"


def test_it_is_written_under_its_start() -> None:
    storage = memory_storage()
    report = compose_report(plan(), [], 1_234)
    path = write_report(storage, report)
    assert path == "recoveries/1234.json"
    assert json.loads(storage.read(path)) == report


def test_the_payload_of_a_loaded_frame() -> None:
    assert json.loads(loaded_payload(loaded(STORES[0], None))) == {"ec_load_ms": 2.5, "digest_ok": None, "held": 3}
