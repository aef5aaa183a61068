"""What bad input gets: an error at `start()` that names thing, value and mend, before anything is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from cec_it import feeds, local
from cec_it.crashes import Life, driver, follow
from cec_it.driver import CEC, FOREACH, Job, Query, start
from cec_it.references import SPARKS_OWN

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
QUERY = Query("totals", feeds.RATE, FOREACH)

BAD_SETTINGS = {
    "unknown": (
        {"Qu": "2x"},
        r"cec\.Qu='2x': unknown setting; did you mean spark\.sql\.streaming\.stateStore\.cec\.Q\?",
    ),
    "wrong case": ({"log.Path": "/x"}, r"cec\.log\.Path.*did you mean .*cec\.log\.path\?"),
    "misspelt": ({"log.segmentByte": "1MiB"}, r"did you mean .*cec\.log\.segmentBytes\?"),
    "no unit": ({"CI": "10"}, r"cec\.CI='10': give a duration with a unit"),
    "no number": ({"CP": "soon"}, r"cec\.CP='soon': give a duration"),
    "CI > CP": ({"CI": "200ms"}, r"cec\.CI='200ms': CI may not exceed CP \(100ms\): lower CI or raise CP"),
    "Q": ({"Q": "-3"}, r"cec\.Q='-3': give a count of records above 0 such as"),
    "relative": ({"log.path": "logs"}, r"cec\.log\.path='logs': give an absolute path, or a URL"),
    "U": ({"U": "many"}, r"cec\.U='many': give a whole number"),
    "mode": ({"mode": "lazy"}, r"cec\.mode='lazy': give one of auto, eager, deferred"),
    "segment": ({"log.segmentBytes": "12"}, r"cec\.log\.segmentBytes='12': give at least 4KiB"),
    "compression": ({"log.compression": "rar"}, r"cec\.log\.compression='rar': give one of"),
    "location": ({"log.path": "nowhere://x/y"}, r"nowhere"),
    "not a directory": ({"log.path": "/dev/null/log"}, r"/dev/null/log"),
}


def job_in(root: Path, query: Query = QUERY) -> Job:
    return Job(str(root), (query,), 4, 40)


def refused(spark: SparkSession, job: Job, words: str, query: Query = QUERY) -> None:
    """The query does not start, for this reason."""
    with pytest.raises(AnalysisException, match=f"(?s){words}"):
        start(spark, job, query).stop()


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_named(name: str, spark: SparkSession, tmp_path: Path) -> None:
    settings, words = BAD_SETTINGS[name]
    job = job_in(tmp_path)
    refused(local.session(spark, settings), job, words)
    assert not local.files_in(job.checkpoint(QUERY))


def test_an_unattainable_q_is_clamped_with_a_warning(spark: SparkSession, spark_log: Path, tmp_path: Path) -> None:
    already = spark_log.stat().st_size
    job = job_in(tmp_path)
    local.run_to(local.session(spark, {"Q": "0.5x"}), job, QUERY, 1)
    assert "cec.Q='0.5x' cannot be attained" in spark_log.read_text()[already:]
    assert "Q=1x" in str(local.query_json(job.checkpoint(QUERY))["settings"])


def test_a_setting_of_the_agent_comes_too_late_while_one_runs(
    spark: SparkSession, spark_log: Path, tmp_path: Path
) -> None:
    first = start(local.session(spark), job_in(tmp_path / "first"), QUERY)
    try:
        already = spark_log.stat().st_size
        local.run_to(local.session(spark, {"agent.timeout": "67s"}), job_in(tmp_path / "second"), QUERY, 1)
        said = spark_log.read_text()[already:]
    finally:
        first.stop()
    assert "cec.agent.timeout=67s is not heeded: the agents of this application run already, with " in said
    assert "cec.agent.python" not in said


def test_a_log_location_that_cannot_be_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        blocked = tmp_path / "file"
        blocked.write_text("in the way")
    else:
        blocked = tmp_path / "read-only"
        blocked.mkdir(mode=0o500)
    job = job_in(tmp_path)
    refused(local.session(spark, {"log.path": str(blocked / "log")}), job, str(blocked))
    assert not local.files_in(job.checkpoint(QUERY))


def test_checkpoints_of_other_providers_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    theirs, ours = local.session(spark, {PROVIDER_KEY: SPARKS_OWN}), local.session(spark)
    begun_by_them, begun_by_us = job_in(tmp_path / "theirs"), job_in(tmp_path / "ours")
    local.run_to(theirs, begun_by_them, QUERY, 1)
    local.run_to(ours, begun_by_us, QUERY, 1)
    refused(ours, begun_by_them, "was begun with the state store provider .*HDFSBacked.*start a new checkpoint")
    refused(theirs, begun_by_us, "was begun with .*CecStateStoreProvider.*its state is in a Spark CEC log")
    assert not (begun_by_them.checkpoint(QUERY) / "cec").exists()
    local.run_to(theirs, replace(begun_by_them, life=1), QUERY, 3)
    local.run_to(ours, replace(begun_by_us, life=1), QUERY, 3)


def test_a_checkpoint_whose_log_is_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = job_in(tmp_path)
    own = local.session(spark, {"log.path": str(tmp_path / "log")})
    local.run_to(own, job, QUERY, 2)
    shutil.move(tmp_path / "log", tmp_path / "elsewhere")
    before = sorted(path.name for path in (job.checkpoint(QUERY) / "commits").iterdir())
    refused(own, job, "has committed batches but no Spark CEC log at .*its log is gone. Restore the log")
    assert sorted(path.name for path in (job.checkpoint(QUERY) / "commits").iterdir()) == before
    refused(
        local.session(spark, {"log.path": str(tmp_path / "log2")}), job, "give back the sink's `path` and cec.log.path"
    )


def test_two_queries_may_not_share_a_log(spark: SparkSession, tmp_path: Path) -> None:
    query = Query("totals", feeds.RATE, "cec")
    first, second = job_in(tmp_path / "first", query), job_in(tmp_path / "second", query)
    local.run_to(spark, first, query, 1)
    frame = feeds.read_rate(spark, "left", 4, 40).groupBy("key").count()
    writer = (
        frame.writeStream.format("cec")
        .outputMode("complete")
        .option("checkpointLocation", str(second.checkpoint(query)))
    )
    with pytest.raises(
        Exception, match=r"holds the log of another query \(id [0-9a-f]+\): give this query a log location of its own"
    ):
        writer.option("path", str(first.checkpoint(query) / "cec" / "log")).start()
    with pytest.raises(Exception, match="the sink's path='logs': give an absolute path, or a URL"):
        writer.option("path", "logs").start()


def damage(segment: Path, at: int) -> None:
    data = bytearray(segment.read_bytes())
    data[at] ^= 0xFF
    segment.write_bytes(data)


def test_a_damaged_log_is_named_with_segment_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    source = job_in(tmp_path / "job")
    own = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(tmp_path / "index")})
    local.run_to(own, source, QUERY, 3)
    job = replace(source, root=str(tmp_path / "copy"))
    checkpoint = shutil.copytree(source.checkpoint(QUERY), job.checkpoint(QUERY))
    segment = max((checkpoint / "cec" / "log" / "segments").iterdir(), key=lambda path: path.stat().st_size)
    damage(segment, segment.stat().st_size // 3)
    other = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(tmp_path / "other")})
    with pytest.raises(Exception, match=r"damaged log: .*\.cec at byte \d+") as found:
        local.run_to(other, job, QUERY, 5)
    assert segment.name in str(found.value)


class Passing(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None: ...

    def handleInputRows(self, key: object, rows: object, timerValues: object) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield from ()

    def close(self) -> None: ...


def test_transform_with_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        feeds.read_rate(spark, "left", 4, 40)
        .groupBy("key")
        .transformWithStateInPandas(Passing(), StructType([StructField("key", LongType())]), "append", "None")
    )
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(AnalysisException, match=r"transformWithState cannot run on Spark CEC: .*Use flatMapGroups"):
        writer.start()
    assert not local.files_in(tmp_path / "checkpoint")


def test_real_time_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, **{"spark.sql.streaming.realTimeMode.allowlistCheck": "false"})
    frame = feeds.read_rate(own, "left", 4, 40).dropDuplicates(["key"])
    writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(tmp_path / "ck"))
    with pytest.raises(Exception, match=r"(?i)real-?time"):
        # Spark 4.3 refuses at the start, 4.2 as soon as the query runs.
        writer.trigger(realTime="5 minutes").start().awaitTermination(60)
    assert not [*(tmp_path / "ck").glob("offsets/[0-9]*"), *(tmp_path / "ck").glob("state/*")]


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nonexistent/python", "cannot run /nonexistent/python"),
        ("/bin/false", "/bin/false -m spark_cec.agent ended before it was ready"),
    ],
)
def test_an_agent_that_cannot_run_is_named_and_the_key_that_decides(python: str, words: str, tmp_path: Path) -> None:
    failure = failure_of(job_in(tmp_path), {CEC + "driver.python": python})
    assert words in failure
    assert f"set {CEC}driver.python to" in failure


def test_an_agent_that_never_answers_is_given_up(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o755)
    failure = failure_of(job_in(tmp_path), {CEC + "driver.python": str(mute), CEC + "agent.timeout": "2s"})
    assert f"{mute} -m spark_cec.agent was not ready within 2.0 s" in failure
    assert CEC + "agent.timeout" in failure


def failure_of(job: Job, conf: dict[str, str]) -> str:
    """Why the query does not start in a driver of its own; it has written nothing then."""
    life = Life({QUERY.name: -1})
    with driver(replace(job, conf=conf)) as child:
        follow(child, life, None, "an agent that cannot run")
    assert not local.files_in(job.checkpoint(QUERY))
    return life.failed[QUERY.name]


def test_output_of_a_batch_that_was_never_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = Query("totals", feeds.RATE, "cec")
    job = job_in(tmp_path, query)
    local.run_to(spark, job, query, 3)
    manifests = job.checkpoint(query) / "cec" / "log" / "manifests"
    newest = max(manifests.iterdir())
    digits = newest.name.removesuffix(".json")
    future = int(digits) + 9
    shutil.copy(newest, manifests / f"{future:0{len(digits)}d}.json")
    refused(spark, job, f"holds output of batch {future}, but the checkpoint ends at batch", query)


def test_a_continuous_trigger_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its epochs do not come again with their recorded ends, and the sink would lose or double rows after a crash."""
    rows = local.session(spark).readStream.format("rate").option("rowsPerSecond", 50).load()
    checkpoint = tmp_path / "refused"
    writer = rows.writeStream.format("cec").option("checkpointLocation", str(checkpoint))
    with pytest.raises(AnalysisException, match=r"refused has trigger\(continuous=.*: use trigger\(processingTime="):
        writer.trigger(continuous="1 second").start().stop()
    assert not local.files_in(checkpoint / "offsets") and not local.files_in(checkpoint / "commits")
    streaming = writer.trigger(processingTime="0 seconds").start()
    try:
        local.wait_for(streaming, 1)
    finally:
        streaming.stop()


def test_a_continuous_trigger_reads_no_log(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses a source that does not promise continuous reads, by the name of its format."""
    query = Query("rows", feeds.RATE, "cec")
    job = job_in(tmp_path, query)
    local.run_to(spark, job, query, 1)
    rows = spark.readStream.format("cec").load(str(job.checkpoint(query)))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "reader"))
    with pytest.raises(Exception, match=r"[Cc]ontinuous processing.*cec|cec.*continuous processing"):
        writer.trigger(continuous="1 second").start().awaitTermination(60)
