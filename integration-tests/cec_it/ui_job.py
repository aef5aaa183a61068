"""An application with a user interface, which takes its queries through what a page must show.

`python -m cec_it.ui_job DIRECTORY` reads a line on standard input, does what its first word says, and then prints one
JSON line. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_cec
from cec_it.driver import CEC, session_builder
from cec_it.kafka_feed import read_topic
from cec_it.local import eventually
from cec_it.ui_names import HOSTILE, QUOTED
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Patience

KEYS, ROWS = 7, 70
MANY = 50
SHOWN_S = 120


class Job:
    """The application: `clicks` has a hostile name, and `prices` is eager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._spark = make_session(root)
        self._ends = ExitStack()
        self._clicks: StreamingQuery | None = None

    def close(self) -> None:
        """Ends all."""
        self._ends.close()
        for query in self._spark.streams.active:
            query.stop()
        self._spark.stop()

    def do(self, word: str, *arguments: str) -> dict[str, object]:
        """Does what a word says; answers where the user interface is, and the session's run ids by name."""
        steps: dict[str, Callable[..., None]] = {
            "run": self._run, "replay": self._replay, "go-on": self._go_on, "fail": self._fail,
            "many": self._start_many, "pipeline": self._start_pipeline, "show": self._show,
            "topic": self._count_topic,
        }  # fmt: skip
        steps[word](*arguments)
        runs = {str(query.name): str(query.runId) for query in self._spark.streams.active}
        url = str(self._spark.sparkContext.uiWebUrl)
        return {"url": url, "runs": runs}

    def _run(self) -> None:
        self._feed(6)
        self._clicks = self._start(HOSTILE, "clicks", self._count())
        prices = self._rows().groupBy("key").agg(f.sum(f.col("value").cast("double")))
        both = [self._clicks, self._start(QUOTED, "prices", prices)]
        for query in both:
            query.processAllAvailable()

    def _replay(self) -> None:
        assert self._clicks is not None
        self._clicks.stop()
        self._clicks = self._start(HOSTILE, "clicks", self._count(waits=True))
        eventually(lambda: (self._root / "arrived").exists() or None, "the replay has reached a row")

    def _go_on(self) -> None:
        assert self._clicks is not None
        (self._root / "gate").touch()
        self._feed(2)
        self._clicks.processAllAvailable()
        report = self._root / "clicks" / "cec" / "recoveries"
        eventually(lambda: any(report.glob("*.json")) or None, "a report of the recovery")

    def _fail(self) -> None:
        @f.udf("long")
        def broken(key: int) -> int:
            raise ValueError("<img src=x onerror=\"document.title='hacked'\">")

        counts = self._rows().select(broken("key").alias("key")).groupBy("key").count()
        query = self._start("a query that fails", "broken", counts)
        eventually(lambda: query.exception(), "the error")

    def _start_many(self) -> None:
        for number in range(MANY):
            self._start(f"query {number:02d}", f"many-{number}", self._count(), "1 second")
        eventually(lambda: self._have_all_run() or None, "a batch of each", within_s=300)

    def _have_all_run(self) -> bool:
        return sum(query.lastProgress is not None for query in self._spark.streams.active) >= MANY

    def _start_pipeline(self) -> None:
        self._feed(6)
        made = make_pipeline(self._root / "home", self._rows)
        run = start_pipeline(made, self._spark, Patience(most=0))
        self._ends.callback(run.stop)
        eventually(lambda: any(flow.state is State.FAILED for flow in run.status().flows) or None, "a failed flow")
        eventually(lambda: any((flow.batch or -1) >= 2 for flow in run.status().flows) or None, "some batches")
        time.sleep(1.5)  # the status is written each second

    def _count_topic(self, address: str, topic: str) -> None:
        """A query on a topic of Kafka, in several batches, which goes on to ask the topic for more."""
        rows = read_topic(self._spark, address, topic, {"maxOffsetsPerTrigger": "25"})
        self._start(topic, topic, rows.groupBy("key").count()).processAllAvailable()

    def _show(self) -> None:
        """Three queries that a person might have, for two minutes, and a restart of one of them as after a crash."""
        self._feed(2)
        rows = self._rows().withColumn("time", f.timestamp_seconds(f.col("value")))
        users = self._count()
        self._start("revenue", "revenue", self._rows().groupBy("key").agg(f.sum(f.col("value").cast("double"))))
        visits = rows.withWatermark("time", "1 minute").groupBy(f.session_window("time", "10 seconds"), "key").count()
        self._start("visits", "visits", visits, mode="append")
        clicks = self._start("clicks by user", "clicks by user", users)
        for second in range(SHOWN_S):
            if second == SHOWN_S // 2:
                clicks.processAllAvailable()
                clicks.stop()
                clicks = self._start("clicks by user", "clicks by user", users)
            self._feed(1)
            time.sleep(1)

    def _feed(self, files: int) -> None:
        source = self._root / "source"
        source.mkdir(exist_ok=True)
        for _ in range(files):
            number = len(list(source.iterdir()))
            done = source / f".{number}"
            rows = (f'{{"value": {row * (number + 1)}}}\n' for row in range(ROWS))
            done.write_text("".join(rows))
            done.rename(source / f"{number}.json")

    def _rows(self) -> DataFrame:
        files = self._spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
        rows = files.json(str(self._root / "source"))
        return rows.select((f.col("value") % (KEYS * 10)).alias("key"), "value")

    def _count(self, *, waits: bool = False) -> DataFrame:
        keys = self._rows().select("key")
        if waits:
            keys = keys.select(_waiting(self._root / "gate", self._root / "arrived")("key").alias("key"))
        return keys.groupBy("key").count()

    def _start(
        self, name: str, folder: str, rows: DataFrame, every: str = "200 milliseconds", mode: str = "update"
    ) -> StreamingQuery:
        writer = rows.writeStream.outputMode(mode).queryName(name).format("noop")
        return writer.option("checkpointLocation", str(self._root / folder)).trigger(processingTime=every).start()


def make_session(root: Path) -> SparkSession:
    """With a user interface on a free port, and a log that only openings go to, so that a replay has much to do."""
    builder = session_builder(root / "scratch", "local[2]")
    confs = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.showConsoleProgress": "false",
        f"{CEC}CI": "0ms", f"{CEC}stop.flush": "off", f"{CEC}index.path": str(root / "index"),
    }  # fmt: skip
    for key, value in {**confs, **json.loads(os.environ.get("CEC_UI_CONF", "{}"))}.items():
        builder = builder.config(key, value)
    return spark_cec.configure(builder).getOrCreate()  # again, because the settings may name jars


def make_pipeline(home: Path, rows: Callable[[], DataFrame]) -> Pipeline:
    """orders -> customers -> letters, and orders -> prices -> alarms, of which `prices` fails."""
    made = Pipeline("shop", str(home))

    @made.flow
    def orders(spark: SparkSession) -> DataFrame:
        return rows()

    @made.flow
    def customers(orders: DataFrame) -> DataFrame:
        return orders.dropDuplicates(["key"])

    @made.flow
    def prices(orders: DataFrame) -> DataFrame:
        return orders.select(f.raise_error(f.lit("<i>no</i> price")).cast("long").alias("key"))

    @made.sink
    def letters(customers: DataFrame) -> DataStreamWriter:
        return customers.writeStream.format("noop")

    @made.sink
    def alarms(prices: DataFrame) -> DataStreamWriter:
        return prices.writeStream.format("noop")

    return made


def _waiting(gate: Path, arrived: Path) -> Callable[..., object]:
    """The same key, once the gate is there."""

    @f.udf("long")
    def same(key: int) -> int:
        import time

        arrived.touch()
        while not gate.exists():
            time.sleep(0.02)
        return key

    return same


def main(root: Path) -> None:
    """Does what standard input says."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    job = Job(root)
    try:
        for line in sys.stdin:
            print(json.dumps(job.do(*line.split())), flush=True)
    finally:
        job.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
