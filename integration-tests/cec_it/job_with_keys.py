"""Two queries with their logs on S3, and keys in a credential file of Hadoop, in a driver of its own.

`python -m cec_it.job_with_keys ROOT CONF`: CONF is Spark's settings as JSON. The first query has the keys of the file.
When ROOT/refused is there, the driver waits for a while, and writes other keys into the file. The second query has the
keys of a role (the settings of its bucket say that).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import spark_cec
from cec_it import feeds

CEC = "spark.sql.streaming.stateStore.cec."
FILES = "hadoop.security.credential.provider.path"
KEY_IDS = ("first-key", "second-key")
WITHOUT_KEYS_S = 5.0


def file_of(root: Path) -> str:
    """The URL of the credential file."""
    return f"jceks://file{root}/keys.jceks"


def write_keys(spark: SparkSession, root: Path, key: str) -> None:
    """Writes the credential file, or writes it anew."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    configuration, plain = (jvm.org.apache.hadoop.conf.Configuration(False) for _ in range(2))
    configuration.set(FILES, file_of(root))
    file = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(configuration).get(0)
    for name, value in (("fs.s3a.access.key", key), ("fs.s3a.secret.key", f"the secret of {key}")):
        if file.getCredentialEntry(name) is not None:
            file.deleteCredentialEntry(name)
        plain.set(name, value)
        file.createCredentialEntry(name, plain.getPassword(name))  # an array of characters, which Python cannot make
    file.flush()


def start(spark: SparkSession, root: Path, name: str) -> StreamingQuery:
    """A query with its log in the bucket of its name."""
    spark.conf.set(CEC + "log.path", f"s3a://{name}/logs")
    totals = feeds.read_rate(spark, "left", 100_000, 60).groupBy("key").agg(f.sum("amount").alias("total"))
    writer = totals.writeStream.format("noop").outputMode("update").trigger(processingTime="500 milliseconds")
    return writer.option("checkpointLocation", f"{root}/{name}").start()


def await_batches(query: StreamingQuery, more: int) -> None:
    """Waits until the query has made so many batches more. Raises its error."""
    until = (query.lastProgress or {"batchId": -1})["batchId"] + more
    while (query.lastProgress or {"batchId": -1})["batchId"] < until:
        query.awaitTermination(0.1)


def main(root: Path, conf: dict[str, str]) -> None:
    """Runs the queries."""
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1",
        f"spark.hadoop.{FILES}": file_of(root), CEC + "index.path": f"{root}/index", CEC + "CI": "0ms",
        CEC + "effort": "0", CEC + "mode": "eager", **conf,
    }  # fmt: skip
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = spark_cec.configure(builder).getOrCreate()
    try:
        write_keys(spark, root, KEY_IDS[0])
        one = start(spark, root, "file")
        await_batches(one, 3)
        Path(root, "ready").touch()
        while not Path(root, "refused").exists():
            time.sleep(0.1)
        time.sleep(WITHOUT_KEYS_S)
        write_keys(spark, root, KEY_IDS[1])
        await_batches(one, 5)
        one.stop()
        other = start(spark, root, "role")
        await_batches(other, 3)
        other.stop()
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
