"""The hash map of rows: the same query on a store that keeps nothing durable, built for the benchmark alone."""

from __future__ import annotations

from pathlib import Path

from spark_cec_lab.bench.jars import build_jar

PROVIDER = "org.apache.spark.sql.execution.streaming.state.HashMapStateStoreProvider"
_SOURCE = Path(__file__).with_name("HashMapStateStoreProvider.scala")


def build_hashmap(work: Path) -> Path:
    """Compiles that store's provider to a jar in `work`; `BuildError` if the compiler refuses it."""
    return build_jar(_SOURCE, work / "hashmap.jar")
