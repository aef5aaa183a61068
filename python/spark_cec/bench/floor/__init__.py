"""The floor: the same query on a store that keeps nothing durable, built for the benchmark and for nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

from spark_cec.toolchain import compile_sources, spark_jars

PROVIDER = "org.apache.spark.sql.execution.streaming.state.FloorStateStoreProvider"
_SOURCE = Path(__file__).with_name("FloorStateStoreProvider.scala")


def build_floor(work: Path) -> Path:
    """Compiles the floor's provider to a jar in `work`; `BuildError` if the compiler refuses it."""
    classes, jar = work / "floor", work / "floor.jar"
    classes.mkdir()
    compile_sources(spark_jars(), [_SOURCE], [], classes, quiet=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes).as_posix())
    return jar
