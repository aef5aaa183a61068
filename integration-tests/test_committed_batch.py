"""V, the batch that a start goes on after: the shim and the command line say the same of the same logs of Spark's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it import feeds, local
from cec_it.sparklogs import cut
from spark_cec.admin.find_log import open_to_read
from spark_cec.recovery.spark_logs import committed_batch
from testbed.spark_logs import newest

HISTORIES: dict[str, tuple[list[str], list[str], int]] = {
    "nothing was planned": ([], [], -1),
    "the first batch was planned": (["0"], [], -1),
    "the first batch was committed": (["0"], ["0"], 0),
    "a batch was planned and not committed": ([*"012345"], [*"01234"], 4),
    "all batches were committed": ([*"012345"], [*"012345"], 5),
    "all commits are gone": ([*"012345"], [], 4),
    "the newest commits are gone": ([*"012345"], [*"012"], 4),
    "the oldest commits are gone": ([*"345"], ["5"], 5),
    "numbers of more digits": (["8", "9", "10"], ["8", "9", "10"], 10),
    "what Spark leaves beside": (
        ["4", ".4.crc", "5", ".5.crc", "6.tmp", ".6.a1b2.tmp"],
        ["4", ".4.crc", "5.tmp", ".5.crc", "5.crc", "metadata"],
        4,
    ),
    "the newest plans are gone": ([*"0123"], [*"012345"], 2),
    "all plans are gone": ([], [*"012"], -1),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_the_shim_and_the_command_line_have_one_rule(spark: SparkSession, tmp_path: Path, history: str) -> None:
    offsets, commits, wanted = HISTORIES[history]
    for log, names in (("offsets", offsets), ("commits", commits)):
        for name in names:
            (tmp_path / log).mkdir(exist_ok=True)
            (tmp_path / log / name).touch()
    jvm: Any = spark._jvm
    logs = jvm.org.apache.spark.sql.cec.recovery.SparkLogs(spark._jsparkSession, str(tmp_path))
    assert (logs.lastCommitted(), committed_batch(open_to_read(str(tmp_path)))) == (wanted, wanted)


def run_to(
    spark: SparkSession, checkpoint: Path, batch: int, written: dict[int, set[tuple[object, ...]]], **conf: str
) -> None:
    """Run a query until it has committed `batch`; what it writes is added to `written`."""

    def write(frame: DataFrame, number: int) -> None:
        rows = {tuple(row) for row in frame.collect()}
        assert written.setdefault(number, rows) == rows, f"batch {number}, run again"

    own = local.session(spark, local.OPENINGS_ONLY, **conf)
    totals = feeds.read_rate(own, "left", local.BATCHES, local.ROWS).groupBy("key").agg(f.sum("amount"))
    writer = totals.writeStream.foreachBatch(write).outputMode("complete")
    streaming = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()


@pytest.mark.parametrize("lost", ["all", "the newest two"])
def test_commits_that_are_gone_are_named_where_they_hold_the_ids_of_the_state(
    spark: SparkSession, tmp_path: Path, lost: str
) -> None:
    ids = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
    run_to(spark, tmp_path, 4, {}, **ids)
    commits, planned = tmp_path / "commits", newest(tmp_path / "offsets")
    last = newest(commits)
    cut(commits, range(last + 1) if lost == "all" else (last - 1, last))
    with pytest.raises(Exception, match=rf"commits/{planned - 1} is gone, and with it the ids .*restore it"):
        run_to(spark, tmp_path, planned + 2, {}, **ids)


@pytest.mark.parametrize("lost", ["all", "the newest two"])
def test_a_query_that_has_lost_commits_runs_its_newest_batch_again(
    spark: SparkSession, tmp_path: Path, lost: str
) -> None:
    written: dict[int, set[tuple[object, ...]]] = {}
    run_to(spark, tmp_path / "cut", 4, written)
    commits = tmp_path / "cut" / "commits"
    last, planned = newest(commits), newest(tmp_path / "cut" / "offsets")
    cut(commits, range(last + 1) if lost == "all" else (last - 1, last))
    assert committed_batch(open_to_read(str(tmp_path / "cut"))) == planned - 1
    run_to(spark, tmp_path / "cut", planned + 2, written)
    undisturbed: dict[int, set[tuple[object, ...]]] = {}
    run_to(spark, tmp_path / "whole", planned + 2, undisturbed)
    assert {number: written[number] for number in range(planned + 3)} == {
        number: undisturbed[number] for number in range(planned + 3)
    }
