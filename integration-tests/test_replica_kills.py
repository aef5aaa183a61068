"""Two replicas in processes of their own, which are killed in turn."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from cec_it import replica_driver
from cec_it.local import eventually
from cec_it.replica_process import Driver


def written(root: Path) -> list[list[Any]]:
    """All rows that the sink has written."""
    return [row for path in sorted((root / "out").glob("[0-9]*.json")) for row in json.loads(path.read_text())]


def newest(root: Path) -> float:
    """The end of the newest window that the sink has written, in seconds."""
    return max((row[0] for row in written(root)), default=0.0)


def advances(root: Path, seconds: float, root_of: dict[str, Driver]) -> None:
    """Waits until the sink has that many more seconds of windows, in either replica."""
    begin = newest(root) or replica_driver.BEGIN_MS / 1000

    def look() -> bool | None:
        dead = [name for name, each in root_of.items() if each.process.poll() is not None]
        assert not dead, (root / f"stderr-{dead[0]}").read_text()[-3000:]
        return newest(root) >= begin + seconds or None

    eventually(look, lambda: f"{seconds} s more than {begin}, not {newest(root)}", 240.0)


def right_windows(spark: SparkSession, root: Path, until_s: float) -> dict[tuple[float, int], tuple[int, int, float]]:
    """The windows up to a time, from the batches on which the replicas have agreed, in plain Python."""
    found: dict[tuple[float, int], tuple[int, int, float]] = {}
    for source in replica_driver.SOURCES:
        channel = f"{root}/home/replicas/a/flows/{source}"
        batches = defaultdict[int, list[Row]](list)
        for row in spark.read.format("cec").load(channel).collect():
            batches[row.n // replica_driver.ROWS].append(row)
        latest = floor = 0
        for _, batch in sorted(batches.items()):
            for row in batch:
                ms = int(row.time.timestamp() * 1000)
                end = (ms // replica_driver.WINDOW_MS + 1) * replica_driver.WINDOW_MS
                if ms >= floor and end / 1000 <= until_s:
                    count, n, price = found.get((end / 1000, row.page), (0, 0, 0.0))
                    found[end / 1000, row.page] = count + 1, n + row.n, price + float(row.price)
            latest = max(latest, *(int(row.time.timestamp() * 1000) for row in batch))
            floor = (latest - replica_driver.DELAY_MS) // replica_driver.BUCKET_MS * replica_driver.BUCKET_MS
    return found


def windows_of(spark: SparkSession, root: Path, replica: str, until_s: float) -> Counter[tuple[Any, ...]]:
    """The rows of the flow in one replica, up to a time, without the sums of doubles."""
    rows = spark.read.format("cec").load(f"{root}/home/replicas/{replica}/flows/totals").collect()
    return Counter((row.time, row.page, row.rows, row.n) for row in rows if row.time.timestamp() <= until_s)


@pytest.mark.parametrize(("master", "price"), [
    pytest.param("local[2]", "BIGINT", id="local"),
    pytest.param("local-cluster[2,1,1024]", "DOUBLE", id="two executors", marks=pytest.mark.long),
])  # fmt: skip
def test_replicas_are_killed_in_turn(master: str, price: str, spark: SparkSession, tmp_path: Path) -> None:
    """The sink has each window once, with the rows that are right by the batches on which the replicas have agreed."""
    (tmp_path / "out").mkdir()
    living = {name: Driver(replica_driver, name, tmp_path, master, price) for name in "ab"}
    try:
        advances(tmp_path, 10, living)
        for victim in "abab":
            living.pop(victim).kill()
            advances(tmp_path, 10, living)
            living[victim] = Driver(replica_driver, victim, tmp_path, master, price)
            await_running(tmp_path, victim, newest(tmp_path))
        until_s = newest(tmp_path)
        eventually(lambda: all(reached(tmp_path, each) >= until_s for each in "ab") or None, "both are there", 240.0)
        assert [each.end() for each in living.values()] == [0, 0], (tmp_path / "stderr-a").read_text()[-3000:]
    finally:
        for each in living.values():
            each.kill()
    rows = written(tmp_path)
    end_s = round(until_s + 1e-6, 3)
    right = right_windows(spark, tmp_path, end_s)
    shown = {(round(end + 1e-6, 3), page): (count, n, price) for end, page, count, n, price in rows}
    assert len(shown) == len(rows), "each window once"
    assert not list((tmp_path / "out").glob("differs-*")), "a repeat has the same rows"
    due = {key: each for key, each in shown.items() if key[0] <= end_s}
    assert {key: each[:2] for key, each in due.items()} == {key: each[:2] for key, each in right.items()}
    assert all(price == pytest.approx(right[key][2]) for key, (_, _, price) in due.items())
    assert windows_of(spark, tmp_path, "a", until_s) == windows_of(spark, tmp_path, "b", until_s)


def await_running(root: Path, replica: str, until_s: float) -> None:
    """Waits until a replica that was started again has caught up with the sink."""
    eventually(lambda: reached(root, replica) >= until_s or None, f"replica {replica} catches up", 240.0)


def reached(root: Path, replica: str) -> float:
    """Up to when, in seconds, a replica has given out all windows."""
    path = root / f"home/replicas/{replica}/flows/totals/cec/log/boundary.json"
    return json.loads(path.read_text())["columns"].get("time", 0) / 1000 if path.exists() else 0.0
