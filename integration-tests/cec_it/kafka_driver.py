"""The driver that is killed, with queries from Kafka: `python -m cec_it.kafka_driver JOB.json`.

It says what `cec_it.driver` says. With `drain` it reads all input, then adds the records that close the windows, and
ends when these are read; it leaves in `rows.json` under each query with the `cec` sink what that sink holds. Else it
runs until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import kafka_session, results
from cec_it.driver import CEC_SINK, FOREACH, say, session_builder
from cec_it.kafka_feed import closing, read_topic
from cec_it.kafka_plans import PLANS
from testbed.topics import Topics

KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class KafkaQuery:
    """One query: a plan, and a sink: `foreachBatch`, `kafka` or `cec`."""

    plan: str
    sink: str

    @property
    def name(self) -> str:
        return f"{self.plan}.kafka.{self.sink}"


@dataclass(frozen=True, slots=True)
class KafkaJob:
    """What a driver runs in its `life`-th life: `queries` from `topic`, read with `options`."""

    root: str
    address: str
    topic: str
    queries: tuple[KafkaQuery, ...]
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    life: int = 0
    drain: bool = False

    def checkpoint(self, query: KafkaQuery) -> Path:
        return Path(self.root) / query.name / "checkpoint"

    def out(self, query: KafkaQuery) -> Path:
        return Path(self.root) / query.name / "out"

    def out_topic(self, query: KafkaQuery) -> str:
        return f"{self.topic}-{query.name}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> KafkaJob:
        raw = json.loads(text)
        return cls(**{**raw, "queries": tuple(KafkaQuery(**query) for query in raw["queries"])})


def start(spark: SparkSession, job: KafkaJob, query: KafkaQuery) -> StreamingQuery:
    """Start one query of a job."""
    frame = PLANS[query.plan].build(read_topic(spark, job.address, job.topic, job.options))
    rows = frame.select(f.to_json(f.struct("*")).alias("value")) if query.sink == KAFKA else frame
    writer = rows.writeStream.queryName(query.name).option("checkpointLocation", str(job.checkpoint(query)))
    if query.sink == FOREACH:
        return writer.foreachBatch(results.recorder(job.out(query), job.life)).start()
    if query.sink == KAFKA:
        to = writer.option("kafka.bootstrap.servers", job.address).option("topic", job.out_topic(query))
        return to.format("kafka").start()
    return writer.format(query.sink).start()


def run(spark: SparkSession, job: KafkaJob) -> None:
    """Run all queries at once; one that fails does not stop the others."""
    drained = threading.Barrier(len(job.queries), lambda: _close_windows(job))
    threads = [threading.Thread(target=_run_one, args=(spark, job, query, drained)) for query in job.queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _close_windows(job: KafkaJob) -> None:
    topics = Topics(job.address)
    topics.produce(job.topic, closing(len(topics.partitions(job.topic))))


def _run_one(spark: SparkSession, job: KafkaJob, query: KafkaQuery, drained: threading.Barrier) -> None:
    try:
        streaming = start(spark, job, query)
        say("started", query.name)
        if job.drain:
            streaming.processAllAvailable()
            drained.wait()
            streaming.processAllAvailable()
            streaming.stop()
        else:
            streaming.awaitTermination()
        say("done", query.name)
    except threading.BrokenBarrierError:
        say("failed", query.name, error="another query of this driver has failed")
    except Exception as error:
        drained.abort()
        say("failed", query.name, error=str(error))


def _leave_rows(spark: SparkSession, job: KafkaJob, queries: Sequence[KafkaQuery]) -> None:
    for query in queries:
        results.leave_rows(spark, str(job.checkpoint(query)), job.out(query))


def main(arguments: list[str]) -> int:
    """Run the job in the file named by the only argument."""
    job = KafkaJob.from_json(Path(arguments[0]).read_text())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = kafka_session.with_connector(session_builder(Path(job.root) / "scratch", "local[2]"))
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    run(spark, job)
    if job.drain:
        _leave_rows(spark, job, [query for query in job.queries if query.sink == CEC_SINK])
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
