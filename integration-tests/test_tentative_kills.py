"""Two replicas with tentative rows, each in a process of its own: an input goes away, and they are killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it import cluster
from cec_it.fed_pages import INPUTS, feeding
from cec_it.local import eventually
from cec_it.replicated_shop import Answers, Shop
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.availability.epochs import newest_epoch


@pytest.mark.parametrize("master", [
    pytest.param("local[2]", id="local"),
    pytest.param("local-cluster[2,1,1024]", id="two executors", marks=pytest.mark.long),
])  # fmt: skip
def test_replicas_are_killed_while_an_input_is_away(master: str, spark: SparkSession, tmp_path: Path) -> None:
    """Answers go on in the other replica. In the end all windows are stable, right and there once."""
    with feeding(spark, tmp_path) as feed, Shop(tmp_path, master, feed) as shop:
        end_s = shop.kill_in_turn("abb")
        eventually(lambda: not any(has_epoch(each, tmp_path) for each in "ab") or None, "no epoch is open", 120.0)
        eventually(lambda: shop.have_both(end_s) or None, "both replicas have all windows", 120.0)
        shop.stop()
    shop.check(end_s)
    shop.check_channels(spark, end_s)
    assert len(Answers(tmp_path).undone) >= 3


def has_epoch(replica: str, root: Path) -> bool:
    """Whether the flow has an open epoch there."""
    epoch = newest_epoch(open_storage(f"{root}/home/replicas/{replica}/flows/totals"))
    return epoch is not None and epoch.is_open


@pytest.mark.long
def test_a_replica_that_loses_all_executors_gives_the_sink_back(spark: SparkSession, tmp_path: Path) -> None:
    """It is on a cluster of its own, whose only machine goes down. It comes back, and takes the sink again."""
    with cluster.running(tmp_path / "cluster", workers=1) as machines, feeding(spark, tmp_path) as feed, Shop(
        tmp_path, "local[2]", feed
    ) as shop:
        shop.start("a", machines.url, machines.conf())
        shop.await_sinks("a")
        shop.start("b")
        shop.put(5, 25, *INPUTS)
        shop.await_stable()
        machines.workers[0].lose()
        shop.put(25, 55, *INPUTS)
        shop.await_sinks("b")
        shop.await_stable()
        machines.replace(machines.workers[0])
        machines.await_workers()
        shop.put(55, 75, *INPUTS)
        shop.await_stable()
        shop.living.pop("b").kill()
        shop.put(75, 105, *INPUTS)
        shop.await_sinks("a")
        end_s = shop.await_stable()
        assert shop.living["a"].end() == 0
    shop.check(end_s)
