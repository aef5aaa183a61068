"""A driver whose query writes to a table or a database: `python -m cec_it.sinks JOB.json`; its sink is one of `SINKS`.

It prints the events of `cec_it.driver`, so that `cec_it.crashes` can kill it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds
from cec_it.driver import Job, Query, Reporter, say, session_builder
from cec_it.plans import PLANS

OUTPUT = "windows"
COLUMNS = "start TIMESTAMP, key LONG, n LONG, total LONG, last LONG"
DERBY = "org.apache.derby.jdbc.EmbeddedDriver"


def to_table(spark: SparkSession, job: Job, query: Query, writer: DataStreamWriter) -> StreamingQuery:
    """A parquet table, declared anew by each life of the driver: its catalog is in memory."""
    create_table(spark, job, query)
    return writer.toTable(OUTPUT)


def create_table(spark: SparkSession, job: Job, query: Query) -> None:
    """Declare the table that `to_table` writes."""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {OUTPUT} ({COLUMNS}) USING parquet LOCATION '{job.out(query)}'")


def to_jdbc(spark: SparkSession, job: Job, query: Query, writer: DataStreamWriter) -> StreamingQuery:
    """An embedded database, through `foreachBatch`: a batch that comes again replaces its rows."""
    url = jdbc_url(spark, job, query)

    def write(frame: DataFrame, batch: int) -> None:
        _replace_batch(spark, url, batch)
        frame.selectExpr(f"{batch}L AS batch", "*").write.option("driver", DERBY).jdbc(url, OUTPUT, "append")

    return writer.foreachBatch(write).start()


def jdbc_url(spark: SparkSession, job: Job, query: Query) -> str:
    """Where `to_jdbc` writes; the database keeps its own messages there too, not in the working directory."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", f"{job.root}/derby.log")
    return f"jdbc:derby:{job.out(query)};create=true"


def _replace_batch(spark: SparkSession, url: str, batch: int) -> None:
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.Class.forName(DERBY)
    connection = jvm.java.sql.DriverManager.getConnection(url)
    try:
        tables = connection.getMetaData().getTables(None, None, OUTPUT.upper(), None)
        if tables.next():
            connection.createStatement().executeUpdate(f'DELETE FROM {OUTPUT} WHERE "batch" = {batch}')
    finally:
        connection.close()


SINKS: dict[str, Callable[[SparkSession, Job, Query, DataStreamWriter], StreamingQuery]] = {
    "table": to_table,
    "jdbc": to_jdbc,
}


def main(arguments: list[str]) -> int:
    """Entry point; the only argument is the job's file."""
    job = Job.from_json(Path(arguments[0]).read_text())
    builder = session_builder(Path(job.root) / "scratch", job.master)
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    (query,) = job.queries
    reporter = Reporter(job)
    spark.streams.addListener(reporter)
    plan = PLANS[query.plan]
    frame = plan.build(lambda side: feeds.read_rate(spark, side, job.batches, job.rows))
    writer = (
        frame.writeStream.queryName(query.name)
        .outputMode(plan.mode)
        .option("checkpointLocation", str(job.checkpoint(query)))
    )
    try:
        streaming = SINKS[query.sink](spark, job, query, writer)
        reporter.wait(streaming)
        error = streaming.exception()
        streaming.stop()
    except Exception as failure:
        error = failure
    say("done" if error is None else "failed", query.name, error=str(error))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
