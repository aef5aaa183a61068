"""Classes that a benchmark needs in the JVM, built for it and for nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

from spark_cec.toolchain import compile_sources, spark_jars


def build_jar(source: Path, jar: Path) -> Path:
    """Compiles one Scala file to a jar; answers the jar. Raises `BuildError` if the compiler refuses it."""
    classes = jar.with_suffix("")
    classes.mkdir(parents=True)
    compile_sources(spark_jars(), [source], [], classes, quiet=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes).as_posix())
    return jar
