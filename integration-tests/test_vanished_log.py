"""The log's directory vanishes while a query runs, as after an unmount: the query ends, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import local


def start(spark: SparkSession, checkpoint: Path, number: str, sink: str) -> StreamingQuery:
    """Counts and sums by key; sums of doubles are eager."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "20").option("numPartitions", "1")
    stream = source.load()
    value = f.col("value").cast(number)
    counts = stream.groupBy((f.col("value") % 7).alias("k")).agg(f.count("*").alias("n"), f.sum(value).alias("s"))
    writer = counts.writeStream.format(sink).outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).start()


@pytest.mark.parametrize(("number", "sink"), [("long", "cec"), ("double", "cec"), ("long", "noop")])
def test_a_query_ends_by_name_and_goes_on_when_the_log_is_back(
    number: str, sink: str, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, away = tmp_path / "checkpoint", tmp_path / "away"
    home = checkpoint / "cec" / "log"
    for batch in (2, 5):
        running = start(spark, checkpoint, number, sink)
        try:
            local.wait_for(running, batch)
            home.rename(away)
            with pytest.raises(StreamingQueryException, match="the log is gone; has a file system been unmounted"):
                running.awaitTermination(120)
        finally:
            running.stop()
        assert not home.exists(), "nothing is written in the place of the log"
        away.rename(home)
    running = start(spark, checkpoint, number, sink)
    try:
        local.wait_for(running, 9)
    finally:
        running.stop()
    rows = spark.read.format("cec").option("view", "windows").load(str(checkpoint)).count()
    assert rows == 7
    if sink == "cec":
        output = spark.read.format("cec").load(str(checkpoint))
        found = output.groupBy("k").agg(f.max("n").alias("n"), f.max("s").alias("s"))
        for row in found.collect():
            assert row.s == sum(row.k + 7 * each for each in range(row.n)), row
