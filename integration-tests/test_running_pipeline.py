"""A pipeline in the tests' own session: what is refused, what fails alone, what is kept of a channel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial, reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.driver import CEC
from cec_it.local import eventually
from cec_it.running import flow_of, running
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.find_log import find_log
from spark_cec.admin.outputs import read_outputs
from spark_cec.errors import Fenced
from spark_cec.log.manifest import load, read_batch, retired_before, take_back
from spark_cec.log.storage import Storage
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.home import NoHome, PipelineHome
from spark_cec.pipeline.running import PipelineFailed, RunningPipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import FlowStatus, State
from spark_cec.pipeline.supervise import Patience

ROOT = Path(__file__).resolve().parents[1]
ROWS = 20
IMPATIENT = Patience(most=0)


def source(spark: SparkSession) -> DataFrame:
    """Numbers from 0 on, so many a batch, for ever."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(ROWS))
    return stream.option("numPartitions", "1").load().select("value")


def line(home: Path) -> Pipeline:
    """numbers -> tens -> out, and numbers -> other."""
    made = Pipeline("line", str(home))

    @made.flow
    def numbers(spark: SparkSession) -> DataFrame:
        return source(spark)

    @made.flow
    def tens(numbers: DataFrame) -> DataFrame:
        return numbers.where("value % 10 = 0")

    @made.sink
    def out(tens: DataFrame) -> DataStreamWriter:
        return tens.writeStream.format("noop")

    @made.sink
    def other(numbers: DataFrame) -> DataStreamWriter:
        return numbers.writeStream.format("noop")

    return made


def has_run(run: RunningPipeline, name: str, batch: int) -> FlowStatus:
    """The status of a flow that has run a batch."""

    def look() -> FlowStatus | None:
        flow = flow_of(run, name)
        assert flow.state is not State.FAILED, flow.error
        return flow if flow.batch is not None and flow.batch >= batch else None

    return eventually(look, f"batch {batch} of {name}")


def becomes(run: RunningPipeline, name: str, state: State) -> FlowStatus:
    return eventually(lambda: flow if (flow := flow_of(run, name)).state is state else None, f"{name} is {state.value}")


def test_flows_run_and_stop_and_go_on(spark: SparkSession, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(line(home), spark) as run:
        has_run(run, "out", 3)
    status = PipelineHome(str(home)).status()
    assert {flow.state for flow in status.flows} == {State.STOPPED}
    before = {flow.name: flow.batch or 0 for flow in status.flows}
    with running(line(home), spark) as run:
        for name, batch in before.items():
            has_run(run, name, batch + 1)
    rows = spark.read.format("cec").load(f"{home}/flows/tens").select("value").collect()
    values = [row.value for row in rows]
    assert values == list(range(0, 10 * len(values), 10))


def test_a_second_driver_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(line(tmp_path), spark):
        monkeypatch.setattr("spark_cec.agent.lease.WAIT_S", 0.0)
        with pytest.raises(Fenced, match=r"pipeline line at .* is running already"):
            start_pipeline(line(tmp_path), spark)


def test_some_flows_alone(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="there is no flow numbrs: did you mean numbers"):
        start_pipeline(line(tmp_path), spark, only=["numbrs"])
    with running(line(tmp_path), spark, only=["tens"]) as run:
        assert [flow.name for flow in run.status().flows] == ["tens"]
        becomes(run, "tens", State.RUNNING)
        assert flow_of(run, "tens").batch is None, "its channel is not there yet, and it waits"
    with running(line(tmp_path), spark, only=["numbers", "tens"]) as run:
        has_run(run, "tens", 1)


def test_a_function_that_fails_starts_nothing(spark: SparkSession, tmp_path: Path) -> None:
    made = line(tmp_path / "home")

    @made.sink
    def wrong(tens: DataFrame) -> DataStreamWriter:
        return tens.select("valeu").writeStream.format("noop")

    with pytest.raises(FlowError, match=r"sink wrong: line \d+: AnalysisException: .*valeu.*test_running_pipeline\.py"):
        made.start(spark)
    assert not (tmp_path / "home" / "flows").exists()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda rows: rows, "sink wrong answers a streaming DataFrame: return a DataStreamWriter"),
        (lambda rows: None, "sink wrong answers NoneType: return a DataStreamWriter"),
    ],
)
def test_a_function_that_answers_something_else(
    spark: SparkSession, tmp_path: Path, answer: object, complaint: str
) -> None:
    made = line(tmp_path)
    made.sink(name="wrong")(lambda tens: answer(tens))  # type: ignore[operator]
    with pytest.raises(FlowError, match=complaint):
        made.start(spark)


def test_a_flow_that_does_not_stream(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("still", str(tmp_path))
    made.flow(name="still", kept=True)(lambda spark: spark.range(3))
    with pytest.raises(FlowError, match="flow still answers a DataFrame that does not stream"):
        made.start(spark)


def test_a_cycle_wants_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("round", str(tmp_path))
    made.flow(name="a", kept=True)(lambda spark, a: source(spark).union(a))
    with pytest.raises(GraphError, match=r"a reads a, which has no columns yet .*@flow\(schema='id BIGINT"):
        made.start(spark)
    made = Pipeline("round", str(tmp_path))
    made.flow(name="a", kept=True, schema="value STRING")(lambda spark, a: source(spark))
    with pytest.raises(FlowError, match=r"flow a is declared with the columns struct<value:string>, and its function"):
        made.start(spark)


def test_a_flow_that_was_removed_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with running(line(tmp_path), spark) as run:
        has_run(run, "out", 0)
    less = Pipeline("line", str(tmp_path))
    less.flow(name="numbers", kept=True)(source)
    with pytest.raises(GraphError, match="flow tens was removed"):
        less.start(spark)


def test_a_damaged_channel_fails_its_reader_alone(spark: SparkSession, tmp_path: Path) -> None:
    with running(line(tmp_path), spark, only=["numbers"]) as run:
        has_run(run, "numbers", 4)
    (tmp_path / "flows/numbers/cec/log/manifests" / f"{2:020d}.json").write_bytes(b"{}")
    with running(line(tmp_path), spark, only=["numbers", "tens", "out"]) as run:
        failed = becomes(run, "tens", State.FAILED)
        assert failed.restarts == 0
        assert failed.error is not None
        assert "manifest" in failed.error
        assert becomes(run, "out", State.STARVING).starves_for == ("tens",)
        has_run(run, "numbers", (flow_of(run, "numbers").batch or 0) + 2)
        run.stop()
        with pytest.raises(PipelineFailed, match="flow tens has failed"):
            run.wait()


def test_a_channel_keeps_what_its_readers_may_ask_for(spark: SparkSession, tmp_path: Path) -> None:
    small = {"spark.sql.streaming.minBatchesToRetain": "5", CEC + "log.segmentBytes": "4KiB"}
    made = Pipeline("kept", str(tmp_path))
    made.flow(name="numbers", conf=small)(source)
    files = f"{tmp_path}/out"
    made.sink(name="out", conf=small)(lambda numbers: numbers.writeStream.format("parquet").option("path", files))
    manifests = tmp_path / "flows/numbers/cec/log/manifests"

    def oldest() -> int:
        return min(int(path.stem) for path in manifests.glob("0*.json"))

    with running(made, spark) as run:
        has_run(run, "numbers", 0)
        eventually(lambda: True if oldest() > 0 else None, "the channel lets go of its oldest batches")
        noted = json.loads((tmp_path / "flows/numbers/cec/log/readers/out.json").read_text())["batch"]
        assert oldest() <= noted + 11, "nothing that a reader may ask for has gone"
        has_run(run, "out", (flow_of(run, "out").batch or 0) + 3)
    with running(made, spark, only=["out"]) as run:
        becomes(run, "out", State.RUNNING)
        has_run(run, "out", 0)
    values = [row.value for row in spark.read.parquet(str(tmp_path / "out")).orderBy("value").collect()]
    assert values == list(range(len(values)))


def test_a_channel_knows_what_went_into_its_batches(spark: SparkSession, tmp_path: Path) -> None:
    """From one batch to the next nothing is missing, and nothing twice, through a stop too."""
    for _ in range(2):
        with running(line(tmp_path), spark) as run:
            has_run(run, "tens", 3)
    found = read_outputs(find_log(f"{tmp_path}/flows/tens"), 1_000).batches
    assert {each.manifest.batch for each in found} == set(range(len(found)))
    read = [(i.source, i.start and read_batch(i.start), read_batch(i.end or "")) for each in found for i in each.inputs]
    channel = f"cec {tmp_path}/flows/numbers"
    ends = [end for _, _, end in read]
    assert read == [(channel, None if n == 0 else ends[n - 1], ends[n]) for n in range(len(found))]
    rows = {each.batch: each.rows for each in map(partial(load, open_log(tmp_path, "numbers")), range(ends[-1] + 1))}
    for each, begin in zip(found, [-1, *ends], strict=False):
        batches = range(begin + 1, read_batch(each.inputs[0].end or "") + 1)
        assert each.manifest.rows == sum(rows[batch] for batch in batches) // 10


def open_log(home: Path, flow: str) -> Storage:
    return open_storage(f"{home}/flows/{flow}/cec/log")


def test_a_reader_that_runs_now_and_then_lets_its_channel_go(spark: SparkSession, tmp_path: Path) -> None:
    """No run of its own is long enough to know which of its batches Spark may run again."""
    made = Pipeline("hourly", str(tmp_path))
    small = {"spark.sql.streaming.minBatchesToRetain": "2", CEC + "log.segmentBytes": "4KiB"}
    made.flow(name="numbers", conf=small)(source)
    one_by_one = {"maxBatchesPerTrigger": "1"}
    made.sink(name="out", conf=small, reads=one_by_one)(lambda numbers: numbers.writeStream.format("noop"))
    for batch in range(3, 13, 3):
        with running(made, spark, only=["numbers"]) as run:
            has_run(run, "numbers", batch + 1)
        with running(made, spark, only=["out"]) as run:
            has_run(run, "out", batch)
    with running(made, spark, only=["numbers"]):
        eventually(lambda: True if retired_before(open_log(tmp_path, "numbers")) else None, "the oldest batches go")
    noted = json.loads((tmp_path / "flows/numbers/cec/log/readers/out.json").read_text())["batch"]
    assert retired_before(open_log(tmp_path, "numbers")) <= noted + 1


def test_a_channel_that_was_begun_anew_fails_its_reader(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows would be taken for those that the reader has read already."""
    with running(line(tmp_path), spark, IMPATIENT) as run:
        has_run(run, "out", 4)
    shutil.rmtree(tmp_path / "flows/numbers")
    with running(line(tmp_path), spark, IMPATIENT) as run:
        failed = becomes(run, "tens", State.FAILED)
        assert "begun anew" in (failed.error or "")
        assert failed.restarts == 0, "a restart mends nothing"
        has_run(run, "numbers", 1)


def test_a_channel_that_was_begun_anew_and_is_longer_by_now(spark: SparkSession, tmp_path: Path) -> None:
    """Its first batches have never been read; the reader was stopped as they came."""
    with running(line(tmp_path), spark, IMPATIENT) as run:
        has_run(run, "out", 2)
    read = (PipelineHome(str(tmp_path)).status().flows[1].batch or 0) + 1
    rows = spark.read.format("cec").load(f"{tmp_path}/flows/tens").count()
    shutil.rmtree(tmp_path / "flows/numbers")
    with running(line(tmp_path), spark, IMPATIENT, only=["numbers"]) as run:
        has_run(run, "numbers", 3 * read)
    with running(line(tmp_path), spark, IMPATIENT) as run:
        failed = becomes(run, "tens", State.FAILED)
        assert "has another batch of that number now" in (failed.error or "")
    assert spark.read.format("cec").load(f"{tmp_path}/flows/tens").count() == rows, "nothing of the new channel is read"


def test_output_that_was_taken_back_fails_who_has_read_it(spark: SparkSession, tmp_path: Path) -> None:
    """What a rollback of one flow does to a reader that does not go back with it; a batch read has what counts."""
    with running(line(tmp_path), spark, IMPATIENT) as run:
        has_run(run, "out", 4)
    take_back(open_log(tmp_path, "numbers"), 1, 100)
    with running(line(tmp_path), spark, IMPATIENT, only=["tens"]) as run:
        failed = becomes(run, "tens", State.FAILED)
        assert "of which run 100 of the query that writes it has taken back all after batch 1" in (failed.error or "")
        assert failed.restarts == 0, "a restart mends nothing"
    assert spark.read.format("cec").load(f"{tmp_path}/flows/numbers").count() == 2 * ROWS


def test_a_changed_function_concerns_its_flow_alone(spark: SparkSession, tmp_path: Path) -> None:
    """After a crash its replay differs, which is said at once; with the function as it was it goes on."""
    lazy = {CEC + "stop.flush": "off", CEC + "effort": "0", CEC + "CI": "0ms"}

    def declared(step: int) -> Pipeline:
        made = Pipeline("changed", str(tmp_path))
        made.flow(name="numbers")(source)
        made.sink(name="other")(lambda numbers: numbers.writeStream.format("noop"))
        made.sink(name="out")(lambda counts: counts.writeStream.format("noop"))

        @made.flow(output_mode="update", partitions=2, conf=lazy)
        def counts(numbers: DataFrame) -> DataFrame:
            return numbers.where(f"value % {step} = 0").groupBy((numbers.value % 7).alias("k")).count()

        return made

    with running(declared(1), spark, IMPATIENT) as run:
        has_run(run, "counts", 6)
    with running(declared(2), spark, IMPATIENT) as run:
        failed = becomes(run, "counts", State.FAILED)
        assert failed.restarts == 0
        assert "cec.onDivergence=accept" in (failed.error or "")
        assert becomes(run, "out", State.STARVING).starves_for == ("counts",)
        for name in ("numbers", "other"):
            has_run(run, name, (flow_of(run, name).batch or 0) + 2)
    with running(declared(1), spark, IMPATIENT) as run:
        has_run(run, "out", (has_run(run, "out", 0).batch or 0) + 2)
    rows = spark.read.format("cec").load(f"{tmp_path}/flows/counts").groupBy("k").max("count").collect()
    read = read_outputs(find_log(f"{tmp_path}/flows/counts"), 1).batches[0].inputs[0].end
    total = ROWS * (read_batch(read or "") + 1)
    assert {row[0]: row[1] for row in rows} == {k: len(range(k, total, 7)) for k in range(7)}


def in_instances(home: Path, fails: Path, watermarks: dict[str, tuple[str, str]] | None) -> Pipeline:
    """numbers -> counts, in two instances, one of which fails once where a file says so -> late, over both."""
    made = Pipeline("parts", str(home))

    @made.flow
    def numbers(spark: SparkSession) -> DataFrame:
        return source(spark).selectExpr("value % 7 AS k", "value", "timestamp_seconds(value) AS t")

    @made.flow(instances=2, key="k", output_mode="update", partitions=2, kept=True)
    def counts(numbers: DataFrame) -> DataFrame:
        def touch(k: int) -> int:
            if k == 3 and fails.exists():
                fails.unlink()
                raise RuntimeError("one instance stumbles")
            return k

        touched = numbers.withColumn("k", f.udf(touch, "bigint")("k"))
        return touched.groupBy("k").agg(f.count("*").alias("n"), f.max("t").alias("t"))

    @made.flow(kept=True, partitions=1, watermarks=watermarks)
    def late(counts: DataFrame) -> DataFrame:
        rows = counts if watermarks else counts.withWatermark("t", "0 seconds")
        return rows.groupBy(f.window("t", "10 seconds")).agg(f.count("*").alias("n"))

    @made.sink
    def out(late: DataFrame) -> DataStreamWriter:
        return late.writeStream.format("noop")

    return made


def test_a_flow_in_instances(spark: SparkSession, tmp_path: Path) -> None:
    """Each takes the rows of its keys; one that fails does not stop the other; nothing is late for who reads both."""
    home, fails, parts = tmp_path / "home", tmp_path / "fails", ("counts-1-of-2", "counts-2-of-2")
    with pytest.raises(FlowError, match=r"flow late has one watermark over the instances of counts.*, watermarks={"):
        running(in_instances(home, fails, None), spark).__enter__()
    pipeline = in_instances(home, fails, {"counts": ("t", "0 seconds")})
    with running(pipeline, spark, Patience(most=3, wait_s=0.1)) as run:
        has_run(run, "out", 1)
        fails.touch()
        eventually(lambda: None if fails.exists() else True, "an instance has failed")
        stumbled = eventually(
            lambda: next((each for each in map(partial(flow_of, run), parts) if each.restarts), None), "it is noted"
        )
        steady = next(each for each in parts if each != stumbled.name)
        for name in (*parts, "out"):
            has_run(run, name, (flow_of(run, name).batch or 0) + 2)
        assert (flow_of(run, steady).restarts, flow_of(run, "late").restarts) == (0, 0)
    seen = []
    for name in parts:
        rows = spark.read.format("cec").load(f"{home}/flows/{name}").groupBy("k").max("n").collect()
        end = read_outputs(find_log(f"{home}/flows/{name}"), 1).batches[0].inputs[0].end
        total = ROWS * (read_batch(end or "") + 1)
        assert {row[0]: row[1] for row in rows} == {row[0]: len(range(row[0], total, 7)) for row in rows}, name
        seen.append({row[0] for row in rows})
    assert seen[0] | seen[1] == set(range(7)) and not seen[0] & seen[1] and seen[0] and seen[1]
    late = {row["window"].start: row["n"] for row in spark.read.format("cec").load(f"{home}/flows/late").collect()}
    both = reduce(DataFrame.union, (spark.read.format("cec").load(f"{home}/flows/{name}") for name in parts))
    windows = both.groupBy(f.window("t", "10 seconds")).count().collect()
    there = {row["window"].start: row["count"] for row in windows}
    assert late and late == {start: there[start] for start in late}, "no row of an instance that was behind is missing"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_the_example_and_stops_it(by: signal.Signals, tmp_path: Path) -> None:
    home, log = tmp_path / "shop", tmp_path / "log"
    cec = str(Path(sys.executable).with_name("cec"))
    command = [cec, "pipeline", "run", str(ROOT / "examples/shop.py"), "--master", "local[2]"]
    small = ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}"]
    environment = {**os.environ, "SHOP_HOME": str(home), "PYTHONPATH": str(ROOT / "python")}
    with log.open("wb") as errors:
        child = subprocess.Popen([*command, *small], stderr=errors, env=environment, start_new_session=True)
    try:

        def look() -> bool | None:
            assert child.poll() is None, log.read_text()[-3000:]
            try:
                report = PipelineHome(str(home)).status().flows[-1]
            except NoHome:
                return None
            written = report.batch is not None and list((home / "report").glob("*.parquet"))
            return True if written else None

        eventually(look, "rows in the report", 240.0)
        child.send_signal(by)
        assert child.wait(60) == 0, log.read_text()[-3000:]
    finally:
        child.kill()
    assert PipelineHome(str(home)).status().is_over
    before, said = log.read_text().split("pipeline shop: stopping\n")
    assert "Traceback" not in before
    assert len(said.splitlines()) < 10, f"what Spark says of tasks that were interrupted: {said}"
