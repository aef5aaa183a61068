"""The floor: the same query on a store that keeps nothing durable, built for the benchmark and for nothing else."""

from __future__ import annotations

from pathlib import Path

from spark_cec.bench.jars import build_jar

PROVIDER = "org.apache.spark.sql.execution.streaming.state.FloorStateStoreProvider"
_SOURCE = Path(__file__).with_name("FloorStateStoreProvider.scala")


def build_floor(work: Path) -> Path:
    """Compiles the floor's provider to a jar in `work`; `BuildError` if the compiler refuses it."""
    return build_jar(_SOURCE, work / "floor.jar")
