"""Spark's classes, parsed and verified once for all JVMs of the tests: each starts in half the time.

`python -m cec_it.class_archive` makes the archive (class data sharing, JEP 350) if it is not there: it runs a few
queries in one JVM, which writes what it has loaded as it ends. A JVM that the archive does not suit, because its class
path or its release is another one, does without it, and says nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import functions as f

from cec_it import feeds, local
from cec_it.driver import FOREACH, Job, Query, last_batch, session_builder
from spark_cec.toolchain import java_command

_ROOT = Path(__file__).resolve().parents[2]
_QUERIES = tuple(
    Query(plan, feeds.RATE, sink) for plan, sink in (("window-append", FOREACH), ("join", "cec"), ("chain", "json"))
)
_SILENT = "-Xlog:disable"
"""What is no error goes to standard output, where others write JSON."""


def archive() -> Path:
    """Where the archive of this Spark and this Java is."""
    java = Path(java_command()).resolve()
    what = f"{pyspark.__file__} {pyspark.__version__} {java} {java.stat().st_mtime_ns}"
    return _ROOT / "build" / f"classes-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsa"


def share_classes() -> None:
    """Let the JVMs of this process, and of all that it starts, use the archive, if there is one.

    And compile little: most of them live for seconds.
    """
    shared = f"-XX:SharedArchiveFile={archive()} {_SILENT}" if archive().exists() else ""
    given = os.environ.get("JDK_JAVA_OPTIONS", "")
    os.environ["JDK_JAVA_OPTIONS"] = f"{given} -XX:TieredStopAtLevel=1 {shared}".strip()


def _make(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        made = Path(root) / "classes.jsa"
        dump = f" -XX:ArchiveClassesAtExit={made} {_SILENT}"
        session = session_builder(Path(root) / "scratch", "local[2]", dump).getOrCreate()
        job = Job(root, _QUERIES, local.BATCHES, local.ROWS)
        for query in _QUERIES:
            local.run_to(session, job, query, last_batch(job))
        path_of_rows = f"{root}/rows"
        session.range(100).withColumn("text", f.col("id").cast("string")).write.parquet(path_of_rows)
        assert session.read.parquet(path_of_rows).groupBy("text").count().count() == 100
        jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
        session.stop()
        jvm.stdin.close()
        jvm.wait(120)
        whole = path.with_suffix(f".{os.getpid()}")  # several may make it at once
        shutil.copyfile(made, whole)
        whole.replace(path)


def main(arguments: list[str]) -> str | None:
    """What is wrong, or None."""
    if arguments:
        _make(Path(*arguments))
    elif not archive().exists():
        print("preparing Spark's classes for the tests, which takes half a minute the first time", flush=True)
        # What Spark says while its queries are stopped is of interest only if this fails.
        command = [sys.executable, "-m", "cec_it.class_archive", str(archive())]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            return made.stderr
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
