"""A driver that runs on one of the workers and is started again there by Spark's own supervisor.

Spark's standalone cluster takes no Python application in cluster deploy mode, so the job is a Scala one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cec_it import cluster, feeds, local, results
from cec_it.cluster import LOOPBACK, PATIENCE_S, SPARK_HOME
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch
from cec_it.local import eventually
from cec_it.references import PROVIDER_KEY, References
from spark_cec.session import jar_path
from spark_cec.settings import PROVIDER
from spark_cec.toolchain import compile_sources, spark_jars
from testbed.spark_logs import newest

SOURCE = Path(__file__).parent / "cluster" / "scala" / "ClusterJob.scala"
QUERY = Query("long-windows", feeds.RATE, FOREACH)
DRIVER = b"DriverWrapper"


def submit(master: str, conf: dict[str, str], *application: str) -> subprocess.CompletedProcess[str]:
    """`spark-submit --deploy-mode cluster`, which ends when the master has the application."""
    options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return subprocess.run(
        [SPARK_HOME / "bin" / "spark-submit", "--master", master, "--deploy-mode", "cluster", "--supervise",
         *options, *application],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK},
    )  # fmt: skip


def application_jar(directory: Path) -> Path:
    """The job, compiled."""
    classes = directory / "classes"
    classes.mkdir()
    compile_sources(spark_jars(), [SOURCE], [], classes, quiet=True)
    with zipfile.ZipFile(directory / "job.jar", "w") as jar:
        for path in local.files_in(classes):
            jar.write(path, path.relative_to(classes))
    return directory / "job.jar"


@pytest.mark.long
def test_a_driver_on_a_worker_is_killed_and_supervised(references: References, tmp_path: Path) -> None:
    job = Job(str(tmp_path / "job"), (QUERY,), local.BATCHES, local.ROWS)
    checkpoint, out = tmp_path / "job" / "checkpoint", tmp_path / "job" / "out"
    with cluster.running(tmp_path / "cluster") as running:
        conf = running.conf() | {
            "spark.driver.memory": "512m",
            "spark.jars": jar_path(),
            PROVIDER_KEY: PROVIDER,
            CEC + "CI": "0ms",
            CEC + "python": sys.executable,
            "spark.sql.session.timeZone": "UTC",
        }
        jar = application_jar(tmp_path)
        numbers = [str(job.batches), str(job.rows), str(last_batch(job))]
        done = submit(running.url, conf, "--class", "org.example.cluster.ClusterJob", str(jar), job.root, *numbers)
        assert done.returncode == 0, done.stderr[-3000:]

        def drivers() -> list[int]:
            return [pid for worker in running.workers for pid in worker.children(DRIVER)]

        eventually(lambda: newest(checkpoint / "commits") >= 4 or None, "batch 4", PATIENCE_S)
        (victim,) = drivers()
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: [pid for pid in drivers() if pid != victim] or None, "another driver", PATIENCE_S)
        eventually(lambda: newest(checkpoint / "commits") >= last_batch(job) or None, "the last batch", PATIENCE_S)
        eventually(lambda: None if drivers() else True, "the driver's end", PATIENCE_S)
    assert len(results.calls_of(out, 1)) > 0, "the second driver has called the sink"
    assert len(local.reports(checkpoint, 1)) == 1
    assert results.last_recorded(out) == references.get(QUERY, job)


def test_spark_refuses_a_python_application_there(tmp_path: Path) -> None:
    application = tmp_path / "job.py"
    application.write_text("")
    refused = submit(f"spark://{LOOPBACK}:1", {}, str(application))
    assert refused.returncode != 0
    assert "not supported for python applications on standalone clusters" in refused.stderr
