"""The budgets, and when they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_cec_lab.bench.providers import PEERS, Provider, Rival
from spark_cec_lab.bench.ratios import Ratio
from spark_cec_lab.bench.verdict import judge, verdict

Source = Callable[[str, Provider | None], Ratio | None]


def _always(value: float) -> Source:
    return lambda measure, against: Ratio(value, value, value)


def _rows(task: str, partitions: int, source: Source) -> dict[tuple[str, str], Any]:
    return {(each.row, each.against): each for each in judge(task, partitions, source)}


@pytest.mark.parametrize(
    ("task", "partitions", "rows"),
    [
        ("uniform", 2, [("batch time, uniform", each) for each in ("rocksdb", "hdfs", "hashmap")]),
        ("slow", 2, [("bytes written per batch, slow windows", each) for each in ("rocksdb", "hdfs")]),
        (
            "slow",
            32,
            [
                ("bytes written per batch, slow windows", "rocksdb"),
                ("bytes written per batch, slow windows", "hdfs"),
                ("files created per batch, 32 partitions", "rocksdb"),
            ],
        ),
        ("fast", 2, []),
        ("fast", 32, [("files created per batch, 32 partitions", "rocksdb")]),
        (
            "recovery",
            2,
            [
                ("start() to the end of the first new batch", "rocksdb"),
                ("start() to the end of the first new batch", "hdfs"),
                ("load, µs for a footprint and core", ""),
            ],
        ),
        ("stores", 200, [("batch time, 200 stores", "rocksdb")]),
        ("pace", 2, [("p99 over median of the batch time", ""), ("longest pause for garbage collection", "stateless")]),
        ("agent", 2, [("a store's commit without records, in the agent, ms", "")]),
    ],
)
def test_each_task_measures_its_rows(task: str, partitions: int, rows: list[tuple[str, str]]) -> None:
    assert list(_rows(task, partitions, _always(1.0))) == rows


@pytest.mark.parametrize(
    ("against", "ratio", "must", "aim"),
    [
        ("rocksdb", 0.3, True, False),
        ("rocksdb", 0.301, False, False),
        ("rocksdb", 0.25, True, True),
        ("hdfs", 1 / 1.8, True, False),
        ("hdfs", 0.556, False, False),
        ("hdfs", 1 / 2.3, True, True),
        ("hashmap", 1.0, True, False),
        ("hashmap", 1.01, False, False),
        ("hashmap", 0.85, True, True),
    ],
)
def test_the_bounds_of_the_batch_time(against: str, ratio: float, must: bool, aim: bool) -> None:
    judged = _rows("uniform", 2, _always(ratio))["batch time, uniform", against]
    assert (judged.must_holds, judged.aim_holds) == (must, aim)


@pytest.mark.parametrize(
    ("task", "partitions", "bounds"),
    [
        ("slow", 2, [(1 / 20, 1 / 50), (1 / 20, 1 / 50)]),
        ("recovery", 2, [(1 / 2, 1 / 5), (1.0, 1 / 2), (1.0, 0.5)]),
        ("stores", 200, [(1 / 2, 1 / 5)]),
        ("pace", 2, [(1.4, 1.2), (1.5, 1.1)]),
        ("agent", 2, [(1.0, 0.2)]),
        ("fast", 32, [(1 / 8, 1 / 30)]),
    ],
)
def test_the_bounds_of_the_other_rows(task: str, partitions: int, bounds: list[tuple[float, float]]) -> None:
    assert [(row.must, row.aim) for row in judge(task, partitions, _always(1.0))] == bounds


def test_each_row_looks_at_its_own_measure() -> None:
    asked: list[tuple[str, Provider | None]] = []

    def source(measure: str, against: Provider | None) -> Ratio | None:
        asked.append((measure, against))
        return None

    for task in ("uniform", "slow", "recovery"):
        assert judge(task, 32, source) == []
    assert set(asked) == {
        *(("batch_ms", each) for each in (*Rival.ROCKSDB.peers, *Rival.HDFS.peers, Provider.HASHMAP)),
        *(("bytes_per_batch", each) for each in (*Rival.ROCKSDB.peers, *Rival.HDFS.peers)),
        *(("files_per_batch", each) for each in Rival.ROCKSDB.peers),
        *(("recovery_s", each) for each in (*Rival.ROCKSDB.peers, *Rival.HDFS.peers)),
        ("load_us_per_footprint", None),
    }


def test_the_best_setting_of_a_store_counts() -> None:
    """For each measure by itself: what is best in bytes may not be best in time."""
    ratios = {
        ("bytes_per_batch", Provider.ROCKSDB): 0.024, ("bytes_per_batch", Provider.ROCKSDB_ZSTD): 0.054,
        ("bytes_per_batch", Provider.HDFS): 0.06, ("bytes_per_batch", Provider.HDFS_ZSTD): 0.03,
        ("files_per_batch", Provider.ROCKSDB): 0.1, ("files_per_batch", Provider.ROCKSDB_ZSTD): 0.1,
        ("files_per_batch", Provider.ROCKSDB_TUNED): 0.1,
    }  # fmt: skip

    def source(measure: str, against: Provider | None) -> Ratio | None:
        found = ratios.get((measure, against)) if against else None
        return Ratio(found, found, found) if found else None

    judged = [(each.against, each.best_of, each.ratio, each.must_holds) for each in judge("slow", 32, source)]
    assert judged == [
        ("rocksdb-zstd", ("rocksdb-zstd", "rocksdb"), 0.054, False),
        ("hdfs", ("hdfs", "hdfs-zstd"), 0.06, False),
        ("rocksdb", ("rocksdb", "rocksdb-zstd", "rocksdb-tuned"), 0.1, True),
    ]


def test_every_setting_of_a_store_that_is_measured_by_default_can_count() -> None:
    settings = {peer for rival in Rival for peer in rival.peers}
    assert settings == {each for each in Provider if not each.is_ours}
    assert set(PEERS) - settings == {Provider.CEC, Provider.EAGER}


def test_the_median_decides_not_the_spread() -> None:
    judged = judge("slow", 2, lambda measure, against: Ratio(0.04, 0.001, 5.0))
    assert verdict(judged)["must"] is True


def test_all_rows_must_hold() -> None:
    def source(measure: str, against: Provider | None) -> Ratio:
        value = 0.1 if against in Rival.ROCKSDB.peers else 0.9
        return Ratio(value, value, value)

    found = verdict(judge("uniform", 2, source))
    assert (found["must"], found["aim"]) == (False, False)
    assert [row["must_holds"] for row in found["rows"]] == [True, False, True]
    json.dumps(found)


def test_nothing_measured_is_no_success() -> None:
    assert verdict([]) == {"must": None, "aim": None, "rows": []}
