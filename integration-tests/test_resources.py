"""What the JVM part acquires before a step that fails is given back: memory of Arrow, and files of the spool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

CEC = "org.apache.spark.sql.cec"


def named(spark: SparkSession, name: str) -> Any:
    found: Any = spark._jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def empty_map(spark: SparkSession) -> Any:
    """Scala's own, which Py4J cannot name."""
    found = named(spark, "java.lang.Class").forName("scala.collection.immutable.Map$EmptyMap$")
    return found.getField("MODULE$").get(None)


def path_of(spark: SparkSession, path: Path) -> Any:
    return named(spark, "java.io.File")(str(path)).toPath()


def place_of(spark: SparkSession, path: Path) -> Any:
    return named(spark, f"{CEC}.agent.SpoolPath")(path_of(spark, path), named(spark, "scala.Option").empty())


def schema(spark: SparkSession) -> Any:
    return named(spark, "org.apache.spark.sql.types.StructType").fromDDL("a INT, b STRING")


def output(spark: SparkSession, path: Path) -> None:
    named(spark, f"{CEC}.source.RowSpool")(place_of(spark, path), schema(spark))


def commit(spark: SparkSession, path: Path) -> None:
    named(spark, f"{CEC}.state.RecordStream")(place_of(spark, path), True)


def read(spark: SparkSession, path: Path) -> None:
    option = named(spark, "scala.Option")
    named(spark, f"{CEC}.source.ArrowReader")(option.apply(str(path)), schema(spark), empty_map(spark), option.empty())


def load(spark: SparkSession, path: Path) -> None:
    named(spark, f"{CEC}.state.CheckpointSpool").loadKeys(path_of(spark, path), None)


@pytest.mark.parametrize(
    ("use", "wrong"),
    [
        *((use, wrong) for use in (output, commit) for wrong in ("no directory", "a file that is there")),
        *((use, wrong) for use in (read, load) for wrong in ("no directory", "no file")),
        (load, "no Arrow"),
    ],
)
def test_a_spool_file_that_cannot_be_used_keeps_no_memory(
    use: Callable[[SparkSession, Path], None], wrong: str, spark: SparkSession, tmp_path: Path
) -> None:
    arrow = named(spark, "org.apache.spark.sql.util.ArrowUtils").rootAllocator()
    before = arrow.getChildAllocators().size(), arrow.getAllocatedMemory()
    path = tmp_path / ("gone/spool.arrow" if wrong == "no directory" else "spool.arrow")
    if wrong in ("a file that is there", "no Arrow"):
        path.write_bytes(b"no Arrow stream")
    with pytest.raises(Py4JJavaError):
        use(spark, path)
    assert (arrow.getChildAllocators().size(), arrow.getAllocatedMemory()) == before
    assert path.exists() == (wrong == "a file that is there"), "another one's file stays; one of no use goes"
