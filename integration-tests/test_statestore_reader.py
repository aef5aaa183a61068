"""Spark's own reader of state, `spark.read.format("statestore")`: every row as with its own provider, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, local
from cec_it.driver import FOREACH, Job, Query, start
from cec_it.references import wait_for_batch

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDERS = {"ours": {"mode": "eager"}, "theirs": {PROVIDER: SPARKS_OWN}}
LAST = 2
ROWS = 60

Rows = list[str]

IDS_TOO = ("window-append", "sessions", "join")
"""Plans that are tried with Spark's checkpoint format 2 as well, where a version is asked for by its id."""

STORES: dict[str, list[dict[str, str]]] = {
    "window-append": [{}],
    "grand-total": [{}],
    "distinct": [{}],
    "sessions": [{}],
    "count-windows": [{}],
    "chain": [{"operatorId": "0"}, {"operatorId": "1"}],
    "join": [
        {"joinSide": "left"},
        {"joinSide": "right"},
        {"storeName": "left-keyToNumValues"},
        {"storeName": "right-keyWithIndexToValue"},
    ],
}


Checkpoints = Callable[[str], Mapping[tuple[str, str], Path]]


def checkpoints_of(spark: SparkSession, root: Path, version: str) -> dict[tuple[str, str], Path]:
    """Some batches of all plans, with our provider and with Spark's, all at once; their checkpoints."""
    running: list[StreamingQuery] = []
    found: dict[tuple[str, str], Path] = {}
    for name, conf in PROVIDERS.items():
        own = local.session(spark, {PARTITIONS: "3", FORMAT: version, **conf})
        for plan in STORES if version == "1" else IDS_TOO:
            query = Query(plan, feeds.RATE, FOREACH)
            job = Job(str(root / name), (query,), LAST + 3, ROWS)
            running.append(start(own, job, query))
            found[plan, name] = job.checkpoint(query)
    for streaming in running:
        try:
            wait_for_batch(streaming, LAST)
        finally:
            streaming.stop()
    return found


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """The checkpoints of a format version, made when first asked for."""
    return cache(lambda version: checkpoints_of(spark, tmp_path_factory.mktemp(f"format-{version}"), version))


def state(spark: SparkSession, checkpoint: Path, **options: str) -> DataFrame:
    return spark.read.format("statestore").options(**options).load(str(checkpoint))


def rows_of(frame: DataFrame) -> Rows:
    return sorted(str(row.asDict(recursive=True)) for row in frame.collect())


@pytest.mark.parametrize(("version", "plan"), [("1", plan) for plan in STORES] + [("2", plan) for plan in IDS_TOO])
def test_every_row_is_as_with_sparks_own_provider(
    plan: str, version: str, spark: SparkSession, checkpoints: Checkpoints
) -> None:
    made, reading = checkpoints(version), local.session(spark, {FORMAT: version})
    seen = set()
    for store in STORES[plan]:
        for batch in (LAST, 1):
            wanted = rows_of(state(reading, made[plan, "theirs"], batchId=str(batch), **store))
            found = rows_of(state(reading, made[plan, "ours"], batchId=str(batch), **store))
            assert found == wanted, f"{store}, batch {batch}"
            seen |= {int(row) for row in re.findall(r"'partition_id': (\d+)", "".join(found))}
    assert seen == ({0} if plan == "grand-total" else {0, 1, 2})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"snapshotStartBatchId": "1", "snapshotPartitionId": "0"},
            "SupportsFineGrainedReplay",
        ),
        ({"readChangeFeed": "true", "changeStartBatchId": "1"}, "SupportsFineGrainedReplay"),
    ],
    ids=["snapshot", "change feed"],
)
def test_what_cannot_be_read_is_refused(
    options: dict[str, str], says: str, spark: SparkSession, checkpoints: Checkpoints
) -> None:
    with pytest.raises(Exception, match=says):
        state(spark, checkpoints("1")["distinct", "ours"], **options).collect()


def test_the_metadata_of_the_stores(spark: SparkSession, checkpoints: Checkpoints) -> None:
    made = checkpoints("1")
    for plan in ("sessions", "join", "chain"):
        ours, theirs = (
            rows_of(spark.read.format("state-metadata").load(str(made[plan, name])).drop("maxBatchId"))
            for name in PROVIDERS
        )
        assert ours == theirs


def test_partitions_without_a_directory_are_not_left_out(spark: SparkSession, checkpoints: Checkpoints) -> None:
    """A checkpoint of a release that made a directory for partition 0 only."""
    checkpoint = checkpoints("1")["count-windows", "ours"]
    whole = rows_of(state(spark, checkpoint))
    for partition in (1, 2):
        (checkpoint / "state" / "0" / str(partition)).rename(checkpoint / f"kept-{partition}")
    with pytest.raises(Exception, match=r"CANNOT_LOAD_STATE_STORE.*directories of 1 partitions where the log has 3"):
        state(spark, checkpoint).collect()
    for partition in (1, 2):
        (checkpoint / f"kept-{partition}").rename(checkpoint / "state" / "0" / str(partition))
    assert rows_of(state(spark, checkpoint)) == whole


def test_state_that_is_in_memory_alone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The log holds the openings only: what it could show is older than the state."""
    query = Query("totals", feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), LAST + 3, ROWS)
    own = local.session(spark, {**local.OPENINGS_ONLY, "stop.flush": "off"})
    local.run_to(own, job, query, LAST)
    with pytest.raises(Exception, match=r"CANNOT_LOAD_STATE_STORE.*cec flush .*checkpoint`"):
        state(spark, job.checkpoint(query)).collect()


@pytest.mark.parametrize("mode", ["eager", "deferred"])
def test_a_function_of_the_query_reads_the_state(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    """Within `foreachBatch` the reader is as outside of the query. It takes no windows away from the query's stores."""
    own = local.session(spark, {PARTITIONS: "3", **({"mode": "eager"} if mode == "eager" else local.OPENINGS_ONLY)})
    given: dict[int, Rows] = {}
    read: dict[int, Rows | str] = {}

    def write(frame: DataFrame, batch: int) -> None:
        given[batch] = rows_of(frame)
        try:
            before = state(frame.sparkSession, tmp_path, batchId=str(batch - 1)) if batch else frame.limit(0)
            read[batch] = rows_of(before.selectExpr("key.key", "value.count AS n") if batch else before)
        except Exception as error:
            read[batch] = str(error)

    counts = feeds.read_rate(own, "left", local.BATCHES, ROWS).groupBy("key").agg(f.count("*").alias("n"))
    writer = counts.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path))
    streaming = writer.foreachBatch(write).start()
    try:
        local.wait_for(streaming, LAST)
    finally:
        streaming.stop()
    assert read[1] == given[0] != [], "the first batch leaves nothing dirty"
    for batch in range(2, LAST + 1):
        if mode == "eager":
            assert read[batch] == given[batch - 1]
        else:
            assert re.search(r"CANNOT_LOAD_STATE_STORE.*cec flush", str(read[batch])), f"batch {batch}: {read[batch]}"
