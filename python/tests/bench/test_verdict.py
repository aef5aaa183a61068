"""The budgets, and when they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_cec.bench.providers import Provider
from spark_cec.bench.ratios import Ratio
from spark_cec.bench.verdict import judge, verdict

Source = Callable[[str, Provider], Ratio | None]


def _always(value: float) -> Source:
    return lambda measure, against: Ratio(value, value, value)


def _rows(task: str, partitions: int, source: Source) -> dict[tuple[str, str], Any]:
    return {(each.row, each.against): each for each in judge(task, partitions, source)}


@pytest.mark.parametrize(
    ("task", "partitions", "rows"),
    [
        ("uniform", 2, [("batch time, uniform", "rocksdb"), ("batch time, uniform", "hdfs")]),
        ("slow", 2, [("bytes written per batch, slow windows", "rocksdb")]),
        (
            "slow",
            32,
            [
                ("bytes written per batch, slow windows", "rocksdb"),
                ("files created per batch, 32 partitions", "rocksdb"),
            ],
        ),
        ("fast", 2, []),
        ("fast", 32, [("files created per batch, 32 partitions", "rocksdb")]),
        ("recovery", 2, [("start() to the end of the first new batch", "rocksdb")]),
    ],
)
def test_each_task_measures_its_rows(task: str, partitions: int, rows: list[tuple[str, str]]) -> None:
    assert list(_rows(task, partitions, _always(1.0))) == rows


@pytest.mark.parametrize(
    ("against", "ratio", "must", "aim"),
    [
        ("rocksdb", 1 / 1.8, True, False),
        ("rocksdb", 0.556, False, False),
        ("rocksdb", 1 / 2.5, True, True),
        ("hdfs", 1 / 1.4, True, False),
        ("hdfs", 0.715, False, False),
        ("hdfs", 1 / 1.8, True, True),
    ],
)
def test_the_bounds_of_the_batch_time(against: str, ratio: float, must: bool, aim: bool) -> None:
    judged = _rows("uniform", 2, _always(ratio))["batch time, uniform", against]
    assert (judged.must_holds, judged.aim_holds) == (must, aim)


@pytest.mark.parametrize(
    ("task", "partitions", "must", "aim"),
    [("slow", 2, 1 / 5, 1 / 20), ("recovery", 2, 1 / 2, 1 / 5), ("fast", 32, 1 / 8, 1 / 30)],
)
def test_the_bounds_of_the_other_rows(task: str, partitions: int, must: float, aim: float) -> None:
    (row,) = judge(task, partitions, _always(1.0))
    assert (row.must, row.aim) == (must, aim)


def test_each_row_looks_at_its_own_measure() -> None:
    asked: list[tuple[str, Provider]] = []

    def source(measure: str, against: Provider) -> Ratio | None:
        asked.append((measure, against))
        return None

    for task in ("uniform", "slow", "recovery"):
        assert judge(task, 32, source) == []
    assert set(asked) == {
        ("batch_ms", Provider.ROCKSDB),
        ("batch_ms", Provider.HDFS),
        ("bytes_per_batch", Provider.ROCKSDB),
        ("files_per_batch", Provider.ROCKSDB),
        ("recovery_s", Provider.ROCKSDB),
    }


def test_the_median_decides_not_the_spread() -> None:
    judged = judge("slow", 2, lambda measure, against: Ratio(0.1, 0.01, 5.0))
    assert verdict(judged)["must"] is True


def test_all_rows_must_hold() -> None:
    def source(measure: str, against: Provider) -> Ratio:
        value = 0.1 if against is Provider.ROCKSDB else 0.9
        return Ratio(value, value, value)

    found = verdict(judge("uniform", 2, source))
    assert (found["must"], found["aim"]) == (False, False)
    assert [row["must_holds"] for row in found["rows"]] == [True, False]
    json.dumps(found)


def test_nothing_measured_is_no_success() -> None:
    assert verdict([]) == {"must": None, "aim": None, "rows": []}
