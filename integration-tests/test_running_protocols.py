"""A pipeline under a protocol in the tests' own session: what is refused, what is told, and an agent that dies."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it import log
from cec_it.local import eventually
from cec_it.running import checkpoints, kill_agent, own, running, runs_with_stores
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.manifest import Manifest, batches, load_between, read_batch
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.running import PipelineFailed, RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.supervise import Patience
from spark_cec.protocols.records import read_records
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import PROVIDER_KEY

ROWS = 20


def counts(
    home: Path, sink: str = "noop", conf: Mapping[str, str] | None = None, counts_in: int = 2, **how: Any
) -> Pipeline:
    """numbers -> counts, which has state in so many partitions, and is given `conf` -> out."""
    made = Pipeline("counts", f"{home}/home", **{"checkpoint_interval": 0.4, **how})

    @made.flow
    def numbers(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(ROWS))
        return stream.option("numPartitions", "1").load().select("value")

    @made.flow(output_mode="update", partitions=counts_in, kept=True, conf=dict(conf or {}))
    def counts(numbers: DataFrame) -> DataFrame:
        keyed = numbers.groupBy((f.col("value") % 7).alias("k"))
        return keyed.agg(f.count("*").alias("n"), f.max("value").alias("most"))

    @made.sink
    def out(counts: DataFrame) -> DataStreamWriter:
        if sink == "foreach":
            return counts.writeStream.foreach(lambda _: None)
        return counts.writeStream.format(sink).option("path", f"{home}/out")

    return made


def taken(home: Path) -> int:
    """The number of the newest checkpoint of the flow with state."""
    return checkpoints(home, "counts", "numbers")


def is_right(spark: SparkSession, home: Path) -> None:
    """Each key's newest row counts all numbers up to one of them that are its own, once."""
    rows = spark.read.format("cec").load(f"{home}/home/flows/counts")
    newest = rows.groupBy("k").agg(f.max("n").alias("n"), f.max("most").alias("most"))
    found = newest.collect()
    assert len(found) == 7
    assert all(row.n == row.most // 7 + (row.most % 7 >= row.k) for row in found), found


def test_the_agent_dies_and_all_go_back(spark: SparkSession, tmp_path: Path) -> None:
    with running(counts(tmp_path, protocol="communication-induced"), spark) as run:
        eventually(lambda: True if taken(tmp_path) >= 3 else None, "some checkpoints")
        before = run.status().rollbacks
        kill_agent(tmp_path, "counts")
        eventually(lambda: True if run.status().rollbacks > before else None, "they go back")
        at = taken(tmp_path)
        eventually(lambda: True if taken(tmp_path) >= at + 2 else None, "they go on")
        assert run.status().protocol == "communication-induced"
        of_runs = runs_with_stores(spark, tmp_path, "counts")
        assert len(of_runs) == 1, "the windows of a run that is over are in nobody's way, nor in the memory"
    assert runs_with_stores(spark, tmp_path, "counts") == set()
    is_right(spark, tmp_path)
    piggybacks = [each.piggyback for each in manifests(tmp_path, "numbers")]
    assert all(each and {"lc", "ckpt", "taken", "greater"} <= each.keys() for each in piggybacks)
    assert cec("pipeline", "verify", f"{tmp_path}/home") == 0


def test_without_checkpoints_all_begin_anew(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark left nothing there: what it notes of operators and schemas, it writes once."""
    without: dict[str, Any] = {"protocol": "none", "release": "at-once"}
    with running(counts(tmp_path, **without), spark) as run:
        for times in range(2):
            eventually(lambda: True if committed(tmp_path) >= 3 else None, "it has run")
            kill_agent(tmp_path, "counts")
            eventually(partial(has_gone_back, run, times + 1), "they go back")
        eventually(lambda: True if committed(tmp_path) >= 3 else None, "it has run again")
    is_right(spark, tmp_path)
    with running(counts(tmp_path, **without, counts_in=4), spark):
        eventually(lambda: True if committed(tmp_path) >= 3 else None, "it has run in other partitions")
    is_right(spark, tmp_path)


def committed(home: Path) -> int:
    return committed_batch(open_storage(f"{home}/home/flows/counts"))


def has_gone_back(run: RunningPipeline, times: int) -> bool | None:
    return True if run.status().rollbacks >= times else None


def manifests(home: Path, flow: str) -> list[Any]:
    storage = open_storage(f"{home}/home/flows/{flow}/cec/log")
    known = batches(storage)
    return [each for _, each in load_between(storage, known[0], known[-1]) if isinstance(each, Manifest)]


def test_a_sink_that_would_pass_over_batches_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run = start_pipeline(counts(tmp_path, "parquet", protocol="uncoordinated", release="at-once"), spark)
    with pytest.raises(PipelineFailed, match=r"flow out has failed: .*release='at-once' with the sink .*foreachBatch"):
        run.wait(60)
    run.stop()
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_flow_whose_state_is_elsewhere_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """No line would have it: the flow would be given up to its beginning, or go on with a state from after the line."""
    conf = {PROVIDER_KEY: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
    run = start_pipeline(counts(tmp_path, protocol="uncoordinated", conf=conf), spark)
    with pytest.raises(PipelineFailed, match="flow counts has its state with another provider, and takes part in a"):
        run.wait(60)
    run.stop()


@pytest.mark.parametrize("sink", ["console", "foreach"])  # foreachBatch, noop and Kafka: in other tests
def test_a_sink_that_takes_batches_again_is_taken(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    with running(counts(tmp_path, sink, protocol="uncoordinated", release="at-once"), spark):
        eventually(lambda: True if checkpoints(tmp_path, "out", "counts") >= 2 else None, "the sink's checkpoints")


def test_what_leaves_at_a_checkpoint_is_what_lines_hold(spark: SparkSession, tmp_path: Path) -> None:
    with running(counts(tmp_path, protocol="coordinated"), spark):
        eventually(lambda: True if taken(tmp_path) >= 4 else None, "some rounds")
    offsets = sorted((tmp_path / "home/flows/out/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    read = read_batch(offsets[-1].read_text().splitlines()[-1])
    newest = read_records(own(tmp_path, "counts"), "counts", ("numbers",)).newest
    assert 0 <= read <= newest.batch


def test_an_interval_that_is_shorter_than_a_batch_is_told(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warning = "Checkpoints come between batches, so they cannot come every 0.001 s"
    with (
        caplog.at_level(logging.WARNING, logger="spark_cec.pipeline.runs"),
        running(counts(tmp_path, protocol="uncoordinated", checkpoint_interval="1ms"), spark),
    ):
        eventually(lambda: True if warning in caplog.text else None, "a warning")


def test_a_damaged_frame_of_the_line_is_named_and_mended(spark: SparkSession, tmp_path: Path) -> None:
    """With `cec repair` the flow replays from a checkpoint before: no other one is taken back for it."""
    flow = tmp_path / "home/flows/counts"
    with running(counts(tmp_path, protocol="coordinated"), spark):
        eventually(lambda: True if taken(tmp_path) >= 4 else None, "some rounds")
    before = taken(tmp_path)
    log.flip(flow, max((e for e in log.frames(flow) if e.meta.records), key=lambda e: e.meta.version), -6)
    run = start_pipeline(counts(tmp_path, protocol="coordinated"), spark, Patience(wait_s=0.1))
    with pytest.raises(PipelineFailed, match="damaged log"):
        run.wait(60)
    run.stop()
    assert cec("pipeline", "verify", f"{tmp_path}/home") == 1
    assert cec("repair", str(flow)) == 0
    goes_on(spark, tmp_path, before)
    goes_on(spark, tmp_path, taken(tmp_path))


def test_a_damaged_checkpoint_is_passed_over(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All go back to the line before: no sink, since this one was only drawn as they were stopped."""
    with running(counts(tmp_path, protocol="coordinated"), spark):
        eventually(lambda: True if taken(tmp_path) >= 4 else None, "some rounds")
    before = taken(tmp_path)
    newest = max((tmp_path / "home/flows/counts/cec/checkpoints").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    goes_on(spark, tmp_path, before)
    assert "an older checkpoint is used" in caplog.text


def words(home: Path, protocol: str) -> Pipeline:
    """texts, which are read from files, one in a batch -> counts of their lines, in all."""
    made = Pipeline("words", f"{home}/home", protocol=protocol, checkpoint_interval=0.4)

    @made.flow
    def texts(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(f"{home}/in")

    @made.flow(output_mode="update", kept=True)
    def counts(texts: DataFrame) -> DataFrame:
        return texts.groupBy("value").agg(f.count("*").alias("n"))

    return made


def put_files(home: Path, first: int, last: int) -> None:
    (home / "in").mkdir(exist_ok=True)
    for each in range(first, last):
        made = home / f"{each}.txt"
        made.write_text(f"all\n{each}\n")
        made.rename(home / "in" / made.name)


def has_counted(home: Path, files: int) -> bool | None:
    """Whether all flows have committed batches of so many files. A source notes a file before Spark plans its batch."""
    texts, counts = open_storage(f"{home}/home/flows/texts"), open_storage(f"{home}/home/flows/counts")
    if min(committed_batch(texts), committed_batch(counts)) < 0:
        return None
    sent = batches(open_storage(f"{home}/home/flows/texts/cec/log"))[-1]
    has_read = json.loads(newest_offset(home, "texts"))["logOffset"] == files - 1 and committed_batch(texts) == sent
    return True if has_read and read_batch(newest_offset(home, "counts")) == sent else None


def newest_offset(home: Path, flow: str) -> str:
    """The end of a flow's last committed batch in its only source."""
    at = committed_batch(open_storage(f"{home}/home/flows/{flow}"))
    return (home / f"home/flows/{flow}/offsets/{at}").read_text().splitlines()[-1]


def are_counted(spark: SparkSession, home: Path, files: int) -> None:
    """Each of so many was read once."""
    rows = spark.read.format("cec").load(f"{home}/home/flows/counts").groupBy("value").agg(f.max("n").alias("n"))
    assert {row.value: row.n for row in rows.collect()} == {"all": files} | {str(each): 1 for each in range(files)}


def noted(home: Path) -> list[int]:
    """The numbers of the entries of the source of files."""
    names = [path.name for path in (home / "home/flows/texts/sources/0").glob("[0-9]*")]
    return sorted(int(each.partition(".")[0]) for each in names)


def taken_back(home: Path) -> dict[str, int]:
    """The number of batches by which the newest start has taken each flow back."""
    newest = max((home / "home/rollbacks").iterdir(), key=lambda path: path.name)
    return {flow: told["batches"] for flow, told in json.loads(newest.read_text())["flows"].items()}


@pytest.mark.parametrize(
    ("files", "protocol"),
    [(12, "communication-induced"), pytest.param(160, "uncoordinated", marks=pytest.mark.long)],
)
def test_notes_of_files_that_a_power_loss_left_empty(
    spark: SparkSession, tmp_path: Path, files: int, protocol: str
) -> None:
    """Behind the line, as Spark syncs none of them; and none is kept for ever, with all before it in each tenth."""
    put_files(tmp_path, 0, files)
    with running(words(tmp_path, protocol), spark):
        eventually(lambda: has_counted(tmp_path, files), "all files", 60.0 + files)
    numbers = noted(tmp_path)
    assert numbers == list(range(numbers[0], files))
    assert (numbers[0] > 0) is (files > 130)
    for lost in (files, files + 1):
        name = f"{lost}.compact" if lost % 10 == 9 else str(lost)
        (tmp_path / "home/flows/texts/sources/0" / name).touch()
    put_files(tmp_path, files, files + 12)
    with running(words(tmp_path, protocol), spark):
        assert taken_back(tmp_path) == {"texts": 0, "counts": 0}, "all flows were at rest when they were stopped"
        eventually(lambda: has_counted(tmp_path, files + 12), "all files, and the new ones", 60.0 + files)
    are_counted(spark, tmp_path, files + 12)


def goes_on(spark: SparkSession, home: Path, before: int) -> None:
    """Both flows and the sink, with checkpoints behind the one of that number; and what they made is right."""
    with running(counts(home, protocol="coordinated"), spark) as run:
        read = len(list((home / "home/flows/out/commits").glob("[0-9]*")))
        eventually(lambda: True if taken(home) >= before + 2 else None, "they go on")
        batches = home / "home/flows/out/commits"
        eventually(lambda: True if len(list(batches.glob("[0-9]*"))) > read else None, "the sink goes on")
        assert not [flow.error for flow in run.status().flows if flow.error]
    is_right(spark, home)


def cec(*arguments: str) -> int:
    """Its exit code."""
    done = subprocess.run([str(Path(sys.executable).with_name("cec")), *arguments], capture_output=True, check=False)
    return done.returncode
