"""A query with its whole checkpoint on HDFS (`MiniDFSCluster`, on loopback): SIGKILLs, restarts, two drivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it.checkpoints import for_spark, settings_of
from cec_it.fed_pages import feeding
from cec_it.killed_jobs import (
    BATCHES,
    await_batches,
    make_drivers,
    make_jobs,
    rows_of,
    run_disturbed,
    run_two_drivers,
    start,
    stderr_of,
)
from cec_it.mini_hdfs import MiniHdfs, run_hdfs
from cec_it.replicated_shop import Shop
from spark_cec.adapters.fsspec_storage import open_storage
from testbed.processes import ProcessTree

pytest.importorskip("hdfs_native", reason="hdfs-native is not installed: pip install 'spark-cec[hdfs]'")


@pytest.fixture(scope="module")
def pair() -> Iterator[MiniHdfs]:
    """Two name nodes: a client finds them by Spark's settings alone."""
    with run_hdfs(name_nodes=2) as running:
        yield running


def conf_of(server: MiniHdfs) -> dict[str, str]:
    return for_spark(server.settings())


@pytest.mark.parametrize("doubles", [False, True], ids=["integers", "doubles"])
def test_a_killed_query_with_its_checkpoint_on_hdfs_is_exact(doubles: bool, pair: MiniHdfs, tmp_path: Path) -> None:
    checkpoint = f"{pair.url}/queries/doubles-{doubles}"
    undisturbed, killed = make_jobs(tmp_path, checkpoint, conf_of(pair), doubles=doubles)
    assert start(undisturbed).wait(240) == 0
    run_disturbed(killed)
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    with settings_of(pair.settings()):
        log = open_storage(f"{checkpoint}/cec/log")
        assert log.list("segments") and open_storage(f"{checkpoint}/cec").list("lease")


def test_a_second_driver_is_refused_by_name(pair: MiniHdfs, tmp_path: Path) -> None:
    first, second, _ = make_drivers(tmp_path, f"{pair.url}/queries/refused", conf_of(pair))
    one = start(first)
    try:
        await_batches(first, 2, one)
        assert start(second).wait(240) == 1
        assert "is running already (agent process" in stderr_of(second) and rows_of(second) == {}
        await_batches(first, len(rows_of(first)) + 2, one)
    finally:
        ProcessTree(one.pid).kill()


@pytest.mark.long
def test_of_two_drivers_one_goes_on(pair: MiniHdfs, tmp_path: Path) -> None:
    """One is paused and continued."""
    run_two_drivers(*make_drivers(tmp_path, f"{pair.url}/queries/two", conf_of(pair)))


@pytest.mark.long
def test_replicas_with_their_home_on_hdfs(pair: MiniHdfs, spark: SparkSession, tmp_path: Path) -> None:
    """An input goes away, and the drivers are killed in turn. The other one knows after its lease's time."""
    conf = {**conf_of(pair), "cec.test.home": f"{pair.url}/replicas"}
    with feeding(spark, tmp_path) as feed, Shop(tmp_path, "local[2]", feed, conf) as shop:
        end_s = shop.kill_in_turn("ab")
        shop.stop()
    shop.check(end_s)
