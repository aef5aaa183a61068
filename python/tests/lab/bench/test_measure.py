"""The schedule of a run, and what is checked on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Schedule, check_state, committed_batch, load_cost, pace_of, pauses_of
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.workloads import Shape, Workload


def test_the_schedule_numbers_batches_from_0() -> None:
    schedule = Schedule(fill=7, warm_up=2, timed=3)
    assert (schedule.first_timed, schedule.last) == (9, 11)
    assert [schedule.describe(batch, 12.4) for batch in (0, 6, 7, 8, 9, 11)] == [
        "fill 1/7", "fill 7/7", "warm-up 1/2", "warm-up 2/2", "batch 1/3: 12 ms", "batch 3/3: 12 ms",
    ]  # fmt: skip


def test_a_state_that_is_not_full_is_refused() -> None:
    workload = Workload(Shape.UNIFORM, keys=100, updates=30)
    check_state(_spec(Provider.ROCKSDB, workload), {"batch": 5, "state_rows": 100})
    with pytest.raises(BenchError, match="batch 5: the state has 99 rows where the fill opened 100"):
        check_state(_spec(Provider.ROCKSDB, workload), {"batch": 5, "state_rows": 99})
    check_state(_spec(Provider.ROCKSDB_TUNED, workload), {"batch": 5, "state_rows": 0})
    check_state(_spec(Provider.CEC, Workload(Shape.SLOW, keys=100, updates=30)), {"batch": 5, "state_rows": 103})


def _spec(provider: Provider, workload: Workload) -> JobSpec:
    return JobSpec(provider, workload, "", "", "", "1g", "", (), None)


def test_the_committed_batch_is_the_largest_number(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no committed batch"):
        committed_batch(tmp_path)
    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".11.crc", "12.tmp", "checksum"):
        (tmp_path / "commits" / name).touch()
    assert committed_batch(tmp_path) == 10


def test_the_cost_of_a_load_is_that_of_the_newest_recovery(tmp_path: Path) -> None:
    assert load_cost(tmp_path) == {}
    reports = tmp_path / "cec" / "recoveries"
    reports.mkdir(parents=True)
    for name, ms in (("100", 9_000.0), ("200", 30.0)):
        stores = [{"ec_load_ms": ms, "open_windows": 10_000}, {"ec_load_ms": None, "open_windows": 5_000}]
        (reports / f"{name}.json").write_text(json.dumps({"stores": stores}))
    assert load_cost(tmp_path) == {"load_us_per_footprint": 3.0}
    (reports / "300.json").write_text(json.dumps({"stores": []}))
    assert load_cost(tmp_path) == {}


def test_the_pace_says_what_the_slowest_batches_have_that_others_have_not() -> None:
    slow = {"batch_ms": 900.0, "gc_ms": 500.0, "commitMs": 80.0}
    rest = [{"batch_ms": 390.0 + i % 21, "gc_ms": 0.0, "commitMs": 80.0} for i in range(198)]
    measured = pace_of([*rest[:50], slow, *rest[50:], {**slow, "batch_ms": 1000.0}], [7.5, 30.0, 8.5])
    assert measured.values["longest_pause_ms"] == 30.0
    assert (measured.details["pauses"], measured.details["median_pause_ms"]) == (3, 8.5)
    assert measured.values["batch_ms"] == 400.0
    assert (measured.values["p99_over_median"], measured.details["p99_ms"]) == (900.0 / 400.0, 900.0)
    assert measured.details["batches"] == 200
    assert (measured.details["usual"]["gc_ms"], measured.details["slowest"]["gc_ms"]) == (0.0, 500.0)
    assert measured.details["usual"]["commitMs"] == measured.details["slowest"]["commitMs"] == 80.0


def test_pauses_are_read_from_the_collectors_log(tmp_path: Path) -> None:
    log = tmp_path / "gc.log"
    log.write_text(
        "[0.01s][info][gc] Using G1\n"
        "[0.24s][info][gc] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 51M->7M(1024M) 5.123ms\n"
        "[0.30s][info][gc] GC(1) Concurrent Mark Cycle 31.507ms\n"
        "[0.31s][info][gc] GC(1) Pause Remark 9M->9M(1024M) 1.250ms\n"
        "[0.40s][info][gc] GC(2) Pause Young (Conc"
    )
    assert pauses_of(log) == [5.123, 1.25]
    assert "longest_pause_ms" not in pace_of([{"batch_ms": 1.0}], []).values
