"""Another patch release of Spark: the jar looks whether all that it uses is there, and says what is not."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import spark_cec
from spark_cec.toolchain import SPARKS, minor_release

MINOR = minor_release(pyspark.__version__)
CEC = "org/apache/spark/sql/cec/"


def texts(jvm: Any, found: Any) -> list[str]:
    return [str(each) for each in jvm.scala.jdk.javaapi.CollectionConverters.asJava(found)]


@pytest.mark.parametrize(
    ("running", "refused"),
    [
        (pyspark.__version__, None),
        (f"{MINOR}.1", None),
        (f"{MINOR}.99-SNAPSHOT", None),
        ("4.4.0", "another minor"),
        *((f"{other}.0", "another minor") for other in SPARKS if other != MINOR),
        ("4.30.0", "another minor"),
    ],
)
def test_a_patch_release_that_has_everything_is_as_good(running: str, refused: str | None, spark: SparkSession) -> None:
    answer = spark._jvm.org.apache.spark.sql.cec.BuildInfo.refusalUnder(running)  # type: ignore[union-attr]
    assert answer.isDefined() == (refused is not None)
    if refused:
        assert f"but Spark {running} is running ({refused} release)" in str(answer.get())


@pytest.mark.parametrize(
    ("place", "old", "new", "missing"),
    [
        ("exchange/DurableVersions.class", "snapshotUploaded", "snapshotUploadet", "CoordinatorRef.snapshotUploadet("),
        ("CecStateStore.class", "failedToCommitStateFileError", "failedToCommitStateFileErrow", "FileErrow("),
        ("recovery/SparkLogs.class", "checkpointing/CommitLog", "checkpointing/CommitLug", "checkpointing.CommitLug."),
    ],
)
def test_what_a_release_lacks_is_named(
    place: str, old: str, new: str, missing: str, spark: SparkSession, tmp_path: Path
) -> None:
    """One name in a class of ours is changed, as if the running Spark did not have what was meant."""
    jvm = spark._jvm
    assert jvm is not None
    linkage, loader = jvm.org.apache.spark.sql.cec.Linkage, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    changed = tmp_path / "changed.jar"
    with zipfile.ZipFile(spark_cec.jar_path()) as jar, zipfile.ZipFile(changed, "w") as copy:
        for name in jar.namelist():
            content = jar.read(name)
            if name == CEC + place:
                assert old.encode() in content
                content = content.replace(old.encode(), new.encode())
            copy.writestr(name, content)
    found = texts(jvm, linkage.missing(jvm.java.io.File(str(changed)), loader))
    assert found and all(new.rpartition("/")[2] in each for each in found)
    assert any(missing in each for each in found)
    assert texts(jvm, linkage.missing(jvm.java.io.File(spark_cec.jar_path()), loader)) == []
