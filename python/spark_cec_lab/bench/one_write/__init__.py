"""A checkpoint file manager that writes each file with one request, so that a peer pays for nothing else."""

from __future__ import annotations

from pathlib import Path

from spark_cec_lab.bench.jars import build_jar

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.OneWriteFileManager"
_SOURCE = Path(__file__).with_name("OneWriteFileManager.scala")


def build_one_write(work: Path) -> Path:
    """Compiles that manager to a jar in `work`; `BuildError` if the compiler refuses it."""
    return build_jar(_SOURCE, work / "one-write.jar")
