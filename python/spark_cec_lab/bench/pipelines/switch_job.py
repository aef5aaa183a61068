"""One replica of a pipeline: a source of 3,000 rows a second, windows of a second by 100 keys, and a sink of files.

`python -m spark_cec_lab.bench.pipelines.switch_job SPEC` runs it until its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.pipelines.driver import session_of
from spark_cec_lab.bench.pipelines.way_job import WaySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_cec.pipeline import Pipeline

ROWS_PER_S, KEYS = 3_000, 100
_BEGIN_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """The replica to run. `home`: of the pipeline. `scratch`: of this replica. `jar`, `memory`: of Spark."""

    replica: str
    home: str
    scratch: str
    jar: str
    memory: str

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))


def declare(home: str) -> Pipeline:
    """The pipeline. Its sink writes a file for each batch: the second and the number of rows of each window."""
    from pyspark.sql import functions as F  # noqa: N812

    from spark_cec.pipeline import Pipeline

    made = Pipeline("switch", home)

    @made.flow(trigger={"processingTime": "1 second"})
    def rows(spark: SparkSession) -> DataFrame:
        read = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_S).load()
        time = F.timestamp_seconds(F.expr(f"value DIV {ROWS_PER_S}") + _BEGIN_S)
        return read.select(time.alias("time"), F.expr(f"value % {KEYS}").alias("key"))

    @made.flow(partitions=1, bucket="1s", watermarks={"rows": ("time", "0 seconds")})
    def totals(rows: DataFrame) -> DataFrame:
        counts = rows.groupBy(F.window("time", "1 second").alias("w"), "key").agg(F.count("*").alias("n"))
        return counts.select(F.window_time("w").alias("time"), "key", "n")

    def write(found: DataFrame, batch: int) -> None:
        made_rows = [[row.second, row.n] for row in found.collect()]
        hidden = Path(home, f".{batch}-{os.getpid()}")
        hidden.write_text(json.dumps(made_rows))
        hidden.rename(Path(home, "out", f"{batch:06d}.json"))

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def files(totals: DataFrame) -> DataStreamWriter:
        columns = totals.select(F.unix_seconds("time").alias("second"), "n")
        return columns.writeStream.foreachBatch(write)

    return made


def main(spec: SwitchSpec) -> None:
    """Runs the replica until it is killed."""
    conf = WaySpec("", spec.scratch, spec.jar, spec.memory, None, 0).spark_conf(is_short=True)
    declare(spec.home).run(session_of(conf), replica=spec.replica)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    main(SwitchSpec(**json.loads(sys.argv[1])))
