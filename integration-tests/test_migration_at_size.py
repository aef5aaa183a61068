"""`cec import`, `rescale` and `export` by their commands, on the checkpoints of a query with 100,000 keys."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it import local
from cec_it.commands import cec
from cec_it.references import PROVIDER_KEY
from spark_cec.cli.migrate import PROVIDERS

KEYS = 100_000
ROWS = 60_000
BATCHES = 8
Sums = dict[int, tuple[int, Decimal]]


def run(spark: SparkSession, provider: str, checkpoint: Path, to: int, seen: Sums) -> None:
    """The query on a provider until it has committed batch `to`; what each batch brought, as rows and their hashes."""

    def look(frame: DataFrame, batch: int) -> None:
        hashed = f.sum(f.xxhash64("key", "n", "total").cast("decimal(38,0)"))
        row = frame.agg(f.count("*").alias("rows"), hashed.alias("digest")).first()
        assert row is not None
        found = (int(row.rows), row.digest)
        assert seen.setdefault(batch, found) == found

    own = local.session(spark, **{PROVIDER_KEY: PROVIDERS[provider], "stop.flush": "on"})
    rows = own.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    keyed = rows.select((f.hash("value") % KEYS).alias("key"), "value")
    totals = keyed.groupBy("key").agg(f.count("*").alias("n"), f.sum("value").alias("total"))
    writer = totals.writeStream.outputMode("update").foreachBatch(look)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        local.wait_for(query, to)
    finally:
        query.stop()


@pytest.mark.long
@pytest.mark.parametrize(("first", "last"), [("rocksdb", "hdfs"), ("hdfs", "rocksdb")])
def test_a_query_with_many_keys_comes_and_goes(first: str, last: str, spark: SparkSession, tmp_path: Path) -> None:
    undisturbed: Sums = {}
    run(spark, first, tmp_path / "undisturbed", BATCHES, undisturbed)
    seen: Sums = {}
    there, here, wider, back = (tmp_path / name for name in ("there", "here", "wider", "back"))
    run(spark, first, there, 2, seen)
    imported = cec("import", "--from", str(there), "--to", str(here), "--quiet-for", "1")
    run(spark, "cec", here, 4, seen)
    rescaled = cec("rescale", "--from", str(here), "--to", str(wider), "--partitions", "6")
    run(spark, "cec", wider, 6, seen)
    exported = cec("export", "--from", str(wider), "--to", str(back), "--provider", last)
    run(spark, last, back, BATCHES, seen)
    rows = [answer["stores"][0]["rows"] for answer in (imported, rescaled, exported)]
    assert rows == sorted(rows) and rows[0] > KEYS * 0.7
    assert (rescaled["partitions"], exported["partitions"]) == (6, 6)
    common = sorted(undisturbed.keys() & seen.keys())
    assert len(common) > BATCHES
    assert {batch: seen[batch] for batch in common} == {batch: undisturbed[batch] for batch in common}
