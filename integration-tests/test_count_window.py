"""`spark_cec.count_window`: windows of so many rows by key, compared with pandas; its kills are in the kill matrix."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import local

SEED = 20_111
SIZE = 3
COLUMNS = ["group", "n", "total", "mean", "least", "first", "last", "many"]


def events(rows: int, files: int, seed: int = SEED) -> pd.DataFrame:
    """With names of many lengths, some of them none, in so many files."""
    dice = random.Random(seed)
    return pd.DataFrame(
        {
            "seq": range(rows),
            "file": [row * files // rows for row in range(rows)],
            "key": [dice.randrange(-7, 7) for _ in range(rows)],
            "amount": [dice.randrange(1000) for _ in range(rows)],
            "name": [None if dice.random() < 0.1 else "x" * dice.randrange(20) + str(row) for row in range(rows)],
        }
    )


def windows(frame: DataFrame, size: int = SIZE) -> DataFrame:
    """An expression as the key, aggregates of all kinds of buffers, one in an expression, one with a filter."""
    aggregates = [
        f.count("*").alias("n"),
        (f.sum("amount") + f.max("amount")).alias("total"),
        f.avg("amount").alias("mean"),
        f.min("name").alias("least"),
        f.first("seq").alias("first"),
        f.last("name").alias("last"),
        f.count_if(f.col("amount") > 500).alias("many"),
    ]
    return spark_cec.count_window(frame, f.pmod("key", f.lit(4)).alias("group"), size, aggregates, order_by="seq")


def wanted(rows: pd.DataFrame, size: int = SIZE) -> list[tuple[object, ...]]:
    """The same by pandas."""
    found = []
    for key, group in rows.groupby(rows["key"] % 4):
        for begin in range(0, len(group) - size + 1, size):
            part = group.sort_values("seq").iloc[begin : begin + size]
            names, amounts = part["name"], part["amount"]
            least = min((name for name in names if name is not None), default=None)
            total = int(amounts.sum() + amounts.max())
            found.append(
                (key, size, total, amounts.sum() / size, least, part["seq"].iloc[0], names.iloc[-1], sum(amounts > 500))
            )
    return sorted(found, key=repr)


def as_found(rows: list[Row]) -> list[tuple[object, ...]]:
    return sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=repr)


@pytest.mark.parametrize("size", [1, SIZE, 50])
def test_of_a_table(spark: SparkSession, size: int) -> None:
    rows = events(200, 1)
    frame = spark.createDataFrame(rows, "seq long, file int, key long, amount long, name string")
    result = windows(frame, size)
    assert result.columns == COLUMNS
    assert as_found(result.collect()) == wanted(rows, size)
    assert wanted(rows, size)


def test_of_a_stream_which_is_stopped_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {**local.OPENINGS_ONLY, "stop.flush": "off"})
    rows, source, read = events(300, 6), tmp_path / "source", dict[int, list[tuple[object, ...]]]()
    source.mkdir()

    def keep(frame: DataFrame, batch: int) -> None:
        assert batch not in read
        read[batch] = as_found(frame.collect())

    for half in (range(3), range(3, 6)):
        for number in half:
            rows[rows["file"] == number].to_json(source / f"{number}.json", orient="records", lines=True)
            # Spark reads files in the order of their times, and several are written in a millisecond.
            os.utime(source / f"{number}.json", (1_600_000_000 + number, 1_600_000_000 + number))
        stream = own.readStream.schema("seq long, key long, amount long, name string")
        result = windows(stream.option("maxFilesPerTrigger", 1).json(str(source)))
        writer = result.writeStream.outputMode("append").foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "check")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert len([batch for batch in read if read[batch]]) > 4
    found = sorted((row for batch in read.values() for row in batch), key=repr)
    assert found == wanted(rows), f"seed {SEED}"
    (report,) = local.reports(tmp_path / "check", 1)
    assert report["digest_ok"] and int(str(report["replayed_batches"])) > 0, report


@pytest.mark.parametrize(
    ("size", "aggregates", "words"),
    [
        (0, ["count"], "a window of 0 rows: give a whole number from 1"),
        (2.5, ["count"], r"a window of 2\.5 rows"),
        (True, ["count"], "a window of True rows"),
        (3, [], "no aggregates: give at least one"),
        (3, ["distinct"], "DISTINCT is not an aggregate that it can compute row by row"),
        (3, ["list"], "collect_list is not an aggregate that it can compute row by row"),
        (3, ["python"], "cannot be computed row by row: give it a column of its own before"),
    ],
)
def test_what_it_cannot_do_is_refused(spark: SparkSession, size: int, aggregates: list[str], words: str) -> None:
    known = {
        "count": f.count("*"),
        "distinct": f.count_distinct("id"),
        "list": f.collect_list("id"),
        "python": f.sum(f.udf(lambda n: n, "long")("id")),
    }
    with pytest.raises(ValueError, match=words):
        spark_cec.count_window(spark.range(3), "id", size, [known[name] for name in aggregates])


def test_a_column_that_is_not_there_is_named_by_spark(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="nothing"):
        spark_cec.count_window(spark.range(3), "nothing", 2, f.count("*"))
    with pytest.raises(AnalysisException, match="nowhere"):
        spark_cec.count_window(spark.range(3), "id", 2, f.count("*"), order_by="nowhere")
