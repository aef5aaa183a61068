"""The JSON lines."""

from __future__ import annotations

import json
from typing import Any

from spark_cec_lab.bench.measure import Measured
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.report import Report, rounded
from spark_cec_lab.bench.workloads import DEFAULTS, Shape

LOAD = (0.5, 1.25)


def _report(**batch_ms: list[float]) -> Report:
    report = Report("uniform", DEFAULTS[Shape.UNIFORM], True)
    for name, values in batch_ms.items():
        for number, value in enumerate(values):
            report.add(Provider(name), number, Measured({"batch_ms": value, "files_per_batch": 0.0}, {}), LOAD)
    return report


def _closing(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    summary, decision = (json.loads(json.dumps(line)) for line in report.closing())
    assert (summary["kind"], decision["kind"]) == ("summary", "verdict")
    return summary, decision


def test_the_line_of_a_run_says_what_was_run() -> None:
    report = Report("uniform", DEFAULTS[Shape.UNIFORM], True)
    measured = Measured({"batch_ms": 1500.0}, {"batch_ms_each": [1400.0, 1600.0], "metrics": {"commitMs": 1 / 3}})
    assert report.add(Provider.CEC, 1, measured, LOAD) == {
        "kind": "run", "task": "uniform", "keys": 2_000_000, "updates": 300_000, "partitions": 2, "provider": "cec",
        "round": 2, "batch_ms": 1500, "batch_ms_each": [1400, 1600], "metrics": {"commitMs": 0.3333},
        "load": [0.5, 1.25],
    }  # fmt: skip


def test_ratios_have_their_spread_and_the_verdict_follows() -> None:
    summary, decision = _closing(_report(cec=[100.0, 90.0, 120.0], rocksdb=[360.0] * 3, hdfs=[200.0, 180.0, 200.0]))
    assert summary["ratios"]["rocksdb"]["batch_ms"] == {"median": 0.2778, "low": 0.25, "high": 0.3333}
    assert summary["ratios"]["hdfs"]["batch_ms"] == {"median": 0.5, "low": 0.5, "high": 0.6}
    assert summary["medians"]["cec"]["batch_ms"] == 100
    assert (decision["must"], decision["aim"], decision["sizes_of_the_design"]) == (True, False, True)


def test_the_best_setting_of_a_store_is_named() -> None:
    summary, decision = _closing(_report(**{"cec": [100.0], "hdfs": [400.0], "hdfs-zstd": [250.0], "rocksdb": [500.0]}))
    against = {"against": "hdfs-zstd", "median": 0.4, "low": 0.4, "high": 0.4}
    assert summary["best"]["hdfs"] == {"batch_ms": against}
    assert summary["best"]["rocksdb"]["batch_ms"]["against"] == "rocksdb"
    rows = [(row["against"], row["best_of"], row["ratio"]) for row in decision["rows"]]
    assert rows == [("rocksdb", ["rocksdb"], 0.2), ("hdfs-zstd", ["hdfs-zstd", "hdfs"], 0.4)]


def test_an_eager_query_has_its_own_ratios() -> None:
    summary, _ = _closing(_report(**{"cec": [100.0], "cec-eager": [150.0], "rocksdb": [300.0]}))
    ratios = {name: each["batch_ms"]["median"] for name, each in summary["eager_ratios"].items()}
    assert ratios == {"cec": 1.5, "rocksdb": 0.5}
    assert summary["ratios"]["cec-eager"]["batch_ms"]["median"] == 0.6667
    assert "eager_ratios" not in _closing(_report(cec=[1.0]))[0]


def test_a_measure_that_is_0_for_them_has_no_ratio() -> None:
    summary, _ = _closing(_report(cec=[1.0], rocksdb=[1.0]))
    assert list(summary["ratios"]["rocksdb"]) == ["batch_ms"]


def test_without_the_others_there_is_nothing_to_judge() -> None:
    summary, decision = _closing(_report(cec=[100.0]))
    assert summary["ratios"] == {}
    assert decision["must"] is None


def test_without_ours_there_is_nothing_to_judge() -> None:
    summary, decision = _closing(_report(rocksdb=[100.0], hdfs=[50.0]))
    assert summary["ratios"] == {"rocksdb": {}, "hdfs": {}}
    assert decision["must"] is None


def test_rounding_leaves_what_is_not_a_float() -> None:
    value = {"a": 629.99999, "b": [1, True, None, "0.123456"], "c": (0.123456,)}
    assert repr(rounded(value)) == repr({"a": 630, "b": [1, True, None, "0.123456"], "c": [0.1235]})
