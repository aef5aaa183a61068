"""A query that a Spark Connect client starts: the server is killed, another one started, and the client asks again."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cec_it import feeds, local, results
from cec_it.cluster import LOOPBACK, PATIENCE_S, QUICK, SPARK_HOME, Daemon
from cec_it.crashes import driver
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch
from cec_it.local import eventually
from cec_it.references import PROVIDER_KEY, References
from spark_cec.session import jar_path
from spark_cec.settings import PROVIDER
from testbed.spark_logs import newest

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listening:
        return int(listening.getsockname()[1])


def server(scratch: Path, port: int, number: int) -> Daemon:
    """A Spark Connect server with our one conf line and the jar."""
    conf = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={scratch}" {" ".join(QUICK)}',
        PROVIDER_KEY: PROVIDER,
        CEC + "python": sys.executable,
        CEC + "CI": "0ms",
    }
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    daemon = Daemon(
        "Spark Connect server",
        [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jar_path(), "--class", SERVER,
         *options, "spark-internal"],
        scratch / f"server-{number}.log",
        {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK},
    )  # fmt: skip
    daemon.says("Spark Connect server started at")
    return daemon


@pytest.mark.parametrize("sink", ["json", pytest.param(FOREACH, marks=pytest.mark.long)])
def test_the_server_is_killed_and_the_query_resumed(sink: str, references: References, tmp_path: Path) -> None:
    query = Query("long-windows", feeds.RATE, sink)
    port = free_port()
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS, master=f"sc://{LOOPBACK}:{port}")
    checkpoint = job.checkpoint(query)
    first = server(tmp_path, port, 0)
    try:
        with driver(job, "cec_it.connect_client"):
            eventually(lambda: newest(checkpoint / "commits") >= 5 or None, "batch 5", PATIENCE_S)
            first.lose()
    finally:
        first.lose()
    second = server(tmp_path, port, 1)
    try:
        with driver(replace(job, life=1), "cec_it.connect_client") as child:
            assert child.exit_code(PATIENCE_S) == 0, child.log.read_text()[-3000:]
    finally:
        second.lose()
    assert newest(checkpoint / "commits") >= last_batch(job)
    if sink != FOREACH:
        # What a foreachBatch function asks for runs in threads of the server that the analyzer rule's word does not
        # reach: its stores are eager, and there is nothing to replay.
        (report,) = local.reports(checkpoint, 1)
        assert report["digest_ok"] is True and int(str(report["replayed_batches"])) > 1
    found = (results.last_recorded if sink == FOREACH else results.file_sink_batches)(job.out(query))
    assert found == references.get(query, job)
