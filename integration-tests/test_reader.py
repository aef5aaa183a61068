"""Reading a query's log with `format("cec")`: the views `output`, `windows` and `log`, in batch and as a stream."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it import feeds, local, results
from cec_it.driver import Job, Query, last_batch, start
from cec_it.references import References
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.manifest import read_batch, retire
from testbed.spark_logs import newest

APPEND = Query("window-append", feeds.RATE, "cec")
COMPLETE = Query("totals", feeds.RATE, "cec")


@dataclass(frozen=True, slots=True)
class Written:
    """A job whose queries have written with the `cec` sink, stopped twice on the way."""

    job: Job

    def checkpoint(self, query: Query) -> str:
        return str(self.job.checkpoint(query))


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    job = Job(str(tmp_path_factory.mktemp("written")), (APPEND, COMPLETE), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY)
    for query in job.queries:
        for batch in (5, last_batch(job)):
            local.run_to(own, job, query, batch)
    return Written(job)


def read(spark: SparkSession, path: str, **options: object) -> DataFrame:
    return spark.read.format("cec").options(**options).load(path)  # type: ignore[arg-type]


def counted(frame: DataFrame) -> Counter[str]:
    return results.union({0: results.json_rows(frame)})


def test_output_has_every_row_once(written: Written, spark: SparkSession, references: References) -> None:
    wanted = results.union(references.get(APPEND, written.job))
    frame = read(spark, written.checkpoint(APPEND))
    assert not results.difference(counted(frame), wanted)
    assert frame.count() == wanted.total()
    assert frame.select("n").agg(f.sum("n")).first()[0] == sum(json.loads(row)["n"] * n for row, n in wanted.items())
    assert not results.difference(counted(read(spark, written.checkpoint(APPEND) + "/cec/log")), wanted)


def test_complete_mode_shows_the_newest_batch(written: Written, spark: SparkSession, references: References) -> None:
    wanted = references.get(COMPLETE, written.job)
    assert results.json_rows(read(spark, written.checkpoint(COMPLETE))) == wanted[max(wanted)]


def test_windows_are_the_eventual_checkpoint(written: Written, spark: SparkSession, references: References) -> None:
    wanted = references.get(COMPLETE, written.job)
    frame = read(spark, written.checkpoint(COMPLETE), view="windows")
    assert frame.columns == ["key", "value", "partition", "footprint_version", "dirty"]
    keys = sorted(row["key"]["key"] for row in frame.select("key").collect())
    assert keys == sorted(json.loads(row)["key"] for row in wanted[max(wanted)])
    committed = newest(written.job.checkpoint(COMPLETE) / "commits") + 1
    footprints = [row[0] for row in frame.select("footprint_version").collect()]
    assert min(footprints) >= 1 and max(footprints) <= committed
    first = read(spark, written.checkpoint(COMPLETE), view="windows", version=1)
    assert {row["footprint_version"] for row in first.collect()} == {1}
    assert {row["dirty"] for row in first.collect()} == {False}


def test_windows_of_an_eager_query_are_its_state(spark: SparkSession, references: References, tmp_path: Path) -> None:
    job = Job(str(tmp_path), (COMPLETE,), local.BATCHES, local.ROWS)
    local.run_to(local.session(spark, {"mode": "eager"}), job, COMPLETE, last_batch(job))
    wanted = references.get(COMPLETE, job)
    rows = read(spark, written_to := str(job.checkpoint(COMPLETE)), view="windows").collect()
    assert {row["dirty"] for row in rows} == {False}
    # The state of count and sum is count and sum.
    state = {row["key"][0]: tuple(row["value"]) for row in rows}
    final = [json.loads(row) for row in wanted[max(wanted)]]
    assert state == {row["key"]: (row["n"], row["total"]) for row in final}, written_to


def test_log_has_the_records_of_openings_and_closings(written: Written, spark: SparkSession) -> None:
    frame = read(spark, written.checkpoint(APPEND), view="log")
    records = frame.select("kind", "version", "window", "partition").collect()
    opened = [(row["partition"], bytes(row["window"])) for row in records if row["kind"] == "OPEN"]
    assert opened, "no window was opened"
    kinds = {row["kind"] for row in records}
    closed = [(row["partition"], bytes(row["window"])) for row in records if row["kind"] == "CLOSE"]
    assert kinds <= {"OPEN", "CHECK", "CLOSE"}
    assert set(closed) <= set(opened)
    assert len(closed) == read(spark, written.checkpoint(APPEND)).count(), (
        "append mode: a window closes as its row goes out"
    )
    assert frame.where("offset < 0 OR segment IS NULL").isEmpty()


@pytest.mark.parametrize("option", ["veiw", "operator", "startingVersion"])
def test_an_option_that_does_not_exist_is_refused(written: Written, spark: SparkSession, option: str) -> None:
    with pytest.raises(Exception, match=rf'(?i)option\("{option}", "1"\): there is no such option .* path, view'):
        read(spark, written.checkpoint(APPEND), **{option: "1"})


def test_the_windows_of_no_query_are_refused(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    for path, operator in ((str(tmp_path), "0"), (written.checkpoint(APPEND), "7")):
        with pytest.raises(Exception, match=f"{path} has no state of operator {operator}, store default: the view"):
            read(spark, path, view="windows", operatorId=operator)


def test_a_view_that_does_not_exist_is_refused(written: Written, spark: SparkSession) -> None:
    with pytest.raises(Exception, match='option\\("view", "rows"\\): give output, windows, late or log'):
        read(spark, written.checkpoint(APPEND), view="rows").schema  # noqa: B018
    for view, option, value, mend in (
        ("log", "version", "3", 'it is for the view "windows", and this is "log"'),
        ("windows", "startingTimestamp", "0", 'it is for the view "output", and this is "windows"'),
        ("windows", "version", "0", "give a whole number from 1 on"),
        ("windows", "operatorId", "first", "give a whole number from 0 on"),
        ("output", "maxBatchesPerTrigger", "0", "give a whole number from 1 on"),
        ("output", "maxRowsPerTrigger", "many", "give a whole number from 1 on"),
        ("output", "startingTimestamp", "yesterday-ish", "give a timestamp, or ms since 1970"),
        ("output", "startingTimestamp", "2111-11-11", "it is yet to come: give one up to now"),
    ):
        for loader in (spark.read, spark.readStream):
            with pytest.raises(Exception, match=re.escape(f'option("{option}", "{value}"): {mend}')):
                loader.format("cec").options(view=view, **{option: value}).load(written.checkpoint(APPEND)).schema  # noqa: B018
    with pytest.raises(Exception, match="wants a path"):
        spark.read.format("cec").load().schema  # noqa: B018


@pytest.mark.parametrize(
    ("view", "schema", "said"),
    [
        ("output", "word string", 'no column word in its view "output": there are'),
        ("output", "n int", 'column n of .*, view "output", is BIGINT, not INT: read it as it is, and cast it'),
        ("windows", "partition int, total bigint", 'no column total in its view "windows"'),
        ("log", "version string", "column version of .* is BIGINT, not STRING"),
    ],
)
def test_a_schema_that_is_not_that_of_the_log_is_refused(
    view: str, schema: str, said: str, written: Written, spark: SparkSession
) -> None:
    frame = spark.read.format("cec").schema(schema).option("view", view).load(written.checkpoint(APPEND))
    with pytest.raises(Exception, match=said):
        frame.collect()


def test_a_part_of_the_schema_is_enough(written: Written, spark: SparkSession) -> None:
    path = written.checkpoint(APPEND)
    assert spark.read.format("cec").schema("n bigint").load(path).count() == read(spark, path).count()


def stream(spark: SparkSession, path: str, root: Path, **options: object) -> dict[int, list[str]]:
    """Everything that the output view gives as a stream, by batch of the reading query."""
    seen: dict[int, list[str]] = {}
    frame = spark.readStream.format("cec").options(**options).load(path)  # type: ignore[arg-type]
    writer = frame.writeStream.option("checkpointLocation", str(root)).trigger(availableNow=True)
    streaming = writer.foreachBatch(lambda rows, batch: seen.update({batch: results.json_rows(rows)})).start()
    assert streaming.awaitTermination(60)
    assert streaming.exception() is None
    return seen


def test_output_as_a_stream_goes_on_where_it_was(
    written: Written, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    wanted = results.union(references.get(APPEND, written.job))
    seen = stream(spark, written.checkpoint(APPEND), tmp_path / "a", maxBatchesPerTrigger=3)
    assert len(seen) > 2
    assert not results.difference(results.union(seen), wanted)
    assert stream(spark, written.checkpoint(APPEND), tmp_path / "a") == {}


def test_a_batch_of_a_stream_has_a_bound_in_rows(
    written: Written, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    """Whole batches of the query, as many as fit, and one if none does."""
    batches = references.get(APPEND, written.job)
    most = max(map(len, batches.values()))
    seen = stream(spark, written.checkpoint(APPEND), tmp_path / "a", maxRowsPerTrigger=most)
    assert not results.difference(results.union(seen), results.union(batches))
    assert len(seen) > 2
    assert max(map(len, seen.values())) <= most
    one_by_one = stream(spark, written.checkpoint(APPEND), tmp_path / "b", maxRowsPerTrigger=1)
    assert {tuple(sorted(rows)) for rows in one_by_one.values() if rows} == {
        tuple(sorted(rows)) for rows in batches.values() if rows
    }


def test_a_stream_that_has_fallen_behind_says_so(
    written: Written, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    """What it has not read is not kept any more: it must not pass over that without a word."""
    shutil.copytree(written.checkpoint(APPEND), tmp_path / "query")
    reader = tmp_path / "reader"
    seen = stream(spark, str(tmp_path / "query"), reader, maxBatchesPerTrigger=1)
    for log in ("offsets", "commits"):
        for batch in range(2, max(seen) + 1):  # as if it had been stopped there
            (reader / log / str(batch)).unlink()
            (reader / log / f".{batch}.crc").unlink(missing_ok=True)
    read_to = read_batch((reader / "offsets" / "1").read_text().splitlines()[-1])
    kept_from = newest(tmp_path / "query" / "commits") - 2
    assert read_to < kept_from - 1
    retire(open_storage(str(tmp_path / "query" / "cec" / "log")), kept_from)
    with pytest.raises(Exception, match=rf"batches {read_to + 1} to {kept_from - 1} of the output are not kept"):
        stream(spark, str(tmp_path / "query"), reader)
    behind = stream(spark, str(tmp_path / "query"), reader, failOnDataLoss="false")
    wanted = {batch: rows for batch, rows in references.get(APPEND, written.job).items() if batch >= kept_from}
    assert not results.difference(results.union(behind), results.union(wanted))


@pytest.mark.parametrize("tentative", ["false", "true"])
@pytest.mark.parametrize("most", [1, 1_000], ids=["all of it is retired", "some of it is kept"])
def test_a_first_batch_that_runs_again_passes_over_nothing(
    written: Written, spark: SparkSession, tmp_path: Path, most: int, tentative: str
) -> None:
    """It begins where it was planned to begin, although the output's oldest batches were retired since then."""
    options = {"tentative": tentative, "maxBatchesPerTrigger": most}
    shutil.copytree(written.checkpoint(APPEND), tmp_path / "query")
    log, begin, last = open_storage(str(tmp_path / "query" / "cec" / "log")), 2, newest(tmp_path / "query" / "commits")
    retire(log, begin)

    def fail(rows: DataFrame, batch: int) -> None:
        raise RuntimeError("the first batch has failed")

    frame = spark.readStream.format("cec").options(**options).load(str(tmp_path / "query"))
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "reader")).trigger(availableNow=True)
    with pytest.raises(Exception, match="the first batch has failed"):
        writer.foreachBatch(fail).start().awaitTermination(60)
    kept_from = last - 2
    retire(log, kept_from)
    for _ in range(2):
        with pytest.raises(Exception, match=f"batches {begin} to {kept_from - 1} of the output are not kept"):
            stream(spark, str(tmp_path / "query"), tmp_path / "reader", **options)


def test_output_as_a_stream_from_a_point_in_time(written: Written, spark: SparkSession, tmp_path: Path) -> None:
    manifests = sorted((written.job.checkpoint(APPEND) / "cec" / "log" / "manifests").iterdir())
    walls = [manifest_field(path, "wall_ms") for path in manifests]
    rows = [manifest_field(path, "rows") for path in manifests]
    middle = len(walls) // 2
    seen = stream(spark, written.checkpoint(APPEND), tmp_path / "a", startingTimestamp=walls[middle])
    assert results.union(seen).total() == sum(rows[middle:])
    assert 0 < sum(rows[middle:]) < sum(rows), "the point in time cuts nothing off"
    assert read(spark, written.checkpoint(APPEND), startingTimestamp=walls[middle]).count() == sum(rows[middle:])


def manifest_field(path: Path, field: str) -> int:
    """A number in a manifest, whose JSON may stand beside its checksum."""
    text = path.read_text()
    return int(json.loads(text[text.index("{") : text.rindex("}") + 1])[field])


def test_a_batch_becomes_visible_as_a_whole(spark: SparkSession, references: References, tmp_path: Path) -> None:
    query = Query("window-update", feeds.RATE, "cec")
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    wanted = references.get(query, job)
    sizes, total = {0}, 0
    for _, rows in sorted(wanted.items()):
        total += len(rows)
        sizes.add(total)
    streaming = start(local.session(spark, local.OPENINGS_ONLY), job, query)
    seen: list[int] = []
    try:
        manifests = job.checkpoint(query) / "cec" / "log" / "manifests"
        local.eventually(lambda: next(manifests.glob("*.json"), None), "a batch of output")
        while (streaming.lastProgress or {"batchId": -1})["batchId"] < last_batch(job):
            seen.append(read(spark, str(job.checkpoint(query))).count())
            assert streaming.isActive
    finally:
        streaming.stop()
    assert seen == sorted(seen)
    assert set(seen) <= sizes, f"parts of batches were visible: {sorted(set(seen) - sizes)}"
    assert len(set(seen)) > 1, "only one state was seen: this test proves nothing"


@pytest.mark.parametrize("way", ["sink path", "log.path"])
def test_another_home_for_the_log(way: str, spark: SparkSession, references: References, tmp_path: Path) -> None:
    job = Job(str(tmp_path / "job"), (COMPLETE,), local.BATCHES, local.ROWS)
    home = tmp_path / "home"
    own = local.session(
        spark, local.OPENINGS_ONLY if way == "sink path" else {**local.OPENINGS_ONLY, "log.path": str(home)}
    )
    frame = feeds.read_rate(own, "left", job.batches, job.rows).groupBy("key")
    totals = frame.agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
    writer = (
        totals.writeStream.format("cec")
        .outputMode("complete")
        .option("checkpointLocation", str(job.checkpoint(COMPLETE)))
    )
    if way == "sink path":
        writer = writer.option("path", str(home))
    for batch in (3, last_batch(job)):
        streaming = writer.start()
        try:
            local.wait_for(streaming, batch)
        finally:
            streaming.stop()
    assert list(home.rglob("segments/*.cec")), "the control records are not there"
    assert not list(job.checkpoint(COMPLETE).rglob("*.cec"))
    assert local.reports(job.checkpoint(COMPLETE), 1)[0]["digest_ok"] is True
    wanted = references.get(COMPLETE, job)
    paths = [str(job.checkpoint(COMPLETE)), *([str(home)] if way == "sink path" else [])]
    for path in paths:
        assert results.json_rows(read(spark, path)) == wanted[max(wanted)]


def test_columns_that_are_structs(spark: SparkSession, tmp_path: Path) -> None:
    """Whole, and single fields of them, over many frames: what is read is what foreachBatch was given."""
    own = local.session(spark, local.OPENINGS_ONLY)
    windows = (
        feeds.read_rate(own, "left", local.BATCHES, local.ROWS)
        .withWatermark("ts", "10 seconds")
        .groupBy(f.window("ts", "20 seconds"), "key")
        .agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
        .select(
            "window", "key", f.struct("n", f.struct("total", f.lit("x").alias("text")).alias("inner")).alias("nested")
        )
    )
    wanted: dict[int, list[tuple[object, ...]]] = {}
    checkpoint = str(tmp_path / "cec")
    for writer in (
        windows.writeStream.foreachBatch(local.in_memory(wanted)).option("checkpointLocation", str(tmp_path / "plain")),
        windows.writeStream.format("cec").option("checkpointLocation", checkpoint),
    ):
        streaming = writer.outputMode("append").start()
        try:
            local.wait_for(streaming, local.BATCHES + 1)
        finally:
            streaming.stop()
    rows = sorted(row for batch in wanted.values() for row in batch)
    frame = spark.read.format("cec").load(checkpoint)
    found = sorted(tuple(row) for row in frame.collect())
    assert len({row[0] for row in found}) > 2, "one window proves little"
    few, many = sorted((found, rows), key=len)
    assert few == [row for row in many if row in few], "one run may have seen a batch more"
    ends = sorted((row[0].end, row[2].inner.total) for row in found)  # type: ignore[attr-defined]
    fields = frame.select("window.end", "nested.inner.total")
    assert sorted(tuple(row) for row in fields.collect()) == ends
    assert frame.agg(f.sum("nested.n")).collect()[0][0] == sum(row[2].n for row in found)  # type: ignore[attr-defined]
    state = spark.read.format("cec").option("view", "windows").load(checkpoint)
    whole = state.collect()
    assert whole
    for part, name in (("key", state.schema["key"].dataType.names[-1]), ("value", "sum")):
        picked = sorted(row[0] for row in state.select(f"{part}.{name}").collect())
        assert picked == sorted(row[part][name] for row in whole), f"{part}.{name}"


def write_rows(spark: SparkSession, root: Path, batch: int, *columns: str) -> None:
    """A query, or the same one after it was changed, up to a batch."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1).load()
    writer = rate.selectExpr(*columns).writeStream.format("cec").option("checkpointLocation", str(root))
    query = writer.start()
    try:
        local.wait_for(query, batch)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("timestamp AS c", "value AS c", "c was written as TIMESTAMP with batch 0, and is wanted as BIGINT"),
        (
            "named_struct('x', value, 'y', -value) AS c",
            "named_struct('y', -value, 'x', value) AS c",
            "c was written as STRUCT<x: BIGINT, y: BIGINT> with batch 0, and is wanted as STRUCT<y: BIGINT, x: BIGINT>",
        ),
    ],
)
def test_rows_of_before_a_column_changed_its_type(
    before: str, after: str, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    """They are not taken for something else, and there is a way to read on."""
    own, writer, reader = local.session(spark, {}), tmp_path / "writer", tmp_path / "reader"
    write_rows(own, writer, 1, "value", before)
    behind = newest(writer / "commits")
    old = read(own, str(writer)).schema
    write_rows(own, writer, behind + 2, "value", after)
    with pytest.raises(Exception, match=said):
        read(own, str(writer)).collect()
    assert read(own, str(writer)).select("value").count() == read(own, str(writer)).count() >= 30
    with pytest.raises(Exception, match=said):
        stream(own, str(writer), reader)
    first: dict[int, list[str]] = {}
    frame = own.readStream.format("cec").schema(old).load(str(writer))
    sink = frame.writeStream.option("checkpointLocation", str(reader)).trigger(availableNow=True)
    streaming = sink.foreachBatch(lambda rows, batch: first.update({batch: results.json_rows(rows)})).start()
    with pytest.raises(Exception, match=f"column c was written as .* with batch {behind + 1}, and is wanted as"):
        streaming.awaitTermination(60)
    rest = stream(own, str(writer), reader)
    values = [json.loads(row)["value"] for rows in (*first.values(), *rest.values()) for row in rows]
    assert sorted(values) == list(range(len(values))), "each row once"


def test_another_spelling_of_a_column_is_the_same_one(spark: SparkSession, tmp_path: Path) -> None:
    own, root = local.session(spark, {}), tmp_path / "writer"
    write_rows(own, root, 1, "value AS Id")
    write_rows(own, root, newest(root / "commits") + 2, "value AS id")
    rows = read(own, str(root)).collect()
    assert sorted(row["id"] for row in rows) == list(range(len(rows)))
    assert own.read.format("cec").schema("ID bigint").load(str(root)).where("ID IS NULL").count() == 0
    exact = local.session(spark, {}, **{"spark.sql.caseSensitive": "true"})
    assert 0 < exact.read.format("cec").load(str(root)).where("id IS NULL").count() < len(rows)


def test_columns_of_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """They could be written, and never be read."""
    with pytest.raises(Exception, match=r"COLUMN_ALREADY_EXISTS.*`x`"):
        write_rows(local.session(spark, {}), tmp_path / "writer", 0, "value AS x", "value AS X")
    assert not list(tmp_path.rglob("manifests/*.json"))


def test_a_column_that_is_not_there_is_believed_only_if_that_is_said(
    written: Written, spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.format("cec").schema("nn bigint").option("waitForLog", "true")
    with pytest.raises(Exception, match='no column nn in its view "output"'):
        start_stream(frame.load(written.checkpoint(APPEND)), tmp_path / "a")
    start_stream(frame.option("newColumns", "true").load(written.checkpoint(APPEND)), tmp_path / "b")


def start_stream(frame: DataFrame, root: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(root)).trigger(availableNow=True)
    streaming = writer.start()
    assert streaming.awaitTermination(60)


def test_a_column_that_was_not_there_before_is_null_although_it_is_never_null_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark leaves out the look for nulls in a column that says that it has none."""
    own, root = local.session(spark, {}), tmp_path / "writer"
    write_rows(own, root, 1, "value", "nullif(value, 3) AS n")
    write_rows(own, root, newest(root / "commits") + 2, "value", "1L AS n", "2L AS more")
    frame = read(own, str(root))
    assert frame.where("value = 3").collect()[0].asDict() == {"value": 3, "n": None, "more": None}
    assert frame.where("n IS NULL").count() == 1
    missing = frame.where("more IS NULL").count()
    assert 0 < missing < frame.count()
    assert frame.selectExpr("sum(more)").first()[0] == 2 * (frame.count() - missing)


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_a_python_function_right_behind_the_reader_sees_each_row_as_it_is(
    arrow: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark hands a function's input on in columns, and keeps what it has handed on until the results come back."""
    rows = 200_000
    own = local.session(spark, {}, **{"spark.sql.execution.pythonUDF.arrow.enabled": arrow})
    rate = own.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 1).load()
    written = rate.selectExpr("value", "cast(value AS STRING) AS text").writeStream.format("cec")
    query = written.option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        local.wait_for(query, 0)
    finally:
        query.stop()
    frame = read(own, str(tmp_path / "cp")).where(f"value < {rows}")
    twice = f.udf(lambda value: 2 * value, "bigint")
    for each in (read(own, str(tmp_path / "cp")), frame):
        seen = each.withColumn("twice", twice("value")).where(f"value < {rows}")
        wrong = seen.where("twice <> 2 * value OR text <> cast(value AS STRING) OR twice IS NULL")
        assert (seen.count(), seen.select("text").distinct().count(), wrong.count()) == (rows, rows, 0)
