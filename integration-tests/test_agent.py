"""The agent process: killed while a query runs, and gone when its JVM is."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local, results
from cec_it.crashes import driver, log_bytes
from cec_it.driver import FOREACH, Job, Query, last_batch, start
from cec_it.plans import PLANS
from cec_it.references import References
from testbed.spark_logs import newest

QUERY = Query("window-append", feeds.RATE, FOREACH)


def test_a_query_goes_on_when_its_agent_is_killed_between_commits(
    spark: SparkSession, references: References, tmp_path: Path
) -> None:
    job = Job(str(tmp_path), (QUERY,), 12, 200)
    own = local.session(spark, local.OPENINGS_ONLY)
    record = results.recorder(job.out(QUERY), 0)
    killed: list[int] = []

    def kill_then_record(frame: DataFrame, batch: int) -> None:
        if batch in (3, 4, 8):
            killed.append(local.agent_pid(spark))
            local.kill(killed[-1])
        record(frame, batch)

    frame = PLANS[QUERY.plan].build(lambda side: feeds.read_rate(own, side, job.batches, job.rows))
    writer = frame.writeStream.option("checkpointLocation", str(job.checkpoint(QUERY))).foreachBatch(kill_then_record)
    streaming = writer.start()
    try:
        local.wait_for(streaming, last_batch(job))
    finally:
        streaming.stop()
    assert len(set(killed)) == 3
    assert results.calls_of(job.out(QUERY), 0)[: last_batch(job) + 1] == list(range(last_batch(job) + 1))
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)


def test_a_query_goes_on_when_its_agent_is_killed_during_commits(
    spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = replace(QUERY, plan="count-windows", sink="cec")
    seed = 7
    job = Job(str(tmp_path), (query,), 12, 200)
    own = local.session(spark, local.OPENINGS_ONLY)
    streaming = start(own, job, query)
    killed: list[int] = []
    over = threading.Event()

    def kill_as_the_log_grows() -> None:
        dice = random.Random(seed)
        for batch in (2, 5, 6, 9):
            size, growths = -1, dice.randint(1, 3)
            while growths and not over.wait(0.001):
                now = log_bytes(job.checkpoint(query)) if newest(job.checkpoint(query) / "offsets") >= batch else size
                growths -= now != size
                size = now
            if not over.is_set():
                killed.append(local.agent_pid(spark))
                local.kill(killed[-1])

    killer = threading.Thread(target=kill_as_the_log_grows)
    killer.start()
    try:
        local.wait_for(streaming, last_batch(job))
    finally:
        over.set()
        killer.join()
        streaming.stop()
    assert len(killed) == 4, f"seed {seed}"
    # What the log says must be enough for a restart.
    local.run_to(own, replace(job, life=1), query, last_batch(job) + 3)
    report = local.reports(job.checkpoint(query), 1)[0]
    assert report["digest_ok"] is True, f"seed {seed}: {report}"
    rows = results.json_rows(spark.read.format("cec").load(str(job.checkpoint(query))))
    wanted = results.union(references.get(query, job))
    assert not results.difference(results.union({0: rows}), wanted), f"seed {seed}"


def test_the_agent_ends_with_its_jvm(tmp_path: Path) -> None:
    job = Job(str(tmp_path), (QUERY,), 1000, 10)
    with driver(job) as child:
        jvm = local.eventually(lambda: local.child_running(child.pid, b"org.apache.spark.deploy.SparkSubmit"), "a JVM")
        agent = local.eventually(lambda: local.child_running(jvm, b"spark_cec.agent"), "an agent")
        local.eventually(lambda: newest(job.checkpoint(QUERY) / "commits") >= 1 or None, "two batches")
        handle = os.pidfd_open(agent)
        try:
            os.kill(jvm, signal.SIGKILL)
            assert local.select_on(handle, local.DEADLINE_S), "the agent outlives its JVM"
        finally:
            os.close(handle)
