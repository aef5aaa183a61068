"""What earlier recoveries foretell."""

from __future__ import annotations

import json
import random

import pytest

from spark_cec.checkpoint.recovery_target import Forecast
from spark_cec.log.storage import Storage
from spark_cec.recovery.forecast import NEWEST, fit, forecast
from tests.log.support import memory_storage


def write(storage: Storage, *reports: tuple[float | None, float]) -> Storage:
    for number, (work_ms, duration_ms) in enumerate(reports):
        text = json.dumps({"predicted_work_ms": work_ms, "duration_ms": duration_ms})
        storage.create(f"recoveries/{1_700_000_000_000 + number}.json", text.encode())
    return storage


def test_without_recoveries_there_is_no_base() -> None:
    assert forecast(memory_storage(), 2.0, autotune=False) == Forecast(None, 1.0, 0.0, 2.0)


def test_few_recoveries_give_the_base_alone() -> None:
    assert fit([(100.0, 1_100.0), (500.0, 1_700.0)]) == (1_100.0, 1.0)
    assert fit([(500.0, 100.0)]) == (0.0, 1.0), "a base below zero is none"


@pytest.mark.parametrize("seed", range(20))
def test_the_line_is_found_among_strange_recoveries(seed: int) -> None:
    dice = random.Random(seed)
    points = [(x, 900.0 + 0.6 * x + dice.gauss(0, 20)) for x in (dice.uniform(0, 5_000) for _ in range(13))]
    points += [(2_000.0, 60_000.0), (3_000.0, 45_000.0)]
    base, ratio = fit(points)
    assert ratio == pytest.approx(0.6, abs=0.15), f"seed {seed}"
    assert base == pytest.approx(900.0, abs=400.0), f"seed {seed}"


def test_recoveries_with_the_same_work_say_nothing_of_the_ratio() -> None:
    assert fit([(100.0, 500.0)] * 6) == (400.0, 1.0)


def test_a_ratio_stays_within_reason() -> None:
    assert fit([(float(x), 1_000.0 * x) for x in range(0, 60, 10)])[1] == 3.0


def test_only_the_newest_count_and_damaged_reports_say_nothing() -> None:
    storage = write(memory_storage(), *[(0.0, 9_000.0)] * 5, *[(0.0, 100.0)] * NEWEST, (None, 7.0))
    storage.create("recoveries/1800000000000.json", b"{")
    storage.create("recoveries/1800000000001.json", b"[]")
    assert forecast(storage, 1.0, autotune=False).base_ms == 100.0


def test_failures_are_counted_since_the_first_run_and_only_for_autotune() -> None:
    storage = write(memory_storage(), *[(0.0, 1.0)] * 6)
    for number in (1, 2):
        storage.create(f"generations/{number:010d}.json", json.dumps({"started_unix_ms": number * 1_000}).encode())
    assert forecast(storage, 1.0, autotune=False).failures_per_s == 0.0
    assert 0 < forecast(storage, 1.0, autotune=True).failures_per_s < 6 / 1e9
    for damaged in (b"", b"[]", b'{"started_unix_ms": "soon"}'):
        storage.replace("generations/0000000001.json", damaged)
        assert forecast(storage, 1.0, autotune=True).failures_per_s == 0.0
