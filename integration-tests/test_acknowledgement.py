"""A source is told that a batch is done with only when no recovery can ask for it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import local

STEP = 10
Rows = dict[int, list[tuple[object, ...]]]


class Span(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Acknowledged(DataSourceStreamReader):
    """Ten numbers a batch; writes down each offset that it is told to be done with, and will not go back before it."""

    def __init__(self, record: str) -> None:
        self._record = Path(record)
        self._at = max(acknowledged(self._record), default=0)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        self._at += STEP
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        self._at = max(self._at, end["at"])
        if start["at"] < max(acknowledged(self._record), default=0):
            raise RuntimeError(f"offset {start['at']} was acknowledged, and is gone")
        return [Span(start["at"], end["at"])]

    def read(self, partition: Span) -> Iterator[tuple[int]]:
        for n in range(partition.start, partition.end):
            yield (n,)

    def commit(self, end: dict[str, int]) -> None:
        with self._record.open("a") as record:
            record.write(f"{end['at']}\n")


class AcknowledgedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "it-acknowledged"

    def schema(self) -> str:
        return "n LONG"

    def streamReader(self, schema: object) -> Acknowledged:  # noqa: N802
        return Acknowledged(self.options["record"])


def acknowledged(record: Path) -> list[int]:
    return [int(line) for line in record.read_text().split()] if record.exists() else []


def totals(spark: SparkSession, root: Path, into: Rows) -> StreamingQuery:
    spark.dataSource.register(AcknowledgedSource)
    numbers = spark.readStream.format("it-acknowledged").option("record", str(root / "acknowledged")).load()
    sums = numbers.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("total"), f.count("*").alias("n"))
    writer = sums.writeStream.outputMode("update").option("checkpointLocation", str(root / "checkpoint"))
    return writer.foreachBatch(local.in_memory(into)).start()


def run_to(spark: SparkSession, root: Path, into: Rows, batch: int) -> None:
    streaming = totals(spark, root, into)
    try:
        local.wait_for(streaming, batch)
    finally:
        streaming.stop()


def end_of(root: Path, batch: int) -> int:
    """The offset at which a batch ended."""
    offset = (root / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]
    return int(offset.split(":")[1].strip(" }"))


def wanted(last: int) -> dict[int, int]:
    """The sum of the numbers below `last`, by their remainder."""
    return {k: sum(range(k, last, 3)) for k in range(3)}


@pytest.mark.parametrize(
    "settings", [{"CI": "0ms"}, {"CI": "5ms", "CP": "10ms", "U": "5", "effort": "0"}], ids=["openings only", "U=5"]
)
def test_acknowledgements_are_held_back_to_t(settings: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {**settings, "sources.replayable": "it-acknowledged"})
    rows: Rows = {}
    run_to(own, tmp_path, rows, 8)
    before = acknowledged(tmp_path / "acknowledged")
    run_to(own, tmp_path, rows, 14)
    report = local.reports(tmp_path / "checkpoint", 1)[0]
    assert local.query_json(tmp_path / "checkpoint")["mode"] == "deferred"
    rewound_to = int(str(report["rewound_to"]))
    assert report["digest_ok"] is True
    assert int(str(report["replayed_batches"])) >= 1
    assert max(before, default=0) <= end_of(tmp_path, rewound_to), f"T={rewound_to}: {report}"
    assert before == sorted(before)
    if "U" in settings:
        assert before, "acknowledgements are held back for ever"
    last = max(rows)
    newest = {k: total for batch in sorted(rows) for k, total, _ in rows[batch]}
    assert newest == wanted(end_of(tmp_path, last))


def test_acknowledgements_pass_as_usual_in_eager_mode(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, {"mode": "eager", "sources.replayable": "it-acknowledged"})
    rows: Rows = {}
    run_to(own, tmp_path, rows, 6)
    passed = acknowledged(tmp_path / "acknowledged")
    assert {end_of(tmp_path, batch) for batch in range(5)} <= set(passed)
