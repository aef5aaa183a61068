"""CheckMate's four NexMark queries as pipelines, alone and in instances: their rows are DuckDB's."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cec_it.local import eventually
from cec_it.nexmark import REFERENCES as DUCKDB
from cec_it.nexmark import flat, tables
from spark_cec.admin.find_log import find_log
from spark_cec.admin.outputs import read_outputs
from spark_cec.log.manifest import read_batch
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.supervise import Patience
from spark_cec_lab.nexmark.events import Nexmark
from spark_cec_lab.nexmark.flows import FLOW_QUERIES, nexmark_pipeline

STREAMS = Nexmark(rate=1_000)
EVENTS, BATCHES = 5_000, 4
"""Five seconds of events a batch."""

UNTIL = "(ms // 10000 + 1) * 10000"
REFERENCES = {
    "q1": DUCKDB["q1"],
    "q3": DUCKDB["q3"],
    "q8": f"""SELECT p.id, p.name, a.id, p.until FROM (SELECT *, {UNTIL} AS until FROM person) p
              JOIN (SELECT *, {UNTIL} AS until FROM auction) a ON a.seller = p.id AND a.until = p.until""",
    "q12": DUCKDB["q12"],
}


@pytest.mark.parametrize(("name", "instances"), [
    ("q3", 2), ("q12", 2), pytest.param("q1", 1, marks=pytest.mark.long), pytest.param("q8", 1, marks=pytest.mark.long),
])  # fmt: skip
def test_its_rows_are_those_of_duckdb(name: str, instances: int, spark: SparkSession, tmp_path: Path) -> None:
    query = FLOW_QUERIES[name]
    def numbers(spark: SparkSession, _: str) -> DataFrame:
        return STREAMS.stream(spark, EVENTS)

    pipeline = nexmark_pipeline(query, str(tmp_path), STREAMS, numbers, instances)
    flows = [each for each in pipeline.flows if each.startswith(name)]
    assert len(flows) == instances
    run = start_pipeline(pipeline, spark, Patience(most=0))
    try:
        eventually(
            lambda: True if all((flow.batch or 0) >= BATCHES for flow in run.status().flows) else None, "some batches"
        )
    finally:
        status = run.stop()
    assert not status.failed, status.failed
    newest = [read_outputs(find_log(f"{tmp_path}/flows/{flow}"), 1).batches[0] for flow in flows]
    ends = [each.end for batch in newest for each in batch.inputs]
    rows = reduce(DataFrame.union, (spark.read.format("cec").load(f"{tmp_path}/flows/{flow}") for flow in flows))
    if name == "q1":
        rows = rows.selectExpr("auction", "bidder", "euros", "unix_millis(date_time)")
    if query.mode == "update":
        rows = rows.groupBy("bidder", "until").max("bids").selectExpr("bidder", "`max(bids)`", "until")
    found = Counter(flat(rows.collect()))
    # Streams and instances are not equally far: all that all of them have read is there, and nothing that none has.
    read = [read_batch(end or "") + 1 for end in ends]
    least, most = (asked(spark, name, EVENTS * batches) for batches in (min(read), max(read)))
    assert len(least) > 10
    if query.mode == "update":
        counts = {(bidder, until): bids for bidder, bids, until in found}
        assert all(counts[bidder, until] >= bids for bidder, bids, until in least)
        assert all(counts.get((bidder, until), 0) <= bids for bidder, bids, until in most)
        assert counts.keys() <= {(bidder, until) for bidder, _, until in most}
    else:
        assert not least - found
        assert not found - most


def asked(spark: SparkSession, name: str, events: int) -> Counter[tuple[Any, ...]]:
    """DuckDB's rows over so many events."""
    database = tables(spark, STREAMS, events)
    try:
        return Counter(database.execute(REFERENCES[name]).fetchall())
    finally:
        database.close()
