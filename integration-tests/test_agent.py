"""The agent process: killed while a query runs, and gone when its JVM is."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local, log, results
from cec_it.cluster import AGENT, EXECUTOR, LOOPBACK, QUICK, command_of
from cec_it.crashes import Driver, driver, log_bytes
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch, start
from cec_it.plans import PLANS
from cec_it.references import References
from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry
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


ENDS_WITHIN_S = 120.0


# A clean stop sends the executors a message; a JVM that ends closes its stores in a hook. Neither runs in a thread of a
# task, and only these know the classes of a jar that came with the application.
@pytest.mark.parametrize("how", ["stop", pytest.param("leave", marks=pytest.mark.long)])
def test_executors_write_what_is_dirty_though_their_agents_are_dead(
    how: str, references: References, tmp_path: Path
) -> None:
    query = Query("long-window-updates", feeds.RATE, FOREACH)
    conf = {
        CEC + "CI": "0ms",
        CEC + "effort": "0",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "700m",
        "spark.executor.extraJavaOptions": " ".join(QUICK),
        "spark.sql.shuffle.partitions": "4",
    }
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS, master="local-cluster[2,1,700]", conf=conf)
    with driver(job, "cec_it.waiting_driver") as child:
        heard(child, "idle")
        executors = local.eventually(lambda: two_or_none(members(child, EXECUTOR)), "two executors")
        agents = local.eventually(lambda: two_or_none(agents_of(executors)), "their agents")
        assert any(entry.meta.dirty_windows for entry in newest_frames(job.checkpoint(query))), (
            "there is something to write"
        )
        for agent in agents:
            local.kill(agent)
        (tmp_path / "end").write_text(how)
        heard(child, "done")
        assert child.exit_code(ENDS_WITHIN_S) == 0
        local.eventually(lambda: not members(child, EXECUTOR) or None, "the executors' end", ENDS_WITHIN_S)
        left = newest_frames(job.checkpoint(query))
        assert len(left) == 4
        assert not any(entry.meta.dirty_windows for entry in left), child.log.read_text(errors="replace")[-3000:]
        local.eventually(lambda: not members(child, AGENT) or None, "no agent is left behind")
    assert results.last_recorded(job.out(query)) == references.get(query, job)


def heard(child: Driver, wanted: str) -> None:
    """Waits for this event of a driver."""
    while True:
        event = child.next_event(ENDS_WITHIN_S)
        assert event is not None and event[1]["event"] != "failed", f"{event}: {child.log}"
        if event[1]["event"] == wanted:
            return


def members(child: Driver, words: bytes) -> list[int]:
    """The processes under a driver with these words in their command lines."""
    return [pid for pid in child.members() if words in command_of(pid)]


def agents_of(parents: list[int]) -> list[int]:
    found = [local.child_running(parent, AGENT) for parent in parents]
    return [pid for pid in found if pid is not None]


def two_or_none(pids: list[int]) -> list[int] | None:
    return pids if len(pids) == 2 else None


def newest_frames(checkpoint: Path) -> list[CommitEntry]:
    """The newest frame of each store that counts: of its last commit, or of the flush behind that.

    A stop may come in the middle of a batch, whose attempts Spark has not committed.
    """
    version, found = newest(checkpoint / "commits") + 1, dict[StoreId, CommitEntry]()
    for entry in log.frames(checkpoint):
        place = (entry.meta.version, entry.meta.is_flush)
        known = found.get(entry.meta.store)
        if entry.meta.version <= version and (known is None or place >= (known.meta.version, known.meta.is_flush)):
            found[entry.meta.store] = entry
    return list(found.values())
